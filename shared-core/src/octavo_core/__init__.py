"""The shared base of the Octavo packages.

Import the module you need (``octavo_core.report``, ``octavo_core.bench``, ...): this file imports nothing, so that
``octavo --help`` starts without loading torch.
"""

__version__ = "0.1.0"
