"""Compiler from a small subset of Python to programs of the two-tape Post-Turing machine.

The source is parsed and never executed. Variables are natural numbers of any size, kept in binary on tape B; tape A
holds the input, and the output at the end.
"""

from __future__ import annotations

import ast
import inspect
import textwrap

from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_prompt_turing.program import Program
from octavo_prompt_turing.statements import compile_statements

__all__ = ["compile_py"]

_MAX_SOURCE = 1_000_000


def compile_py(source: object, *, name: str = "") -> Program:
    """Compile a function of the language below.

    Values are natural numbers; ``a - b`` is 0 where it would be negative. There are:

    - assignments, also ``+= -= *= //= %= &= |= ^= <<= >>=``; ``if``, ``elif``, ``else``; ``while``;
      ``for i in range(n)``; ``break``, ``continue``, ``pass``;
    - ``+ - * // % & | ^ << >>`` (shifts by constants), comparisons, ``and``, ``or``, ``not``, conditional expressions;
    - ``more()``: whether input is left; ``read()``: the next input bit, 0 at the end; ``rewind()``: back to the start;
    - ``push(x)`` and ``pop()``: a stack of bits (the last bit of x; 0 if it is empty); ``empty()``: whether it is;
    - ``emit(x)``: append the last bit of x to the output; ``return n``: append n in binary and stop; ``return``: stop.

    Args:
        source: Text (str) with one function without parameters, or such a function.
        name: Name of the program; the function's by default.

    Returns:
        The program; every instruction knows its source line.

    Raises:
        InvalidTypeError: If it is neither text nor a function with source.
        InvalidValueError: If the text is not in the language; the message names the line.

    Source:
        Beyond the paper, which proves that such programs exist for every computable function.
    """
    if callable(source):
        try:
            text = textwrap.dedent(inspect.getsource(source))
        except (OSError, TypeError) as error:
            raise InvalidTypeError(f"the source of {source!r} cannot be found; pass its text instead") from error
    elif isinstance(source, str):
        text = source
    else:
        raise InvalidTypeError(f"give the text of a function, or a function, not a {type(source).__name__}")
    if len(text) > _MAX_SOURCE:
        raise InvalidValueError(f"the source has {len(text):,} characters, more than the {_MAX_SOURCE:,} supported")
    try:
        tree = ast.parse(text)
    except (RecursionError, MemoryError) as error:
        raise InvalidValueError("the source is nested too deeply; use variables for parts of it") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = "the source" if line is None else f"line {line}"
        raise InvalidValueError(f"{where}: not Python: {getattr(error, 'msg', error)}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    others = [node for node in tree.body if not isinstance(node, ast.FunctionDef) and not _is_docstring(node)]
    if len(functions) != 1 or others:
        raise InvalidValueError(
            f"the source has {len(functions)} functions and {len(others)} other statements; give one function, such as "
            "def main(): ..."
        )
    function = functions[0]
    arguments = function.args
    if arguments.args or arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
        raise InvalidValueError(f"line {function.lineno}: the function takes no parameters; read the input with read()")
    if function.decorator_list:
        raise InvalidValueError(f"line {function.decorator_list[0].lineno}: decorators are not part of the language")
    try:
        return compile_statements(function.body, name or function.name)
    except RecursionError as error:
        raise InvalidValueError(f"{function.name} is nested too deeply; use variables for parts of it") from error


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
