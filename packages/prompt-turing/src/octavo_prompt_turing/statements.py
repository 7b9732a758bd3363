"""Statements and conditions of the small language, translated for :func:`octavo_prompt_turing.compile_py`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.expressions import Expressions
from octavo_prompt_turing.naturals import error
from octavo_prompt_turing.program import Program

__all__ = ["compile_statements"]

_NOT_SUPPORTED = "is not part of the language"
_RESERVED = {"range", "more", "read", "rewind", "push", "pop", "empty", "emit"}


def compile_statements(body: list[ast.stmt], name: str) -> Program:
    """Translate the body of a function.

    Args:
        body: Its statements.
        name: Name of the program.

    Returns:
        The program.

    Raises:
        InvalidValueError: If a statement is not in the language.
    """
    names = _Names()
    for node in body:
        names.visit(node)
    # The columns' width must be known before the first move, so temporaries are counted by a first translation.
    trial = _Statements(names.assigned, 0)
    trial.translate(body)
    final = _Statements(names.assigned, trial.num_temporaries)
    final.translate(body)
    return final.emit.link(name)


class _Names(ast.NodeVisitor):
    def __init__(self) -> None:
        self.assigned: list[str] = []

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Store):
            return
        if node.id in _RESERVED:
            raise error(node, f"{node.id!r} is a word of the language and cannot be assigned to; take another name")
        if node.id not in self.assigned:
            self.assigned.append(node.id)


class _Statements(Expressions):
    def __init__(self, variables: list[str], num_temporaries: int) -> None:
        super().__init__(variables, num_temporaries)
        self.loops: list[tuple[str, str]] = []

    def translate(self, body: list[ast.stmt]) -> None:
        self.emit.op("B1")
        self.block(body)
        self.emit.line = None
        self.emit.goto("return.nothing", "B", known=1)
        self.finish()

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.emit.line = node.lineno
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.assign(value, self.variable(node, name))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                read = ast.copy_location(ast.Name(name, ast.Load()), node)
                self.assign(ast.copy_location(ast.BinOp(read, op, value), node), self.variable(node, name))
            case ast.If(test=test, body=body, orelse=other):
                self._choose(test, lambda: self.block(body), lambda: self.block(other))
            case ast.While(test=test, body=body, orelse=[]):
                self.loop(test, lambda: self.block(body), lambda: None)
            case ast.For(
                target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[count], keywords=[]), orelse=[]
            ):
                self.count(node, self.variable(node, name), count, node.body)
            case ast.While(orelse=[_, *_]) | ast.For(orelse=[_, *_]):
                raise error(node, f"'else' of a loop {_NOT_SUPPORTED}; put it after the loop")
            case ast.For(target=ast.Name(), iter=ast.Call(func=ast.Name(id="range")) as call):
                raise error(node, f"{ast.unparse(call)!r} {_NOT_SUPPORTED}; give range one number, as in range(n)")
            case ast.Break() | ast.Continue():
                if not self.loops:
                    raise error(node, f"{ast.unparse(node)!r} {_NOT_SUPPORTED} outside a loop")
                self.emit.goto(self.loops[-1][isinstance(node, ast.Continue)], "B", known=1)
            case ast.Return(value=None):
                self.emit.goto("return.nothing", "B", known=1)
            case ast.Return(value=value) if value is not None:
                self.assign(value, self.returned)
                self.emit.goto("return.number", "B", known=1)
                self.returns_number = True
            case ast.Expr(value=ast.Call(func=ast.Name(id="emit"), args=[value], keywords=[])):
                self.with_last_bit(value, lambda bit: self.append("output", bit))
            case ast.Expr(value=ast.Call(func=ast.Name(id="push"), args=[value], keywords=[])):
                self.with_last_bit(value, lambda bit: self.append("stack", bit))
            case ast.Expr(value=ast.Call(func=ast.Name(id="rewind"), args=[], keywords=[])):
                self.rewind()
            case ast.Expr(value=ast.Call(func=ast.Name(id="read" | "pop"), args=[], keywords=[]) as call):
                end = self.emit.fresh("end")
                self.condition(call, end, end)
                self.emit.label(end)
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                pass
            case _:
                raise error(node, f"{ast.unparse(node).splitlines()[0]!r} {_NOT_SUPPORTED}")

    def with_last_bit(self, value: ast.expr, act: Callable[[int], None]) -> None:
        if isinstance(value, ast.Constant) and isinstance(value.value, int):
            act(self.constant(value) & 1)
            return
        bit = value
        if not self.is_condition(value):
            bit = ast.copy_location(ast.BinOp(value, ast.BitAnd(), ast.copy_location(ast.Constant(1), value)), value)
        self._choose(bit, lambda: act(1), lambda: act(0))

    def loop(self, test: ast.expr, body: Callable[[], None], step: Callable[[], None]) -> None:
        start, inside, step_label, end = (self.emit.fresh(hint) for hint in ("while", "body", "step", "end"))
        line = self.emit.line
        self.emit.label(start)
        self.condition(test, inside, end)
        self.emit.label(inside)
        self.loops.append((end, step_label))
        body()
        self.loops.pop()
        self.emit.line = line
        self.emit.label(step_label)
        step()
        self.emit.goto(start, "B", known=1)
        self.emit.label(end)

    def count(self, node: ast.For, variable: int, count: ast.expr, body: list[ast.stmt]) -> None:
        """``for i in range(n)``: as in Python, n is evaluated once and i keeps its last value."""
        with self.temporary() as limit, self.temporary() as counter:
            self.assign(count, limit)
            self.set_constant(counter, 0)
            start, inside, step, end = (self.emit.fresh(hint) for hint in ("for", "body", "step", "end"))
            self.emit.label(start)
            self.compare("<", counter, limit, inside, end)
            self.emit.label(inside)
            self.copy(counter, variable)
            self.loops.append((end, step))
            self.block(body)
            self.loops.pop()
            self.emit.line = node.lineno
            self.emit.label(step)
            self.add_constant(counter, 1, counter)
            self.emit.goto(start, "B", known=1)
            self.emit.label(end)

    def variable(self, node: ast.AST, name: str) -> int:
        if name not in self.variables:
            raise InvalidValueError(f"variable {name!r} has no place")
        return self.variables.index(name)
