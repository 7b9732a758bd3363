"""Compiled programs against Python itself: the same source, with subtraction cut off at 0, is executed as Python."""

from __future__ import annotations

import ast
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_core.errors import InvalidTypeError, InvalidValueError
from octavo_prompt_turing import Machine, compile_py, run_prompt


class CutSubtraction(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Sub):
            return ast.Call(ast.Name("minus", ast.Load()), [node.left, node.right], [])
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        assert isinstance(node.target, ast.Name)
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        return self.visit(ast.Assign([node.target], value))


def as_python(source: str, bits: str) -> str:
    """Run the test's own source as Python."""
    stack: list[int] = []
    output: list[str] = []
    position = 0

    def read() -> int:
        nonlocal position
        position += 1
        return int(bits[position - 1]) if position <= len(bits) else 0

    def rewind() -> None:
        nonlocal position
        position = 0

    names = {
        "minus": lambda a, b: max(0, int(a) - int(b)),
        "read": read,
        "more": lambda: position < len(bits),
        "rewind": rewind,
        "push": lambda x: stack.append(int(x) & 1),
        "pop": lambda: stack.pop() if stack else 0,
        "empty": lambda: not stack,
        "emit": lambda x: output.append(str(int(x) & 1)),
    }
    tree = ast.fix_missing_locations(CutSubtraction().visit(ast.parse(source)))
    exec(compile(tree, "test", "exec"), names)  # noqa: S102
    value = names["main"]()
    return "".join(output) + ("" if value is None else format(int(value), "b"))


def check(source: str, longest: int = 3) -> None:
    program = compile_py(source)
    for length in range(longest + 1):
        for word in itertools.product("01", repeat=length):
            bits = "".join(word)
            run = Machine(program).run(bits, 2_000_000)
            assert run.output == as_python(source, bits), bits


# One line of a body after another; a tilde ends a line.
@pytest.mark.parametrize(
    "body",
    [
        "return 0",
        "n = 0~while more():~    n = (n << 1) + read()~return n * n + 3 - (n // 3) % 5",
        "while more():~    push(read())~while not empty():~    emit(pop())",
        "a = 0~b = 0~while more():~    if read():~        a += 1~    else:~        b += 1~"
        "for i in range(b):~    emit(0)~for j in range(a):~    emit(1)~return 1 if a >= b and not a == 3 else a - b",
        "a = 5~c = 0~while more():~    x = read()~    a = (a ^ 3) + x~    c = c | a~    if a > 9 or x == 1:~"
        "        a = a & 6~        continue~    c = (c << 2) + (a >> 1)~    if c > 1000:~        break~"
        "rewind()~emit(read())~emit(c)~return c",
        "x = read() + 1~emit(0 < x < 2)~emit(0 < x <= 2 != 3)~return 1 == x == read()",
        "emit(0 < read() + 1 < 2)~emit(0 <= read() <= 0)~emit(read() < read() + 1 <= 1 + read() < 3)~return more()",
        "x = pop()~push(1)~push(x)~read()~emit(pop())~emit(pop())~emit(empty())~emit(more())~return",
        "n = 3~for i in range(n):~    n = 1~    if i == 1:~        continue~    emit(i)~return i",
        "'''A docstring.'''~b = read()~if b:~    pass~elif more():~    return 2~else:~    return 6~return b < 1",
    ],
)
def test_constructs_mean_what_they_mean_in_python(body: str) -> None:
    check("def main():\n" + "".join(f"    {line}\n" for line in body.split("~")))


NUMBERS = st.integers(0, 40)
RELATIONS = ["==", "!=", "<", "<=", ">", ">="]


@settings(max_examples=8, deadline=None)
@given(NUMBERS, NUMBERS, st.sampled_from(["+", "-", "*", "&", "|", "^"]), st.sampled_from(RELATIONS))
def test_arithmetic_on_variables_and_constants(x: int, y: int, operator: str, relation: str) -> None:
    check(
        f"def main():\n    a = {x}\n    b = {y}\n    emit(a {relation} b)\n    emit(a {relation} {y})\n"
        f"    c = a {operator} b\n    c = c + (a {operator} {y})\n    return c\n",
        longest=0,
    )


def test_subtraction_stops_at_zero() -> None:
    program = compile_py("def main():\n    a = 3\n    b = a - 5\n    c = 2 - a\n    return b + c + (7 - a)")
    assert Machine(program).run().output == "100"


def test_a_function_of_the_session_is_taken() -> None:
    def double():
        n = 0
        while more():
            n = (n << 1) + read()
        return n + n

    program = compile_py(double)
    assert program.name == "double"
    assert run_prompt(program, "101").output == "1010"


def test_instructions_know_their_source_line() -> None:
    program = compile_py("def main():\n    a = 1\n    if read():\n        a = 2\n    return a\n")
    assert {i.line for i in program} == {None, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def main(:", "line 1: not Python"),
        ("x = 1", "0 functions and 1 other statements"),
        ("def f(): pass\ndef g(): pass", "2 functions"),
        ("def main(n):\n    return n", "line 1: the function takes no parameters"),
        ("def main():\n    import os", "line 2: 'import os' is not part of the language"),
        ("def main():\n    return a", "line 2: variable 'a' is never assigned"),
        ("def main():\n    a = -1", "line 2: .* is not an expression of the language"),
        ("def main():\n    a = 0x" + "f" * 9_000, "line 2: a number of 36,000 bits is not a natural number"),
        ("def main():\n    a = 1.5", "line 2: 1.5 is not a natural number"),
        ("def main():\n    a = 2 ** 3", "line 2: operator Pow is not part of the language"),
        ("def main():\n    a = 1\n    a = a << a", "line 3: a shift is by a constant"),
        ("def main():\n    for i in range(2, step=3):\n        pass", "line 2"),
        ("@read\ndef main():\n    return 1", "line 1: decorators are not part"),
        ("def main():\n    read = 1", "line 2: 'read' is a word of the language"),
        ("def main():\n    a = 1\n    for range in range(a):\n        pass", "line 3: 'range' is a word"),
        ("def main():\n    a = 1\n    a = " + "~" * 20_000 + "a", "the source is nested too deeply|not Python"),
        ("def main():\n    a = 1\n    a = a" + " + a" * 900, "nested too deeply"),
        ("def main():\n    print(1)", r"line 2: 'print\(1\)' is not part of the language"),
        ("def main():\n    a = open('x')", "line 2: .* is not an expression"),
        ("def main():\n    break", "line 2: 'break' is not part of the language outside a loop"),
        ("def main():\n    a = 1 in 2", "line 2: '1 in 2' is not an expression"),
        ("def main():\n    a = read(1)", "line 2: .* is not an expression"),
        ("def main():\n    a = 1\n    a = " + "a + (" * 3_000 + "a" + ")" * 3_000, "nested|not Python"),
        ("def main():\n    while 1:\n        pass\n    else:\n        pass", "line 2: 'else' of a loop is not part"),
        (
            "def main():\n    for i in range(3):\n        pass\n    else:\n        pass",
            "line 2: 'else' of a loop is not",
        ),
        ("def main():\n    for i in range(2, 5):\n        pass", r"line 2: 'range\(2, 5\)' .*; give range one number"),
        ("def main():\n    for i in [1]:\n        pass", r"line 2: 'for i in \[1\]:' is not part of the language"),
        ("def main():\n    if 1:\n        continue", "line 3: 'continue' is not part of the language outside a loop"),
        ("def main():\n    return more", r"line 2: 'more' is a function of the language; write more\(\)"),
        ("def main():\n    push(read)", r"line 2: 'read' is a function of the language; write read\(\)"),
        ("def main():\n    return 1\0", "^the source: not Python: .* null bytes"),
    ],
)
def test_what_is_not_in_the_language_is_refused_by_line(source: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        compile_py(source)


def test_other_objects_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="not a int"):
        compile_py(3)
    with pytest.raises(InvalidTypeError, match="cannot be found"):
        compile_py(len)
