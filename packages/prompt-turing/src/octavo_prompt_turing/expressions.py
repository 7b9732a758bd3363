"""Expressions and conditions of the small language."""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator
from contextlib import contextmanager

from octavo_prompt_turing.naturals import error
from octavo_prompt_turing.strings import Strings

__all__ = ["Expressions"]

_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_MAX_CONSTANT = 2**256
_MAX_SHIFT = 256
_CONDITION_CALLS = {"more", "empty", "read", "pop"}


class Expressions(Strings):
    """Code for expressions: sweeps compute numbers, conditions are jumps."""

    def constant(self, node: ast.Constant) -> int:
        """Check a literal.

        Args:
            node: The literal.

        Returns:
            Its value.

        Raises:
            InvalidValueError: If it is not a natural number of at most 256 bits.
        """
        if isinstance(node.value, int) and node.value >= _MAX_CONSTANT:
            raise error(node, f"a number of {node.value.bit_length():,} bits is not a natural number below 2**256")
        if not isinstance(node.value, int) or node.value < 0:
            raise error(node, f"{ast.unparse(node)} is not a natural number below 2**256")
        return int(node.value)

    def is_condition(self, node: ast.expr) -> bool:
        """Whether an expression is 0 or 1 by its form, and is computed by jumps.

        Args:
            node: The expression.

        Returns:
            Whether it is.
        """
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and node.func.id in _CONDITION_CALLS
        if isinstance(node, ast.BoolOp):
            return all(map(self.is_condition, node.values))
        return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))

    def assign(self, node: ast.expr, target: int) -> None:
        """Compute an expression into a variable.

        Args:
            node: The expression.
            target: Variable number.

        Raises:
            InvalidValueError: If it is not in the language.
        """
        match node:
            case ast.Constant():
                self.set_constant(target, self.constant(node))
            case ast.Name(id=name):
                self.copy(self.number(node, name), target)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=ast.Constant() as right):
                with self.operand(left) as x:
                    act = self.add_constant if isinstance(op, ast.Add) else self.subtract_constant
                    act(x, self.constant(right), target)
            case ast.BinOp(left=left, op=ast.LShift() | ast.RShift() as op, right=right):
                self.shift(node, left, right, isinstance(op, ast.RShift), target)
            case ast.BinOp(left=left, op=op, right=right):
                with self.operand(left) as x, self.operand(right) as y:
                    self.binary(node, op, x, y, target)
            case ast.IfExp(test=test, body=body, orelse=other):
                self._choose(test, lambda: self.assign(body, target), lambda: self.assign(other, target))
            case _ if self.is_condition(node):
                self._choose(node, lambda: self.set_constant(target, 1), lambda: self.set_constant(target, 0))
            case _:
                raise error(node, f"{ast.unparse(node)!r} is not an expression of the language")

    def condition(self, node: ast.expr, yes: str, no: str) -> None:
        """Jump to one of two labels, by an expression.

        Args:
            node: The expression.
            yes: Label if it is not 0.
            no: Label if it is 0.

        Raises:
            InvalidValueError: If it is not in the language.
        """
        emit = self.emit
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.condition(operand, no, yes)
            case ast.BoolOp(op=op, values=values):
                for value in values[:-1]:
                    following = emit.fresh("next")
                    is_and = isinstance(op, ast.And)
                    self.condition(value, following if is_and else yes, no if is_and else following)
                    emit.label(following)
                self.condition(values[-1], yes, no)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
                with self.operand(left) as x:
                    self._compare_chain(x, [_COMPARE[type(op)] for op in ops], others, yes, no)
            case ast.Call(func=ast.Name(id="more"), args=[], keywords=[]):
                emit.jump("A?", yes)
                emit.goto(no, "B", known=1)
            case ast.Call(func=ast.Name(id="read"), args=[], keywords=[]):
                self._read(yes, no)
            case ast.Call(func=ast.Name(id="empty"), args=[], keywords=[]):
                self._empty(yes, no)
            case ast.Call(func=ast.Name(id="pop"), args=[], keywords=[]):
                self._pop(yes, no)
            case (
                ast.BinOp(left=left, op=ast.BitAnd(), right=ast.Constant(value=1))
                | ast.BinOp(left=left, op=ast.Mod(), right=ast.Constant(value=2))
            ):
                with self.operand(left) as x:
                    self._last_bit(x, yes, no)
            case ast.Constant():
                emit.goto(yes if self.constant(node) else no, "B", known=1)
            case ast.Compare() | ast.Call():
                raise error(node, f"{ast.unparse(node)!r} is not an expression of the language")
            case _:
                with self.operand(node) as x:
                    self.compare_constant("!=", x, 0, yes, no)

    @contextmanager
    def operand(self, node: ast.expr) -> Generator[int]:
        """Give the variable that holds an operand, a temporary one if it has to be computed.

        Args:
            node: The operand.

        Yields:
            Variable number.
        """
        if isinstance(node, ast.Name):
            yield self.number(node, node.id)
            return
        with self.temporary() as place:
            self.assign(node, place)
            yield place

    def number(self, node: ast.AST, name: str) -> int:
        """Look up a variable.

        Args:
            node: Where it is used.
            name: Its name.

        Returns:
            Variable number.

        Raises:
            InvalidValueError: If it is never assigned, or is a function of the language without its parentheses.
        """
        if name in _CONDITION_CALLS:
            raise error(node, f"{name!r} is a function of the language; write {name}()")
        if name not in self.variables:
            raise error(node, f"variable {name!r} is never assigned")
        return self.variables.index(name)

    def shift(self, node: ast.AST, left: ast.expr, right: ast.expr, to_right: bool, target: int) -> None:
        """Shift by a constant.

        Args:
            node: Where it stands.
            left: What is shifted.
            right: By how much.
            to_right: Direction.
            target: Result.

        Raises:
            InvalidValueError: If the amount is not a small constant.
        """
        if not isinstance(right, ast.Constant) or not 0 <= self.constant(right) <= _MAX_SHIFT:
            raise error(node, f"a shift is by a constant from 0 to {_MAX_SHIFT}")
        self.assign(left, target)
        for _ in range(self.constant(right)):
            self._halve(target) if to_right else self._double(target)

    def _compare_chain(self, x: int, relations: list[str], others: list[ast.expr], yes: str, no: str) -> None:
        """Compare a variable with an expression, and that, evaluated once, with the next."""
        right = others[0]
        if len(others) == 1 and isinstance(right, ast.Constant):
            self.compare_constant(relations[0], x, self.constant(right), yes, no)
            return
        with self.operand(right) as y:
            if len(others) == 1:
                self.compare(relations[0], x, y, yes, no)
                return
            following = self.emit.fresh("next")
            self.compare(relations[0], x, y, following, no)
            self.emit.label(following)
            self._compare_chain(y, relations[1:], others[1:], yes, no)

    def _choose(self, test: ast.expr, yes: Callable[[], None], no: Callable[[], None]) -> None:
        then, otherwise, end = (self.emit.fresh(hint) for hint in ("then", "else", "end"))
        self.condition(test, then, otherwise)
        self.emit.label(then)
        yes()
        self.emit.goto(end, "B", known=1)
        self.emit.label(otherwise)
        no()
        self.emit.label(end)
