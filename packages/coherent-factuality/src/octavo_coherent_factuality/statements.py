"""Finding the equations in a text, and telling where the words around one may change what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_coherent_factuality.expressions import MATH, Piece, Token, pieces_of

__all__ = ["Statement", "statements"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What may stand right before an equation without touching it.
_CONNECTIVES = _words(
    "so thus then hence therefore consequently accordingly is are was were equals gives give giving given gave "
    "get gets getting got have has had having we that this it which be becomes become obtain obtains obtained "
    "find finds found compute computes computed computing calculate calculates calculated calculating evaluate "
    "yields yield yielding mean means meaning imply implies implying know knows since because as where now first "
    "firstly second secondly third thirdly next finally lastly also note notice check verify see let solve "
    "equation equations expression formula calculation computation answer result write total altogether overall "
    "conclude show shows recall observe substituting rearranging simplifying again indeed here there"
)
# Verbs of word problems: before something that is worked out, not before a number that stands alone.
_VERBS = _words(
    "cost costs costing pay pays paid paying spend spends spent spending earn earns earned earning make makes made "
    "making buy buys bought buying sell sells sold selling eat eats ate use uses used using need needs needed travel "
    "travels traveled travelled drive drives drove run runs ran leave leaves leaving left remain remains remaining "
    "receive receives received contain contains contained hold holds held take takes took weigh weighs weighed walk "
    "walks walked read reads collect collects collected save saves saved produce produces produced owe owes owed"
)
# Words whose quantity is an operation on what follows, or on what went before.
_OPERATIONS = _words(
    "sum product difference quotient average mean median mode maximum minimum max min lcm gcd hcf gcf multiple divisor "
    "factor remainder square squares squared cube cubes cubed root roots half halves twice thrice double doubles "
    "doubled triple triples tripled quadruple third quarter percent percentage ratio factorial power powers plus minus "
    "times divided multiplied multiply mod modulo choose log logarithm than reciprocal inverse absolute floor ceiling "
    "rounded probability"
)
# Words after a number that make another number of it.
_CHANGES = _OPERATIONS | _words(
    "over pct dozen dozens hundred hundreds thousand thousands million millions billion billions trillion bn "
    "mn doz k score gross to or of more less fewer st nd rd th point thirds quarters fourth fourths fifth fifths sixth "
    "sixths seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths "
    "raised if unless not degrees degree radians"
)
# The same, anywhere among the words that follow.
_LATER_CHANGES = _words(
    "remainder remainders half halves third thirds quarter quarters rounded rounding approximately approx about "
    "roughly nearly almost base binary octal hexadecimal hex modulo mod percent false wrong incorrect dozen "
    "more less fewer than too clock"
)
# A sentence with one of these says something else than its equations.
_DENIALS = _words(
    "not never false incorrect incorrectly wrong wrongly mistake mistaken mistakenly error cannot can't isn't aren't "
    "doesn't don't didn't wasn't won't unless base binary octal hexadecimal modulo congruent whether untrue lie lies "
    "nonsense nonsensical absurd doubt doubts doubtful fail fails failed impossible impossibly contradiction "
    "contradicts contradictory deny denies denied refute refutes refuted disprove disproves disproved invalid neither"
)
_SUPPOSITIONS = _words("suppose supposing assume assuming assumed assumes pretend imagine")
# In a question or premise a supposition is what holds.
_GIVEN = _words("if suppose supposing assume assuming when for at with such solve and evaluate while")
_ASKING = _words("is are does do did can could will would should")
_VERDICTS = _words("is are equals gives give get gets have")
_POINTERS = _words("this that it which")
_LABELS = _words("step part case line claim equation example problem question exercise item stage calculation eq")
_TO = _words("equal equals simplifies simplify evaluates comes amounts reduces leads equivalent up adds")
_TEXTS = ("\\text", "\\mathrm", "\\textrm", "\\textbf", "\\mbox", "\\mathbf", "\\operatorname")


@dataclass(frozen=True)
class Statement:
    """A chain of equal sides as a text states it.

    Args:
        sides: Tokens of each side; one with the token ``("cut", ...)`` cannot be read, and no parser reads it.
        relations: ``"="`` or ``"≈"`` between them.
    """

    sides: tuple[tuple[Token, ...], ...]
    relations: tuple[str, ...]


def statements(text: str, *, is_context: bool = False) -> list[Statement]:
    """Find the equations of a text.

    A side that touches a word, a comma or a colon is cut unless these only introduce it: connectives, the start, the
    end of a sentence. The same holds for words after the last side, of which plain units are put up with.

    Args:
        text: The text.
        is_context: Whether the text is a question or a premise, so that what it supposes holds.

    Returns:
        The statements, in their order.
    """
    pieces = pieces_of(text)
    found = []
    last: tuple[int, bool] | None = None
    for start, stop in _runs(pieces):
        sides, relations = _sides(pieces[start:stop])
        if relations:
            opening = _opening(pieces, start, last, is_context)
            if opening == "cut" or (opening == "weak" and _is_lone_number(sides[0])) or _sign_is_open(pieces, start):
                sides[0].insert(0, ("cut", "?"))
            if _converts(sides, pieces, stop) or _closing_changes(pieces, start, stop, is_context):
                sides[-1].append(("cut", "?"))
            if _sentence_words(pieces, start) & (_DENIALS if is_context else _DENIALS | _SUPPOSITIONS):
                sides = [[("cut", "?"), *side] for side in sides]
            found.append(Statement(tuple(map(tuple, sides)), tuple(relations)))
        last = (stop, bool(relations))
    return found


def _runs(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """Ranges of pieces that are mathematics without a break."""
    runs = []
    start = None
    for place, piece in enumerate([*pieces, Piece("stop", "", 0, 0)]):
        if piece.kind in MATH:
            start = place if start is None else start
        elif start is not None:
            runs.append((start, place))
            start = None
    return runs


def _sides(pieces: Sequence[Piece]) -> tuple[list[list[Token]], list[str]]:
    sides: list[list[Token]] = [[]]
    relations = []
    for piece in pieces:
        if piece.kind == "relation":
            relations.append(piece.value)
            sides.append([])
        else:
            sides[-1].append((piece.kind, piece.value))
    return sides, relations


def _is_lone_number(side: Sequence[Token]) -> bool:
    rest = [value for kind, value in side if kind != "number"]
    return len(side) - len(rest) == 1 and all(value in ("-", "+", "%", "(", ")", "{", "}") for value in rest)


def _converts(sides: Sequence[Sequence[Token]], pieces: Sequence[Piece], stop: int) -> bool:
    """Whether an equation may go from one unit to another, as "24 = 1 day" does."""
    if stop == len(pieces) or pieces[stop].kind != "word" or pieces[stop].value.lower() in _CONNECTIVES | {"and"}:
        return False
    return len(sides) == 2 and all(map(_is_lone_number, sides))


def _sign_is_open(pieces: Sequence[Piece], start: int) -> bool:
    """Whether a run begins with a sign that may be a bullet, or go on with something else."""
    first = pieces[start]
    if first.value in ("+", "*", "/", "%") or first.kind == "power":
        return True
    return first.value == "-" and (start + 1 == len(pieces) or pieces[start + 1].start > first.end)


def _opening(pieces: Sequence[Piece], start: int, last: tuple[int, bool] | None, is_context: bool) -> str:
    """Whether what stands before a run leaves it alone ("open"), perhaps ("weak"), or not ("cut")."""
    if start == 0:
        return "open"
    before = pieces[start - 1]
    if before.kind == "stop":
        return "weak" if before.value == ";" else "open"
    clause = _clause(pieces, start)
    # An equation earlier in the sentence, with nothing but words since.
    after_equation = last is not None and last[1] and start - last[0] <= len(clause)
    if before.kind == "word":
        return _after_word(before.value.lower(), clause, after_equation, is_context)
    if before.kind != "break":
        return "cut"
    if before.value in "\"'`*" and start == 1:
        return "open"
    earlier = pieces[start - 2] if start > 1 else None
    if before.value not in ",:" or earlier is None:
        return "cut"
    if before.value == "," and pieces[start].kind == "number" and pieces[start].start == before.end:
        return "cut"
    if earlier.kind == "word":
        word = earlier.value.lower()
        if word in _CONNECTIVES or word in _LABELS:
            if not _has_operation(clause[:-2]):
                return "open"
            return "weak" if word in _VERDICTS else "cut"
        clean = not (_has_operation(clause) or any(piece.kind == "number" for piece in clause))
        return "weak" if clean or (after_equation and earlier.value.lower() not in _CHANGES) else "cut"
    if earlier.kind not in MATH:
        return "cut"
    if before.value == ":":
        label = pieces[start - 3] if start > 2 else None
        numbered = earlier.kind in ("number", "name") and label is not None and label.value.lower() in _LABELS
        return "open" if numbered else "cut"
    return "weak" if after_equation else "cut"


def _after_word(word: str, clause: Sequence[Piece], after_equation: bool, is_context: bool) -> str:
    earlier = clause[-2].value.lower() if len(clause) > 1 else ""
    if word in _CONNECTIVES or (word == "to" and earlier in _TO):
        # "We double this 7".
        return "cut" if word in _POINTERS and _has_operation(clause[:-1]) else "open"
    if word == "and":
        return "weak" if after_equation or (is_context and earlier in _GIVEN) else "cut"
    if is_context and word in _GIVEN and (earlier, word) != ("what", "if"):
        return "weak"
    if word in _VERBS or (word == "of" and earlier == "total"):
        return "cut" if _has_operation(clause) else "weak"
    return "cut"


def _has_operation(clause: Sequence[Piece]) -> bool:
    return any(piece.value.lower() in _OPERATIONS for piece in clause)


def _clause(pieces: Sequence[Piece], start: int) -> list[Piece]:
    """What stands between the end of the sentence before, or the equation before, and a run."""
    place = start
    while place > 0 and pieces[place - 1].kind not in ("stop", "relation"):
        place -= 1
    if place > 0 and pieces[place - 1].kind == "relation":
        # Past the last side of that equation.
        while place < start and pieces[place].kind in MATH:
            place += 1
    return list(pieces[place:start])


def _sentence_words(pieces: Sequence[Piece], start: int) -> set[str]:
    first, last = start, start
    while first > 0 and (pieces[first - 1].kind != "stop" or pieces[first - 1].value == ";"):
        first -= 1
    while last < len(pieces) and pieces[last].kind != "stop":
        last += 1
    return {piece.value.lower() for piece in pieces[first:last] if piece.kind == "word"}


def _closing_changes(pieces: Sequence[Piece], start: int, stop: int, is_context: bool) -> bool:
    """Whether what follows a run makes another quantity of its last side."""
    if stop == len(pieces):
        return False
    following, end = pieces[stop], pieces[stop - 1].end
    if following.kind == "stop":
        # "What is x if 2x = 4?" supposes what "Is 2x = 4?" asks.
        asked = start > 0 and pieces[start - 1].value.lower() in _ASKING
        return following.value == "?" and (asked or not is_context)
    beyond = pieces[stop + 1] if stop + 1 < len(pieces) else None
    if following.kind == "break":
        if following.value not in ",:.\"'*":
            return True
        if following.value == "'" or (following.value == '"' and following.start == end):
            return following.start == end and start > 0
        if beyond is None or beyond.kind not in MATH:
            return following.value == "." and beyond is not None
        # "3/2 = 1,5" and "x = 1, 2" go on; ", 4 + 5 = 9" is another equation.
        rest = stop + 1
        while rest < len(pieces) and pieces[rest].kind in MATH:
            rest += 1
        other = any(piece.kind == "relation" for piece in pieces[stop + 1 : rest])
        return not other or beyond.start == following.end or following.value == ":"
    if following.kind == "command" and following.value not in _TEXTS:
        return True
    words = []
    for piece in pieces[stop:]:
        if piece.kind == "word" or piece.value in ("a", "A"):
            words.append(piece.value.lower())
        elif not (piece.kind == "command" or piece.value in "{}"):
            if words == ["and"] and piece.kind in MATH:
                return not _is_equation_from(pieces, stop + 1)
            break
    head = words[:1]
    return bool(_CHANGES & set(head) or _LATER_CHANGES & set(words[:6]))


def _is_equation_from(pieces: Sequence[Piece], start: int) -> bool:
    for piece in pieces[start:]:
        if piece.kind not in MATH:
            return False
        if piece.kind == "relation":
            return True
    return False
