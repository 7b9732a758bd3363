"""Checking the equations in a claim with sympy: own parser, nothing evaluated as code, a time limit for each claim."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from octavo_coherent_factuality.expressions import Token, Unreadable, parse_expression, parse_side
from octavo_coherent_factuality.statements import statements

__all__ = ["EquationChecker", "Verdict", "check_equations", "parse_expression", "serve"]

Verdict = Literal["true", "false", "unknown"]
"""What the equations of a claim amount to; unknown where there is none, or one that cannot be read or decided."""

# The package without its __init__, which loads far more than the worker needs.
_WORKER = """
import sys, types
package = types.ModuleType("octavo_coherent_factuality")
package.__path__ = [sys.argv[1]]
sys.modules[package.__name__] = package
from octavo_coherent_factuality.equations import serve
serve()
"""

# Seconds; half of what a lock can wait, so that no rounding goes beyond it.
_LONGEST_WAIT = threading.TIMEOUT_MAX / 2

Reading = tuple[Any, Any, str]
"""Both sides and the relation: "=", "≈", or the number of decimal places that the rounded side has."""


def check_equations(text: str, context: Sequence[str] = ()) -> Verdict:
    """Check the equations of a claim, in this process and without a time limit.

    Chains such as ``a = b = c`` are checked link by link. Equations in the context (the question, the premises) give
    values to symbols; an equation with symbols is true if it is an identity or follows from the context. A decimal with
    places may be the rounded value of the other side.

    What stands around an equation must not change what it says: where a word may belong to a side ("half of 10 = 5",
    "= 5 times 2", "20% of 50 = 10"), where a sentence denies or supposes, and where notation has two readings ("log",
    "2 1/2", "6/2(3)"), the equation counts as one that cannot be read.

    Args:
        text: The claim.
        context: Texts whose equations hold.

    Returns:
        ``"false"`` if any equation is false, ``"true"`` if there are some and all hold, else ``"unknown"``. A context
        that contradicts itself decides nothing.

    Raises:
        InvalidTypeError: If the claim is no text, or the context no list of texts.
    """
    _check_texts(text, context)
    verdicts: list[str] = []
    try:
        known = [readings[0] for entry in context for readings in _equations(entry, True) if len(readings) == 1]
        solutions = _solve(known)
    except Exception:
        solutions = []
    for readings in _equations(text, False):
        found = set()
        for reading in readings:
            try:
                found.add(_decide(*reading, solutions))
            except Exception:  # sympy raises errors of every kind on odd input: then nothing is known
                found.add("unknown")
        verdicts.append(found.pop() if len(found) == 1 else "unknown")
    if "false" in verdicts:
        return "false"
    return "true" if verdicts and "unknown" not in verdicts else "unknown"


def serve() -> None:
    """Answer one JSON line [text, context] on standard input after another, with 2 GiB of memory at most."""
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


class EquationChecker:
    """Checks claims in a worker process that is killed when a claim takes too long. Use it as a context manager.

    Args:
        time_limit: Seconds for one claim, after which its verdict is ``"unknown"``; infinity for no limit.

    Raises:
        InvalidValueError: If the limit is not positive.
    """

    def __init__(self, time_limit: float | int = 2.0) -> None:
        if not (isinstance(time_limit, Real) and time_limit > 0):
            from octavo_core.errors import InvalidValueError

            raise InvalidValueError(f"time_limit={time_limit!r} is out of range; give seconds above 0")
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

        Raises:
            InvalidTypeError: If the claim is no text, or the context no list of texts.
        """
        _check_texts(text, context)
        with self._lock:
            process = self._start()
            try:
                if process.stdin is None:
                    return "unknown"
                process.stdin.write(json.dumps([text, list(context)]) + "\n")
                process.stdin.flush()
                answer = self._lines.get(timeout=min(self.time_limit, _LONGEST_WAIT))
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
            [sys.executable, "-P", "-c", _WORKER, str(Path(__file__).parent)],
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


def _check_texts(text: Any, context: Any) -> None:
    listed = isinstance(context, Sequence) and not isinstance(context, str)
    if isinstance(text, str) and listed and all(isinstance(entry, str) for entry in context):
        return
    # Only here, as everything of the package that the worker does not need.
    from octavo_core.errors import InvalidTypeError

    if not isinstance(text, str):
        raise InvalidTypeError(f"the claim is a {type(text).__name__}; give a text")
    raise InvalidTypeError(f"the context is {str(context)[:60]!r}; give a list of texts")


def _equations(text: str, is_context: bool) -> list[list[Reading]]:
    """The readings of each link of each equation: none if it cannot be read, several for a plain "log"."""
    found: list[list[Reading]] = []
    for statement in statements(text, is_context=is_context):
        sides = statement.sides
        bases = (None, 10) if any(_has_plain_log(side) for side in sides) else (None,)
        for place, relation in enumerate(statement.relations):
            left, right = sides[place], sides[place + 1]
            places = max(_places(left), _places(right))
            bare = (_places(left) >= 0) != (_places(right) >= 0)
            rounded = bare and (places > 0 or relation == "≈")
            readings = []
            # "1024 = 4 mod 5" may be a congruence.
            if ("infix", "mod") not in right:
                for base in bases:
                    # Not only what the parser refuses: sympy raises errors of every kind on odd input.
                    with contextlib.suppress(Unreadable, ArithmeticError, ValueError, TypeError):
                        pair = parse_side(left, log_base=base), parse_side(right, log_base=base)
                        readings.append((*pair, str(places) if rounded else relation))
            found.append(readings if len(readings) == len(bases) else [])
    return found


def _has_plain_log(side: Sequence[Token]) -> bool:
    return any(
        token == ("function", "log") and tuple(side[place + 1 : place + 2]) != (("sub", "_"),)
        for place, token in enumerate(side)
    )


def _places(side: Sequence[Token]) -> int:
    """Decimal places of a side that is a bare number or percentage, -1 for another."""
    numbers = [value for kind, value in side if kind == "number"]
    rest = [value for kind, value in side if kind != "number" and value not in "+-"]
    if len(numbers) != 1 or rest not in ([], ["%"]):
        return -1
    return len(numbers[0].partition(".")[2]) + 2 * len(rest)


def _decide(left: Any, right: Any, relation: str, solutions: list[dict[Any, Any]]) -> str:
    import sympy

    difference = left - right
    if not left.free_symbols | right.free_symbols:
        return _compare(difference, right, relation)
    results = set()
    for solution in solutions:
        # Each side by itself: 1/x = 1/x does not hold for x = 0.
        value = left.subs(solution) - right.subs(solution)
        if value.free_symbols:
            break
        results.add(_compare(value, right.subs(solution), relation))
    else:
        if len(results) == 1:
            return results.pop()
    if not difference.free_symbols:
        return _compare(difference, right, relation)
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


def _solve(equations: list[Reading]) -> list[dict[Any, Any]]:
    """Values of the symbols; none if the equations contradict each other."""
    import sympy

    # Exact ones first: rounded ones are checked with what follows from them.
    system = sorted((e for e in equations if (e[0] - e[1]).free_symbols), key=lambda equation: equation[2] != "=")
    if not system:
        return []
    # Values that follow by substitution alone are by far the most common; what remains is solved as a system.
    values: dict[Any, Any] = {}
    progress = True
    while progress:
        progress = False
        for equation in list(system):
            left, right, relation = equation
            reduced = (left - right).subs(values)
            symbols = reduced.free_symbols
            if not symbols:
                if _compare(reduced, right.subs(values), relation) != "true":
                    return []
                system.remove(equation)
            elif len(symbols) == 1 and (symbol := next(iter(symbols))) and reduced.diff(symbol).is_number:
                slope = reduced.diff(symbol)
                if slope != 0:
                    values[symbol] = -reduced.subs(symbol, 0) / slope
                    system.remove(equation)
                    progress = True
    if not system:
        return [values]
    remaining = [(left - right).subs(values) for left, right, _ in system]
    symbols = sorted(set().union(*(equation.free_symbols for equation in remaining)), key=str)
    found = sympy.solve(remaining, symbols, dict=True)
    return [values | solution for solution in found]
