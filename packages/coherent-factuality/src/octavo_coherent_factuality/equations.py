"""Checking the equations in a claim with sympy: own parser, nothing evaluated as code, a time limit for each claim.

The file runs as a worker process too (``python -P equations.py``), so it imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, Literal

__all__ = ["EquationChecker", "Verdict", "check_equations", "parse_expression"]

Verdict = Literal["true", "false", "unknown"]
"""What the equations of a claim amount to; unknown where there is none, or one that cannot be read or decided."""

_TOKEN = re.compile(
    r"(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\d+|(?<![\w)])\.\d+)"
    r"|(?P<command>\\[A-Za-z]+)"
    r"|(?P<name>[A-Za-z](?:_\{\w+\}|_\w|\d+)?(?![A-Za-z]))"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<power>\*\*|\^)"
    r"|(?P<relation>==|=|≈|≃)"
    r"|(?P<operator>[-+*/()\[\]{}%\u2212\u2013\u00d7·÷⋅√π|])"
    r"|(?P<space>\s+|\$|\\[,;!:() \[\]]|\\\\|~)"
    r"|(?P<break>.)",
    re.DOTALL,
)
_FUNCTIONS = {"sqrt", "sin", "cos", "tan", "ln", "log", "exp", "abs"}
_COMMANDS = {
    "\\cdot": "*", "\\times": "*", "\\div": "/", "\\left": "", "\\right": "", "\\approx": "≈", "\\pi": "π",
    "\\sqrt": "sqrt", "\\sin": "sin", "\\cos": "cos", "\\tan": "tan", "\\ln": "ln", "\\log": "log", "\\exp": "exp",
    "\\frac": "frac", "\\dfrac": "frac", "\\tfrac": "frac", "\\quad": "", "\\qquad": "", "\\displaystyle": "",
}  # fmt: skip
_SIGNS = {"\u2212": "-", "\u2013": "-", "\u00d7": "*", "·": "*", "⋅": "*", "÷": "/", "[": "(", "]": ")"}
_MAX_TOKENS, _MAX_DIGITS, _MAX_DEPTH, _MAX_POWER_BITS = 400, 60, 40, 20_000

Token = tuple[str, str]


class _Unreadable(Exception):
    """The text is not an expression that this parser knows."""


def parse_expression(text: str) -> Any:
    """Parse an arithmetic or algebraic expression, plain or in LaTeX, into a sympy expression.

    Numbers (decimals become exact fractions), names of one letter with an optional index, ``+ - * / ^``, parentheses,
    percent signs, implicit products, ``frac``, ``sqrt`` and the elementary functions are known.

    Args:
        text: The expression.

    Returns:
        A sympy expression.

    Raises:
        ValueError: If it cannot be read.
    """
    segments = _segments(text)
    foreign = [
        match.group()
        for match in _TOKEN.finditer(text)
        if match.lastgroup == "break" or (match.lastgroup == "word" and match.group() not in _FUNCTIONS | {"frac"})
    ]
    if foreign or len(segments) != 1 or len(segments[0].sides) != 1:
        raise ValueError(f"{text[:80]!r} is not one expression")
    try:
        return _Parser(segments[0].sides[0]).parse()
    except _Unreadable as error:
        raise ValueError(f"{text[:80]!r} cannot be read: {error}") from error


def check_equations(text: str, context: Sequence[str] = ()) -> Verdict:
    """Check the equations of a claim, in this process and without a time limit.

    Chains such as ``a = b = c`` are checked link by link. Equations in the context (the question, the premises) give
    values to symbols; an equation with symbols is true if it is an identity or follows from the context. A decimal with
    places may be the rounded value of the other side.

    Args:
        text: The claim.
        context: Texts whose equations hold.

    Returns:
        ``"false"`` if any equation is false, ``"true"`` if there are some and all hold, else ``"unknown"``.
    """
    verdicts = []
    try:
        known = [pair for entry in context for pair in _equations(entry) if pair is not None]
        solutions = _solve([(left, right) for left, right, _ in known])
    except Exception:
        solutions = []
    for equation in _equations(text):
        try:
            verdicts.append("unknown" if equation is None else _decide(*equation, solutions))
        except Exception:  # sympy raises errors of every kind on odd input: then nothing is known
            verdicts.append("unknown")
    if "false" in verdicts:
        return "false"
    return "true" if verdicts and "unknown" not in verdicts else "unknown"


class EquationChecker:
    """Checks claims in a worker process that is killed when a claim takes too long. Use it as a context manager.

    Args:
        time_limit: Seconds for one claim; its verdict is then ``"unknown"``.

    Raises:
        ValueError: If the limit is not positive.
    """

    def __init__(self, time_limit: float | int = 2.0) -> None:
        if not time_limit > 0:
            raise ValueError(f"time_limit={time_limit} must be positive")
        self.time_limit = time_limit
        self.timeouts = 0
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()

    def __enter__(self) -> EquationChecker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def check(self, text: str, context: Sequence[str] = ()) -> Verdict:
        """Check one claim; see :func:`check_equations`.

        Args:
            text: The claim.
            context: Texts whose equations hold.

        Returns:
            The verdict.
        """
        with self._lock:
            process = self._start()
            try:
                if process.stdin is None:
                    return "unknown"
                process.stdin.write(json.dumps([text, list(context)]) + "\n")
                process.stdin.flush()
                answer = self._lines.get(timeout=self.time_limit)
            except (queue.Empty, OSError):
                self.timeouts += 1
                self.close()
                return "unknown"
            if answer not in ("true", "false"):
                if process.poll() is not None:
                    self.close()
                return "unknown"
            return "true" if answer == "true" else "false"

    def close(self) -> None:
        """Stop the worker; it starts again when it is needed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        lines: queue.Queue[str] = queue.Queue()

        def forward() -> None:
            with contextlib.suppress(OSError, ValueError):
                for line in process.stdout or ():
                    lines.put(line.strip())
            lines.put("gone")

        threading.Thread(target=forward, daemon=True).start()
        self._process, self._lines = process, lines
        with contextlib.suppress(queue.Empty):
            lines.get(timeout=60)  # the worker says hello once sympy is loaded, which does not count as checking
        return process


class _Segment:
    """A run of mathematical tokens: its sides, the relations between them, and whether a word cut into it."""

    def __init__(self) -> None:
        self.sides: list[list[Token]] = [[]]
        self.relations: list[str] = []


def _segments(text: str) -> list[_Segment]:
    """Cut a text into runs of mathematical tokens; words, commas, colons and full stops separate them."""
    segments: list[_Segment] = []
    current = _Segment()
    after_word = False

    def finish(by_word: bool) -> None:
        nonlocal current, after_word
        if current.relations or current.sides[0]:
            segments.append(current)
        current, after_word = _Segment(), by_word

    tokens = list(_TOKEN.finditer(text[:20_000]))
    for place, match in enumerate(tokens):
        kind, value = str(match.lastgroup), match.group()
        if kind == "space":
            continue
        if kind == "command":
            value = _COMMANDS.get(value, "?")
            if not value:
                continue
            kind = {"≈": "relation", "*": "operator", "/": "operator", "π": "operator"}.get(value, "word")
        if kind == "name" and value in ("x", "X") and _between_numbers(tokens, place):
            kind, value = "operator", "*"
        if kind == "word" and value in _FUNCTIONS | {"frac"}:
            kind = "function"
        if kind in ("word", "break"):
            # "5 apples + 3 = 8": what a word cuts off next to an operator is no equation.
            if current.sides[-1] and current.sides[-1][-1][1] in "+-*/^":
                current.sides[-1].append(("cut", value))
            finish(kind == "word")
        elif kind == "relation":
            current.relations.append("≈" if value in "≈≃" else "=")
            current.sides.append([])
        else:
            if after_word and not current.sides[0] and not current.relations and value in "+-*/^\u2212\u2013\u00d7·÷**":
                current.sides[0].append(("cut", "?"))
            current.sides[-1].append((kind, _SIGNS.get(value, value)))
    finish(False)
    return segments


def _between_numbers(tokens: list[re.Match[str]], place: int) -> bool:
    before = next((t for t in reversed(tokens[:place]) if t.lastgroup != "space"), None)
    after = next((t for t in tokens[place + 1 :] if t.lastgroup != "space"), None)
    spaced = place > 0 and tokens[place - 1].lastgroup == "space"
    return before is not None and after is not None and before.lastgroup == after.lastgroup == "number" and spaced


def _equations(text: str) -> list[tuple[Any, Any, str] | None]:
    """Pairs of sides with their relation; ``None`` for one that cannot be read."""
    found: list[tuple[Any, Any, str] | None] = []
    for segment in _segments(text):
        if not segment.relations:
            continue
        sides: list[Any] = []
        for side in segment.sides:
            try:
                sides.append((_Parser(side).parse(), side))
            except _Unreadable:
                sides.append(None)
        for left, relation, right in zip(sides, segment.relations, sides[1:], strict=False):
            if left is None or right is None:
                found.append(None)
            else:
                places = max(_places(left[1]), _places(right[1]))
                bare = (_places(left[1]) >= 0) != (_places(right[1]) >= 0)
                rounded = relation == "≈" or (bare and places > 0)
                found.append((left[0], right[0], f"{places}" if rounded and bare else relation))
    return found


def _places(side: list[Token]) -> int:
    """Decimal places of a side that is a bare number, -1 for another."""
    numbers = [value for kind, value in side if kind == "number"]
    if len(numbers) != 1 or any(kind != "number" and value not in "+-" for kind, value in side):
        return -1
    return len(numbers[0].partition(".")[2])


def _decide(left: Any, right: Any, relation: str, solutions: list[dict[Any, Any]]) -> str:
    import sympy

    difference = left - right
    if not difference.free_symbols:
        return _compare(difference, right, relation)
    results = set()
    for solution in solutions:
        value = difference.subs(solution)
        if value.free_symbols:
            break
        results.add(_compare(value, right.subs(solution), relation))
    else:
        if len(results) == 1:
            return results.pop()
    return "true" if sympy.simplify(difference) == 0 else "unknown"


def _compare(difference: Any, right: Any, relation: str) -> str:
    import sympy

    if difference.is_Rational:
        exact = difference == 0
    else:
        difference = sympy.simplify(difference)
        exact = difference == 0
        if not exact and not difference.is_number:
            return "unknown"
    if exact:
        return "true"
    size = abs(complex(sympy.N(difference, 30)))
    if relation == "≈":
        return "true" if size <= 0.01 * max(1.0, abs(complex(sympy.N(right, 15)))) else "false"
    if relation != "=":
        return "true" if size <= 0.5 * 10.0 ** -int(relation) * (1 + 1e-12) else "false"
    # Not proved equal: numbers that agree to 20 digits may be, and then nothing is known.
    return "false" if size > 1e-20 else "unknown"


def _solve(equations: list[tuple[Any, Any]]) -> list[dict[Any, Any]]:
    import sympy

    system = [left - right for left, right in equations if (left - right).free_symbols]
    if not system:
        return []
    # Values that follow by substitution alone are by far the most common; what remains is solved as a system.
    values: dict[Any, Any] = {}
    progress = True
    while progress:
        progress = False
        for equation in list(system):
            reduced = equation.subs(values)
            symbols = reduced.free_symbols
            if not symbols:
                system.remove(equation)
            elif len(symbols) == 1 and (symbol := next(iter(symbols))) and reduced.diff(symbol).is_number:
                slope = reduced.diff(symbol)
                if slope != 0:
                    values[symbol] = -reduced.subs(symbol, 0) / slope
                    system.remove(equation)
                    progress = True
    if not system:
        return [values]
    remaining = [equation.subs(values) for equation in system]
    symbols = sorted(set().union(*(equation.free_symbols for equation in remaining)), key=str)
    found = sympy.solve(remaining, symbols, dict=True)
    return [values | solution for solution in found] or [values]


class _Parser:
    """Recursive descent over tokens; sympy objects are made by arithmetic on numbers and symbols, never from text."""

    def __init__(self, tokens: list[Token]) -> None:
        if not tokens or len(tokens) > _MAX_TOKENS:
            raise _Unreadable(f"{len(tokens)} tokens")
        self.tokens = tokens
        self.place = 0
        self.depth = 0

    def parse(self) -> Any:
        value = self.sum()
        if self.place < len(self.tokens):
            raise _Unreadable(f"unexpected {self.tokens[self.place][1]!r}")
        return value

    def peek(self) -> Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else ("end", "")

    def take(self, value: str | None = None) -> Token:
        token = self.peek()
        if token[0] == "end" or (value is not None and token[1] != value):
            raise _Unreadable(f"{value or 'more'} expected")
        self.place += 1
        return token

    def sum(self) -> Any:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Unreadable("nested too deeply")
        value = self.product()
        while self.peek()[1] in ("+", "-"):
            value = value + self.product() if self.take()[1] == "+" else value - self.product()
        self.depth -= 1
        return value

    def product(self) -> Any:
        value = self.signed()
        while True:
            kind, text = self.peek()
            if text == "*":
                self.take()
                value = value * self.signed()
            elif text == "/":
                self.take()
                value = _divide(value, self.signed())
            elif kind in ("name", "function") or text in ("(", "{", "√", "π"):
                value = value * self.power()
            else:
                return value

    def signed(self) -> Any:
        if self.peek()[1] in ("+", "-"):
            sign = self.take()[1]
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise _Unreadable("nested too deeply")
            value = self.signed()
            self.depth -= 1
            return -value if sign == "-" else value
        return self.power()

    def power(self) -> Any:
        base = self.atom()
        while self.peek()[1] == "%":
            self.take()
            base = base / 100
        if self.peek()[0] == "power":
            self.take()
            return _power(base, self.signed())
        return base

    def atom(self) -> Any:
        import sympy

        kind, text = self.take()
        if kind == "number":
            digits = text.replace(",", "")
            if len(digits) > _MAX_DIGITS:
                raise _Unreadable("too many digits")
            return sympy.Rational(digits)
        if kind == "name":
            return sympy.Symbol(re.sub(r"[{}]", "", text))
        if text == "π":
            return sympy.pi
        if text == "√":
            return sympy.sqrt(self.atom())
        if kind == "function":
            return self.function(text)
        if text in ("(", "{"):
            value = self.sum()
            self.take(")" if text == "(" else "}")
            return value
        if text == "|":
            value = self.sum()
            self.take("|")
            return sympy.Abs(value)
        raise _Unreadable(f"unexpected {text!r}")

    def function(self, name: str) -> Any:
        import sympy

        if name == "frac":
            return _divide(self.atom(), self.atom())
        argument = self.atom()
        if name == "exp":
            return _power(sympy.E, argument)
        functions = {
            "sqrt": sympy.sqrt, "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "ln": sympy.log,
            "log": sympy.log, "abs": sympy.Abs,
        }  # fmt: skip
        return functions[name](argument)


def _divide(numerator: Any, denominator: Any) -> Any:
    if denominator == 0:
        raise _Unreadable("division by zero")
    return numerator / denominator


def _power(base: Any, exponent: Any) -> Any:
    """A power whose size is bounded before it is worked out."""
    if exponent.is_Rational and base.is_Rational:
        bits = max(int(base.p).bit_length(), int(base.q).bit_length())
        if bits * abs(float(exponent)) > _MAX_POWER_BITS:
            raise _Unreadable("a power too large")
        if base == 0 and exponent < 0:
            raise _Unreadable("division by zero")
    elif exponent.is_number and abs(complex(exponent)) > 1000:
        raise _Unreadable("a power too large")
    return base**exponent


def _serve() -> None:
    """Answer one JSON line [text, context] after another, with 2 GiB of memory at most."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
    import sympy  # noqa: F401 - loaded before the clock starts

    print("ready", flush=True)
    for line in sys.stdin:
        text, context = json.loads(line)
        try:
            verdict = check_equations(text, context)
        except (MemoryError, RecursionError):
            verdict = "unknown"
        print(verdict, flush=True)


if __name__ == "__main__":
    _serve()
