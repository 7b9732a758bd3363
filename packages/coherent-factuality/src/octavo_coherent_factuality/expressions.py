"""Reading expressions, plain or in LaTeX: tokens and a recursive parser; nothing is evaluated as code."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["MATH", "Piece", "Token", "Unreadable", "parse_expression", "parse_side", "pieces_of"]

_TOKEN = re.compile(
    r"(?P<radix>0[xXbBoO][0-9A-Fa-f]+(?!\w))"
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+\.\d+|\d+|(?<![\w)])\.\d+)"
    r"|(?P<arrow>=>|->|[⇒→⟹∴•])"
    r"|(?P<space>(?:[\s~&$\u00a0\u2009\u202f€£]|\\[,;!:()$ \[\]])+|\\\\)"
    r"|(?P<percent>\\?%)"
    r"|(?P<command>\\[A-Za-z]+)"
    r"|(?P<name>[A-Za-z](?:_\{\w+\}|_\w|\d+)?(?![A-Za-z]))"
    r"|(?P<word>[A-Za-z]+(?:'[a-z]+)?)"
    r"|(?P<power>\*\*|\^)"
    r"|(?P<relation>==|=|≈|≃)"
    r"|(?P<operator>[-+*/()\[\]{}\u2212\u2013\u00d7·÷⋅√π|])"
    r"|(?P<break>.)",
    re.DOTALL | re.ASCII,
)
_FUNCTIONS = {"sqrt", "sin", "cos", "tan", "ln", "log", "exp", "abs"}
_COMMANDS = {
    "\\cdot": "*", "\\times": "*", "\\div": "/", "\\left": "", "\\right": "", "\\approx": "≈", "\\pi": "π",
    "\\sqrt": "sqrt", "\\sin": "sin", "\\cos": "cos", "\\tan": "tan", "\\ln": "ln", "\\log": "log", "\\exp": "exp",
    "\\frac": "frac", "\\dfrac": "frac", "\\tfrac": "frac", "\\binom": "binom", "\\tbinom": "binom",
    "\\dbinom": "binom", "\\bmod": "mod", "\\quad": "", "\\qquad": "", "\\displaystyle": "", "\\boxed": "",
    "\\implies": "⇒", "\\Rightarrow": "⇒", "\\rightarrow": "⇒", "\\to": "⇒", "\\therefore": "⇒",
}  # fmt: skip
_SIGNS = {"\u2212": "-", "\u2013": "-", "\u00d7": "*", "·": "*", "⋅": "*", "÷": "/", "\\%": "%"}
_KINDS = {"*": "operator", "/": "operator", "π": "operator", "≈": "relation", "⇒": "stop", "mod": "infix"}
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_ABBREVIATIONS = {"sq", "avg", "approx", "ca", "no", "nr", "eq", "vs"}
_MAX_TOKENS, _MAX_DIGITS, _MAX_DEPTH, _MAX_POWER_BITS, _MAX_CHOICE = 400, 60, 40, 20_000, 1000

MATH = frozenset({"number", "name", "function", "infix", "sub", "power", "relation", "operator"})
"""Kinds of pieces that belong to an expression; the others are words, breaks, stops and unknown commands."""

Token = tuple[str, str]
"""Kind and value of a token as the parser takes it."""


class Piece(NamedTuple):
    """A piece of a text: its kind, its value, and where it starts and ends."""

    kind: str
    value: str
    start: int
    end: int


class Unreadable(Exception):
    """The text is not an expression that this parser knows."""


def pieces_of(text: str) -> list[Piece]:
    """Cut a text into pieces: those of :data:`MATH`, words, unknown commands, breaks, and stops that end a sentence.

    Args:
        text: The text; what is beyond 20,000 characters is left out.

    Returns:
        The pieces, without spaces.
    """
    matches = list(_TOKEN.finditer(text[:20_000]))
    found: list[Piece] = []
    for place, match in enumerate(matches):
        kind, value = str(match.lastgroup), match.group()
        if kind == "space":
            lines = value.count("\n") + (value == "\\\\")
            if lines:
                kind, value = ("stop" if lines > 1 else "line"), "\n"
            else:
                continue
        elif kind == "arrow":
            kind = "stop"
        elif kind == "command":
            known = _COMMANDS.get(value)
            if known == "":
                continue
            if known is not None:
                kind, value = _KINDS.get(known, "function"), known
        elif kind == "percent":
            kind = "operator"
        elif kind == "name" and value in ("x", "X") and _between_numbers(matches, place):
            kind, value = "operator", "*"
        elif kind == "word":
            kind = "function" if value in _FUNCTIONS | {"frac"} else "infix" if value in ("mod", "choose") else "word"
        elif kind == "radix":
            # "0x10" is 16, not 0 times x10.
            kind = "break"
        elif kind == "break":
            kind = _kind_of_break(text, match, found)
        elif kind == "relation":
            value = "≈" if value in "≈≃" else "="
        found.append(Piece(kind, _SIGNS.get(value, value), match.start(), match.end()))
    return _without_lines(found)


def _kind_of_break(text: str, match: re.Match[str], found: Sequence[Piece]) -> str:
    value, following = match.group(), text[match.end() : match.end() + 1]
    if value == "_":
        return "sub" if found and found[-1].value == "log" and found[-1].end == match.start() else "break"
    if value == ";":
        return "stop"
    if value in "!?":
        # "7!" may be a factorial.
        return "stop" if not (value == "!" and found and found[-1].kind in MATH and following != "=") else "break"
    if value == "." and (not following or following.isspace() or following in "\"')$*"):
        dotted = text[match.start() - 1 : match.start()] == "."
        short = bool(found) and found[-1].kind == "word" and found[-1].value.lower() in _ABBREVIATIONS
        return "break" if dotted or short else "stop"
    return "break"


def _between_numbers(matches: Sequence[re.Match[str]], place: int) -> bool:
    before = next((t for t in reversed(matches[:place]) if t.lastgroup != "space"), None)
    after = next((t for t in matches[place + 1 :] if t.lastgroup != "space"), None)
    spaced = place > 0 and matches[place - 1].lastgroup == "space"
    return before is not None and after is not None and before.lastgroup == after.lastgroup == "number" and spaced


def _without_lines(pieces: Sequence[Piece]) -> list[Piece]:
    """Decide for each end of a line whether it ends a sentence, means nothing, or leaves that open (a break)."""
    found: list[Piece] = []
    for place, piece in enumerate(pieces):
        if piece.kind != "line":
            found.append(piece)
            continue
        before = found[-1] if found else None
        after = pieces[place + 1] if place + 1 < len(pieces) else None
        if before is None or after is None or before.kind not in MATH:
            continue
        if (
            before.kind == "relation"
            or before.value in "+-*/^(**"
            or after.kind == "relation"
            or after.value in ")]}%/"
        ):
            continue
        # A sign at the start of a line is a bullet or goes on with a sum.
        found.append(piece._replace(kind="break" if after.value in "+-*" else "stop"))
    return found


def parse_expression(text: str) -> Any:
    """Parse an arithmetic or algebraic expression, plain or in LaTeX, into a sympy expression.

    Numbers (decimals become exact fractions), names of one letter with an optional index, ``+ - * / ^``, parentheses,
    percent signs, implicit products, ``frac``, roots, binomials, ``17 mod 5``, ``5 choose 2``, logarithms (``log``
    without a base is the natural one) and the elementary functions are known.

    Args:
        text: The expression.

    Returns:
        A sympy expression.

    Raises:
        ValueError: If it cannot be read.
    """
    pieces = pieces_of(text)
    if any(piece.kind not in MATH or piece.kind == "relation" for piece in pieces):
        raise ValueError(f"{text[:80]!r} is not one expression")
    try:
        return parse_side([(piece.kind, piece.value) for piece in pieces])
    except Unreadable as error:
        raise ValueError(f"{text[:80]!r} cannot be read: {error}") from error


def parse_side(tokens: Sequence[Token], *, log_base: int | None = None) -> Any:
    """Parse one side of an equation into a sympy expression.

    Args:
        tokens: Its tokens.
        log_base: Base of a ``log`` that names none; the natural one if left out.

    Returns:
        A sympy expression.

    Raises:
        Unreadable: If it cannot be read, or could be read in two ways.
    """
    return _Parser(tokens, log_base).parse()


class _Parser:
    """Recursive descent over tokens; sympy objects are made by arithmetic on numbers and symbols, never from text."""

    def __init__(self, tokens: Sequence[Token], log_base: int | None) -> None:
        if not tokens or len(tokens) > _MAX_TOKENS:
            raise Unreadable(f"{len(tokens)} tokens")
        self.tokens = list(tokens)
        self.log_base = log_base
        self.place = 0
        self.depth = 0

    def parse(self) -> Any:
        if any(kind == "infix" for kind, _ in self.tokens):
            return self.infix()
        _refuse_mixed_percents(self.tokens)
        value = self.sum()
        if self.place < len(self.tokens):
            raise Unreadable(f"unexpected {self.tokens[self.place][1]!r}")
        return value

    def peek(self) -> Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else ("end", "")

    def take(self, value: str | None = None) -> Token:
        token = self.peek()
        if token[0] == "end" or (value is not None and token[1] != value):
            raise Unreadable(f"{value or 'more'} expected")
        self.place += 1
        return token

    def infix(self) -> Any:
        """``17 mod 5`` or ``5 choose 2``: between two numbers only, since nobody agrees on what binds tighter."""
        if [kind for kind, _ in self.tokens] != ["number", "infix", "number"]:
            raise Unreadable(f"{self.tokens[0][1]!r} around a word")
        left, word, right = self.atom(), self.take()[1], self.atom()
        if word == "choose":
            return _binomial(left, right)
        if not (left.is_Integer and right.is_Integer and right > 0):
            raise Unreadable("mod of other than whole numbers")
        return left % right

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise Unreadable("nested too deeply")

    def sum(self) -> Any:
        self.deeper()
        value = self.product()
        while self.peek()[1] in ("+", "-"):
            value = value + self.product() if self.take()[1] == "+" else value - self.product()
        self.depth -= 1
        return value

    def product(self) -> Any:
        value = self.signed()
        divided = False
        while True:
            kind, text = self.peek()
            if text == "*":
                self.take()
                value, divided = _multiply(value, self.signed()), False
            elif text == "/":
                self.take()
                value, divided = _divide(value, self.signed()), True
            elif kind in ("name", "function") or text in ("(", "{", "[", "√", "π"):
                before = self.tokens[self.place - 1]
                if divided or before[1] == "%":
                    raise Unreadable("an implicit product after a division or a percent sign, which has two readings")
                factor = self.power()
                if text == "frac" and before[0] == "number" and factor.is_number:
                    raise Unreadable("a mixed number or a product")
                value = _multiply(value, factor)
            else:
                return value

    def signed(self) -> Any:
        if self.peek()[1] in ("+", "-"):
            sign = self.take()[1]
            self.deeper()
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
                raise Unreadable("too many digits")
            return sympy.Rational(digits)
        if kind == "name":
            if self.peek()[1] == "(" and self.is_call(text):
                raise Unreadable(f"{text}(...), a function or a product")
            return sympy.Symbol(re.sub(r"[{}]", "", text))
        if text == "π":
            return sympy.pi
        if text == "√":
            return sympy.sqrt(self.atom())
        if kind == "function":
            return self.function(text)
        if text in _CLOSING:
            value = self.sum()
            self.take(_CLOSING[text])
            return value
        if text == "|":
            value = self.sum()
            self.take("|")
            return sympy.Abs(value)
        raise Unreadable(f"unexpected {text!r}")

    def is_call(self, name: str) -> bool:
        """Whether a name before a parenthesis may be a function: "f(...)", and any "a(n)" or "x(3)"."""
        lone = self.place + 2 < len(self.tokens) and self.tokens[self.place + 2][1] == ")"
        return lone or name[0] in "fgh" or name[0].isupper()

    def function(self, name: str) -> Any:
        import sympy

        if name == "frac":
            return _divide(self.atom(), self.atom())
        if name == "binom":
            return _binomial(self.atom(), self.atom())
        if name == "sqrt" and self.peek()[1] == "[":
            return _root(self.atom(), self.atom())
        base = self.log_base
        if name == "log" and self.peek()[0] == "sub":
            self.take()
            base = self.atom()
            if not (base.is_Rational and base > 0 and base != 1):
                raise Unreadable("a logarithm to another base than a number")
        argument = self.atom()
        if name in ("ln", "log") and argument == 0:
            raise Unreadable("the logarithm of 0")
        if name == "log" and base is not None:
            return sympy.log(argument, base)
        if name in ("sin", "cos", "tan") and argument.is_Rational and argument != 0:
            raise Unreadable("an angle in degrees or radians")
        if name == "exp":
            return _power(sympy.E, argument)
        functions = {
            "sqrt": sympy.sqrt, "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "ln": sympy.log,
            "log": sympy.log, "abs": sympy.Abs,
        }  # fmt: skip
        return functions[name](argument)


def _refuse_mixed_percents(tokens: Sequence[Token]) -> None:
    """Refuse "100 + 20%", which some take for 120: every term of a sum has a percent sign, or none."""
    terms: list[bool] = [False]
    for _, value in tokens:
        if value in ("+", "-"):
            terms.append(False)
        elif value == "%":
            terms[-1] = True
    if any(terms) and not all(terms[1:] if tokens[0][1] in ("+", "-") else terms):
        raise Unreadable("a sum of numbers and percentages, which has two readings")


def _divide(numerator: Any, denominator: Any) -> Any:
    if denominator == 0:
        raise Unreadable("division by zero")
    return _uncancelled(numerator / denominator, _below(numerator) * denominator)


def _multiply(left: Any, right: Any) -> Any:
    return _uncancelled(left * right, _below(left) * _below(right))


def _below(value: Any) -> Any:
    import sympy

    return sympy.fraction(value)[1]


def _uncancelled(value: Any, below: Any) -> Any:
    """Refuse what sympy has cancelled: it makes 1 of x/x, which is not defined for x = 0."""
    if below.free_symbols and not (below / _below(value)).is_number:
        raise Unreadable("a symbol that cancels, and may be 0")
    return value


def _binomial(total: Any, chosen: Any) -> Any:
    import sympy

    if not (total.is_Integer and chosen.is_Integer and 0 <= chosen <= total <= _MAX_CHOICE):
        raise Unreadable("a binomial of other than small whole numbers")
    return sympy.Integer(math.comb(int(total), int(chosen)))


def _root(index: Any, radicand: Any) -> Any:
    import sympy

    if not (index.is_Integer and 2 <= index <= 100):
        raise Unreadable("a root of unknown degree")
    if radicand.is_number and radicand.is_negative:
        if index % 2 == 0:
            raise Unreadable("an even root of a negative number")
        return -sympy.root(-radicand, index)
    return sympy.root(radicand, index)


def _power(base: Any, exponent: Any) -> Any:
    """A power whose size is bounded before it is worked out."""
    if exponent == 0 and base.free_symbols:
        raise Unreadable("the power 0 of what may be 0")
    if base.is_number and exponent.is_number:
        if base == 0 and not exponent.is_positive:
            raise Unreadable("a power of zero that is not defined")
        if base.is_negative and not exponent.is_integer:
            raise Unreadable("a broken power of a negative number, which has two readings")
    if exponent.is_Rational and base.is_Rational:
        bits = max(int(base.p).bit_length(), int(base.q).bit_length())
        if bits * abs(float(exponent)) > _MAX_POWER_BITS:
            raise Unreadable("a power too large")
    elif exponent.is_number and abs(complex(exponent)) > 1000:
        raise Unreadable("a power too large")
    return base**exponent
