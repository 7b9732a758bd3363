"""A reader over the torch module, for the engines that exist only there."""

from __future__ import annotations

import copy
from typing import Any

import torch

from octavo_prompt_turing.cache import HardmaxCache

__all__ = ["ModuleReader"]


class ModuleReader:
    """Reads one sequence token by token through the module's forward pass and its cache.

    Args:
        model: A :class:`octavo_prompt_turing.PromptTuringModel`.
        config: Its engine.
    """

    def __init__(self, model: Any, config: Any) -> None:
        self.model, self.config = model, config
        self.ids: list[int] = []
        self._cache = HardmaxCache()
        self._logits = torch.zeros(0)
        self._hidden = torch.zeros(0)

    def push(self, token: int) -> None:
        """Read a token.

        Args:
            token: Its id.
        """
        self.ids.append(token)
        ids = torch.tensor([[token]], device=self.model.embedding.device)
        output = self.model(ids, cache=self._cache, config=self.config)
        self._logits, self._hidden = output.logits[0, -1], output.hidden[0, -1]

    def logits(self) -> list[float]:
        """Scores of the next token, one for each of the 23."""
        return self._logits.tolist()

    def next_id(self) -> int:
        """Id of the next token: that with the largest logit."""
        return int(self._logits.argmax())

    @property
    def counter(self) -> int:
        """The program counter that the model fetches with, as far as its arithmetic still knows it."""
        x, y = (float(self.model.feature(name, self._hidden)) for name in ("prog_cur_norm", "prog_cur_one_norm"))
        return round(x / y) if y else -1

    def features(self) -> dict[str, float]:
        """All named features at the last token read."""
        return {name: float(self.model.feature(name, self._hidden)) for name in self.model.feature_names}

    def copy(self) -> ModuleReader:
        """Make an independent reader that has read the same tokens."""
        other = ModuleReader(self.model, self.config)
        other.ids, other._cache = self.ids.copy(), copy.deepcopy(self._cache)
        other._logits, other._hidden = self._logits, self._hidden
        return other

    def rewound(self, length: int) -> ModuleReader:
        """Make a reader that has read only the first tokens.

        Args:
            length: Number of tokens.

        Returns:
            The reader.
        """
        other = ModuleReader(self.model, self.config)
        for token in self.ids[:length]:
            other.push(token)
        return other
