"""Arithmetic on natural numbers in binary on tape B, for the small language."""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.emitter import Emitter
from octavo_prompt_turing.sweeps import ColumnLayout, Sweep, emit_sweep

__all__ = ["Naturals", "error"]

_TRUE_SIGNS = {"==": {0}, "!=": {-1, 1}, "<": {-1}, "<=": {-1, 0}, ">": {1}, ">=": {0, 1}}
_BITWISE: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.BitAnd: int.__and__,
    ast.BitOr: int.__or__,
    ast.BitXor: int.__xor__,
}


def error(node: ast.AST, message: str) -> InvalidValueError:
    """Make the error for a place in the source.

    Args:
        node: Syntax node.
        message: What is wrong.

    Returns:
        The error, which names the line.
    """
    return InvalidValueError(f"line {getattr(node, 'lineno', '?')}: {message}")


class Naturals:
    """Code for numbers. Between two pieces of code head B stands on the first cell of column 0, which holds 1.

    Args:
        variables: Names of the variables.
        num_temporaries: Places for intermediate results.
    """

    def __init__(self, variables: list[str], num_temporaries: int) -> None:
        self.emit = Emitter()
        self.variables = variables
        self.returned = len(variables)
        self.layout = ColumnLayout(len(variables) + 1 + num_temporaries)
        self.num_temporaries = self._in_use = 0
        self.returns_number = self._has_output = False

    def sweep(
        self,
        reads: list[int],
        target: int | None,
        start: Any,
        rule: Callable[[Any, tuple[int, ...]], tuple[Any, int | None]],
        *,
        quiet: Callable[[Any], bool] = lambda state: True,
        outcomes: Callable[[Any], str] | None = None,
        delay: bool = False,
    ) -> None:
        """Emit a sweep, see :class:`octavo_prompt_turing.sweeps.Sweep`.

        Args:
            reads: Variables read.
            target: Variable written.
            start: First state.
            rule: Transition rule.
            quiet: States that need no further columns.
            outcomes: Label by final state; going on after the sweep by default.
            delay: Write one column behind.
        """
        end = self.emit.fresh("done")
        unique = list(dict.fromkeys(reads))

        def by_name(state: Any, bits: tuple[int, ...]) -> tuple[Any, int | None]:
            return rule(state, tuple(bits[unique.index(variable)] for variable in reads))

        emit_sweep(
            self.emit, self.layout, Sweep(unique, target, start, by_name, quiet, outcomes or (lambda s: end), delay)
        )
        self.emit.label(end)

    def set_constant(self, target: int, value: int) -> None:
        """Set a variable to a number.

        Args:
            target: Variable.
            value: The number.
        """
        self.sweep([], target, value, lambda n, _: (n >> 1, n & 1), quiet=lambda n: n == 0)

    def copy(self, source: int, target: int) -> None:
        """Copy a variable.

        Args:
            source: From.
            target: To.
        """
        if source != target:
            self.sweep([source], target, 0, lambda s, bits: (s, bits[0]))

    def add_constant(self, x: int, value: int, target: int) -> None:
        """Add a number: the state is what is still to be added at the present column.

        Args:
            x: Variable.
            value: The number.
            target: Result.
        """
        self.sweep([x], target, value, lambda n, b: ((b[0] + n) >> 1, (b[0] + n) & 1), quiet=lambda n: n == 0)

    def subtract_constant(self, x: int, value: int, target: int) -> None:
        """Subtract a number, down to 0 at least.

        Args:
            x: Variable.
            value: The number.
            target: Result.
        """
        self._floor_at_zero(
            target,
            lambda outcomes: self.sweep(
                [x], target, value, lambda n, b: (-((b[0] - n) >> 1), (b[0] - n) & 1), outcomes=outcomes
            ),
        )

    def binary(self, node: ast.AST, op: ast.operator, x: int, y: int, target: int) -> None:
        """Apply an operator to two variables.

        Args:
            node: Where it stands.
            op: The operator.
            x: Left operand.
            y: Right operand.
            target: Result.

        Raises:
            InvalidValueError: If the operator is not in the language.
        """
        if isinstance(op, ast.Add):
            self.sweep([x, y], target, 0, lambda c, b: ((sum(b) + c) >> 1, (sum(b) + c) & 1), quiet=lambda c: c == 0)
        elif isinstance(op, ast.Sub):
            self._floor_at_zero(
                target,
                lambda outcomes: self.sweep(
                    [x, y],
                    target,
                    0,
                    lambda c, b: (int(b[0] - b[1] - c < 0), (b[0] - b[1] - c) & 1),
                    outcomes=outcomes,
                ),
            )
        elif type(op) in _BITWISE:
            function = _BITWISE[type(op)]
            self.sweep([x, y], target, 0, lambda s, bits: (s, function(*bits)))
        elif isinstance(op, ast.Mult):
            self._multiply(x, y, target)
        elif isinstance(op, ast.FloorDiv | ast.Mod):
            self._divide(x, y, target, remainder=isinstance(op, ast.Mod))
        else:
            raise error(node, f"operator {type(op).__name__} is not part of the language")

    def compare(self, relation: str, x: int, y: int, yes: str, no: str) -> None:
        """Compare two variables; the state is the sign of the difference so far.

        Args:
            relation: ``== != < <= > >=``.
            x: Left.
            y: Right.
            yes: Label if it holds.
            no: Label if not.
        """
        signs = _TRUE_SIGNS[relation]
        self.sweep([x, y], None, 0, lambda s, b: (b[0] - b[1] or s, None), outcomes=lambda s: yes if s in signs else no)

    def compare_constant(self, relation: str, x: int, value: int, yes: str, no: str) -> None:
        """Compare a variable with a number; the state is the rest of the number and the sign so far.

        Args:
            relation: ``== != < <= > >=``.
            x: Variable.
            value: The number.
            yes: Label if it holds.
            no: Label if not.
        """
        signs = _TRUE_SIGNS[relation]
        self.sweep(
            [x],
            None,
            (value, 0),
            lambda s, b: ((s[0] >> 1, b[0] - (s[0] & 1) or s[1]), None),
            outcomes=lambda s: yes if (-1 if s[0] else s[1]) in signs else no,
        )

    @contextmanager
    def temporary(self) -> Generator[int]:
        """Lend a place for an intermediate result.

        Yields:
            Its variable number.
        """
        self._in_use += 1
        self.num_temporaries = max(self.num_temporaries, self._in_use)
        yield self.returned + self._in_use
        self._in_use -= 1

    def _floor_at_zero(self, target: int, subtract: Callable[[Callable[[int], str]], None]) -> None:
        negative, end = self.emit.fresh("negative"), self.emit.fresh("end")
        subtract(lambda borrow: negative if borrow else end)
        self.emit.label(negative)
        self.set_constant(target, 0)
        self.emit.label(end)

    def _double(self, x: int) -> None:
        self.sweep([x], x, 0, lambda before, bits: (bits[0], before), quiet=lambda before: before == 0)

    def _halve(self, x: int) -> None:
        self.sweep([x], x, 0, lambda column, bits: (1, bits[0] if column else None), delay=True)

    def _multiply(self, x: int, y: int, target: int) -> None:
        """Shift and add."""
        emit = self.emit
        with self.temporary() as total, self.temporary() as shifted, self.temporary() as rest:
            self.set_constant(total, 0)
            self.copy(x, shifted)
            self.copy(y, rest)
            start, inside, odd, even, end = (emit.fresh(hint) for hint in ("times", "body", "odd", "even", "end"))
            emit.label(start)
            self.compare_constant("!=", rest, 0, inside, end)
            emit.label(inside)
            self._last_bit(rest, odd, even)
            emit.label(odd)
            self.binary(ast.Add(), ast.Add(), total, shifted, total)
            emit.label(even)
            self._double(shifted)
            self._halve(rest)
            emit.goto(start, "B", known=1)
            emit.label(end)
            self.copy(total, target)

    def _divide(self, x: int, y: int, target: int, *, remainder: bool) -> None:
        """Repeated subtraction; a division by 0 never ends, as a Turing machine without an answer does."""
        emit = self.emit
        with self.temporary() as rest, self.temporary() as quotient:
            self.copy(x, rest)
            self.set_constant(quotient, 0)
            start, inside, end = (emit.fresh(hint) for hint in ("divide", "body", "end"))
            emit.label(start)
            self.compare("<=", y, rest, inside, end)
            emit.label(inside)
            self.binary(ast.Sub(), ast.Sub(), rest, y, rest)
            self.add_constant(quotient, 1, quotient)
            emit.goto(start, "B", known=1)
            emit.label(end)
            self.copy(rest if remainder else quotient, target)

    def _last_bit(self, x: int, yes: str, no: str) -> None:
        emit, one = self.emit, self.emit.fresh("one")
        emit.move("B", 1 + x)
        emit.jump("B?", one)
        emit.move("B", -1 - x)
        emit.goto(no, "B", known=1)
        emit.label(one)
        emit.move("B", -1 - x)
        emit.goto(yes, "B", known=1)
