"""The weights of the paper's Transformer: five blocks that decode one record of a Post-Turing machine after another.

Feature names are those of the reference implementation, so that activations can be compared name by name. Numbers in
comments are the look-ups of the paper's construction. Every weight is in {-2, -1, -1/2, 0, 1/2, 1, 2, 3}; none depends
on a program, an input or a length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from octavo_prompt_turing.blocks import BlockSpec, BlockWeights, HeadSpec, Layout, Row, build_block
from octavo_prompt_turing.program import CONDITIONS
from octavo_prompt_turing.tokens import PLAIN, TOKENS

__all__ = ["ALIASES", "Construction", "build_construction", "column"]

ALIASES = {
    "neg_one": ("one", -1.0),
    "pos_enc_0_neg": ("pos_enc_0", -1.0),
    "prog_rec_norm_neg": ("prog_rec_norm", -1.0),
    "prog_rec_one_norm_neg": ("prog_rec_one_norm", -1.0),
}
"""Names of the reference implementation that are a column of the residual stream times a factor."""

_FETCHED = {
    "AL": "token_is_Al", "AR": "token_is_Ar", "A0": "token_is_A0", "A1": "token_is_A1",
    "BL": "token_is_Bl", "BR": "token_is_Br", "B0": "token_is_B0", "B1": "token_is_B1",
    "A!": "_prog_is_Aif0", "A?": "_prog_is_Aif1", "B!": "_prog_is_Bif0", "B?": "_prog_is_Bif1",
    "-": "token_is_goto_prev", "+": "token_is_goto_next", "@": "token_is_goto_do", "#": "token_is_halt",
}  # fmt: skip
_RECORDED = (*PLAIN, "/", "=")


def column(token: str) -> str:
    """Name of the one-hot feature of a token.

    Args:
        token: One of the 23 tokens.

    Returns:
        The feature name.
    """
    return f"[{token}]"


@dataclass(frozen=True)
class Construction:
    """All weights and the names of the residual stream's columns.

    Args:
        layout: Feature names.
        embedding: (23, D).
        positional: (4, D), where the four positional features are written.
        blocks: The five blocks.
        unembedding: (23, D).
    """

    layout: Layout
    embedding: np.ndarray
    positional: np.ndarray
    blocks: tuple[BlockWeights, ...]
    unembedding: np.ndarray


@lru_cache(maxsize=1)
def build_construction() -> Construction:
    """Build the weights. They are the same on every call and every machine.

    Returns:
        The construction.

    Source:
        Paper, proof of the Turing completeness of prompting; look-ups 1 to 15.
    """
    specs = (_block1(), _block2(), _block3(), _block4(), _block5())
    layout = _layout(specs)
    embedding = np.stack([layout.row(_embedding_row(token)) for token in TOKENS])
    positional = np.stack([layout.row({f"pos_enc_{j}": 1}) for j in range(4)])
    logits: dict[str, Row] = {token: {_FETCHED[token]: 1} for token in (*PLAIN, "-", "+", "@")}
    logits |= {":": {"token_is_halt": 1}, "/": {"token_is_goto_unsat": 1}, "=": {"token_is_goto_sat": 1}}
    logits |= {"0": {"next_read_0": 1}, "1": {"next_read_1": 1}, "$": {"next_end": 1}}
    unembedding = np.stack([layout.row(logits.get(token, {})) for token in TOKENS])
    return Construction(layout, embedding, positional, tuple(build_block(s, layout) for s in specs), unembedding)


def _embedding_row(token: str) -> Row:
    row: dict[str, float | int] = {column(token): 1, "one": 1}
    if token in {":", "0", "1"}:
        row["is_read_key"] = 1
    # 2: with j output bits printed the means are (2j, 2j + 1, 1)/(j + 1), the cells of the next flag and bit.
    if token in {"0", "1"}:
        row |= {"read_cur0_shift": 2, "read_cur1_shift": 2}
    if token == ":":
        row["read_cur1_shift"] = 1
    return row


def _sum(tokens: tuple[str, ...], sign: int = 1) -> dict[str, float | int]:
    return {column(token): sign for token in tokens}


_ONE: Row = {"one": 1}
_UNIFORM = [(_ONE, _ONE)]


def _block1() -> BlockSpec:
    after: Row = {"after_delim": 1}
    units: list[tuple[Row, float | int, Row]] = []
    for tape in "AB":  # 3: what a token does to the tapes, once the program has been read
        write0, write1 = column(f"{tape}0"), column(f"{tape}1")
        units += [
            ({write0: 1, write1: 1, **after}, -1, {f"is_{tape}_write": 1}),
            ({write1: 1, **after}, -1, {f"{tape}_write": 1}),
            ({column(f"{tape}R"): 1, **after}, -1, {f"{tape}_move": 1}),
            ({column(f"{tape}L"): 1, **after}, -1, {f"{tape}_move": -1}),
        ]
    units += [
        ({**_sum((*PLAIN, *CONDITIONS, "#")), "after_delim": -1}, 0, {"is_inst": 1}),
        (_sum(CONDITIONS), 0, {"is_goto_cond": 1}),
        ({column("^"): 1}, 0, {"rec_is_start": 1}),
        ({**_sum(_RECORDED), **after}, -1, {"rec_is_start": 1}),
        ({**_sum((*PLAIN, "$", "@")), "after_delim": 1}, -1, {"rec_is_end": 1}),
        ({**_sum(("=", "-", "+")), **after}, -1, {"rec_is_goto": 1}),
        ({**_sum((*PLAIN, "+", "/")), **after}, -1, {"prog_cur_move": 1}),
        ({column("-"): 1, **after}, -1, {"prog_cur_move": -1}),
        ({column("+"): 1, **after}, -1, {"prog_move": 1}),
        ({column("-"): 1, **after}, -1, {"prog_move": -1}),
    ]
    # relu passes numbers >= 0 on: the cursors go where block 3 subtracts the cell it retrieves.
    units += [({f"read_cur{j}_norm": 1}, 0, {f"read_gap{j}": 1}) for j in range(2)]
    return BlockSpec(
        heads=[
            HeadSpec(
                "prefix",  # 1
                integers=_UNIFORM,
                values=[({column("^"): 1}, {"one_disc": 1}), ({column("$"): 1}, {"_after_delim": 1})],
            ),
            HeadSpec(
                "output cursor",  # 2
                integers=[(_ONE, {"is_read_key": 1})],
                values=[
                    ({"read_cur0_shift": 1}, {"read_cur0_disc": 1}),
                    ({"read_cur1_shift": 1}, {"read_cur1_disc": 1}),
                    ({column(":"): 1}, {"read_one_disc": 1}),
                ],
            ),
        ],
        norms=[
            (("_after_delim",), ("after_delim",)),
            (("read_cur0_disc", "read_one_disc"), ("read_cur0_norm", "read_cur0_one_norm")),
            (("read_cur1_disc", "read_one_disc"), ("read_cur1_norm", "read_cur1_one_norm")),
        ],
        units=units,
    )


def _block2() -> BlockSpec:
    units: list[tuple[Row, float | int, Row]] = []
    for tape in "AB":
        units += [
            ({f"{tape}_cur_norm": 1}, 0, {f"{tape}_gap": 1}),
            ({f"{tape}_cur_norm": -1}, 0, {f"{tape}_gap": -1}),
        ]
    return BlockSpec(
        heads=[
            HeadSpec(
                "counters",  # 4 and 5
                integers=_UNIFORM,
                values=[
                    ({"A_move": 1}, {"A_cur_disc": 1}),
                    ({"B_move": 1}, {"B_cur_disc": 1}),
                    ({"is_inst": 1}, {"_prog_idx_disc": 1}),
                    ({"is_inst": 1, column("^"): -1}, {"prog_idx_disc": 1}),
                    ({"prog_move": 1}, {"prog_move_disc": 1}),
                ],
            ),
            HeadSpec(
                "record number",  # 6
                integers=[(_ONE, {"rec_is_start": 1})],
                values=[({column("^"): 1}, {"prog_rec_one_disc": 1})],
            ),
        ],
        norms=[
            (("A_cur_disc", "one_disc"), ("A_cur_norm", "A_cur_one_norm")),
            (("B_cur_disc", "one_disc"), ("B_cur_norm", "B_cur_one_norm")),
            (("prog_idx_disc", "one_disc"), ("prog_idx_norm", "prog_idx_one_norm")),
            (("prog_move_disc", "one_disc"), ("prog_move_norm", "prog_move_one_norm")),
            (("one", "prog_rec_one_disc"), ("prog_rec_norm", "prog_rec_one_norm")),
        ],
        units=units,
    )


def _tape_head(name: str, tape: str, query: tuple[str, str], result: str, gap: str) -> HeadSpec:
    """The latest write to the cell at a position: score write + cosine - pe1(i)/k (7, 8)."""
    cell = ({f"{tape}_cur_norm": 1}, {f"{tape}_cur_one_norm": 1})
    return HeadSpec(
        name,
        integers=[(_ONE, {f"is_{tape}_write": 1})],
        reals=[({"pos_enc_1": 1}, {"pos_enc_0": -1})],
        pairs=[(({query[0]: 1}, {query[1]: 1}), cell)],
        values=[
            ({f"{tape}_write": 1}, {result: 1}),
            ({f"{tape}_cur_norm": 1}, {f"{result}_cur_norm": 1, gap: -1}),
            ({f"is_{tape}_write": 1}, {f"{result}_is_write": 1}),
        ],
    )


def _block3() -> BlockSpec:
    heads = [
        _tape_head("tape A", "A", ("A_cur_norm", "A_cur_one_norm"), "A_retr", "A_gap"),
        _tape_head("tape B", "B", ("B_cur_norm", "B_cur_one_norm"), "B_retr", "B_gap"),
        _tape_head("output flag", "A", ("read_cur0_norm", "read_cur0_one_norm"), "read_retr0", "read_gap0"),
        _tape_head("output bit", "A", ("read_cur1_norm", "read_cur1_one_norm"), "read_retr1", "read_gap1"),
        HeadSpec(
            "index in jump",  # 9: largest pi; the second coordinate lets float64 see differences below 1e-16
            pairs=[((_ONE, {}), ({"prog_idx_norm": 1}, {"prog_idx_one_norm": 1}))],
            values=[
                ({"is_goto_cond": 1}, {"goto_one_disc": 1}),
                ({"one": 1, "is_goto_cond": -1}, {"goto_rest_disc": 1}),
            ],
        ),
        HeadSpec(
            "progress in record",  # 10
            reals=[({"one": -1}, {"prog_rec_one_disc": 1})],
            values=[({column("="): 1}, {"prog_tmp_one_disc": 1})],
        ),
        HeadSpec(
            "gap of records",  # 11
            pairs=[
                (
                    ({"prog_rec_norm": 1}, {"prog_rec_one_norm": 1}),
                    ({"pos_enc_2": 1}, {"pos_enc_3": 1}),
                )
            ],
            values=[({"pos_enc_1": 1}, {"prog_rec_diff": 1})],
        ),
    ]
    results = (("A", "A_gap"), ("B", "B_gap"), ("read_retr0", "read_gap0"), ("read_retr1", "read_gap1"))
    units: list[tuple[Row, float | int, Row]] = []
    for name, _ in results:  # |sign| is 1 where the retrieved write was to another cell
        units += [({f"_{name}_not_found": sign}, 0, {f"{name}_not_found": 1}) for sign in (1, -1)]
    units += [
        ({"_goto_idx_norm": 1}, 0, {"goto_idx_norm": 1}),
        ({"_goto_one_norm": 1}, 0, {"goto_one_norm": 1}),
        ({"is_goto_cond": 1}, 0, {"goto_idx_norm": 1, "goto_one_norm": -1}),
        ({"_prog_tmp_norm": 1, "rec_is_end": -1}, 0, {"prog_tmp_norm": 1}),
        ({"_prog_tmp_one_norm": 1, "rec_is_end": -1}, 0, {"prog_tmp_one_norm": 1}),
        ({"rec_is_end": 1}, 0, {"prog_tmp_norm": 1}),
        ({"prog_rec_diff": 0.5, "rec_is_goto": 1}, -1, {"prog_rec_excess": 1, "prog_rec_bias": -1}),
    ]
    return BlockSpec(
        heads=heads,
        norms=[((gap,), (f"_{name}_not_found",)) for name, gap in results]
        + [
            (("goto_rest_disc", "goto_one_disc"), ("_goto_idx_norm", "_goto_one_norm")),
            (("one", "prog_tmp_one_disc"), ("_prog_tmp_norm", "_prog_tmp_one_norm")),
        ],
        units=units,
        output_bias={"prog_rec_bias": 3},
    )


def _block4() -> BlockSpec:
    record = ({"prog_rec_norm": 1}, {"prog_rec_one_norm": 1})
    values = (("A_retr", "A", "A_val"), ("B_retr", "B", "B_val"))
    values += tuple((f"read_retr{j}", f"read_retr{j}", f"read_retr{j}_val") for j in range(2))
    return BlockSpec(
        heads=[
            HeadSpec(
                "program counter",  # 12: bias 3 - excess, in two rows so that float64 keeps the digits of the excess
                integers=[({"one": 3}, _ONE)],
                reals=[({"prog_rec_excess": -1}, _ONE)],
                pairs=[(({"prog_rec_norm": -1}, {"prog_rec_one_norm": -1}), record)],
                values=[
                    ({"prog_cur_move": 1}, {"prog_cur_disc": 1}),
                    ({column("^"): 1}, {"prog_cur_one_disc": 1}),
                ],
            )
        ],
        norms=[(("prog_cur_disc", "prog_cur_one_disc"), ("prog_cur_norm", "prog_cur_one_norm"))],
        # The second relu after the tape reads: a bit counts if it was written (is_write) and to this very cell.
        units=[
            ({bit: 1, f"{name}_not_found": -1, f"{bit}_is_write": 1}, -1, {target: 1}) for bit, name, target in values
        ],
    )


def _block5() -> BlockSpec:
    units: list[tuple[Row, float | int, Row]] = []
    for condition in CONDITIONS:  # 14
        tape, when = condition
        fetched, taken = _FETCHED[condition], _FETCHED[condition].replace("_prog", "token")
        inputs, bias = ({fetched: 1, f"{tape}_val": -1}, 0) if when == "!" else ({fetched: 1, f"{tape}_val": 1}, -1)
        units += [
            (inputs, bias, {taken: 1, "token_is_goto_sat": 1, "token_is_goto_unsat": -1}),
            ({fetched: 1}, 0, {"token_is_goto_unsat": 1}),
        ]
    flag, bit = "read_retr0_val", "read_retr1_val"
    units += [  # 15: twice as strong as a fetched token, which stays '#' while the output is printed
        ({"is_read_key": 1, flag: 1, bit: -1}, -1, {"next_read_0": 2}),
        ({"is_read_key": 1, flag: 1, bit: 1}, -2, {"next_read_1": 2}),
        ({"is_read_key": 1, flag: -1}, 0, {"next_end": 2}),
    ]
    return BlockSpec(
        heads=[
            HeadSpec(
                "fetch",  # 13: the token of instruction pc at the place reached in the record; the earliest one
                integers=[({"one": -1}, _ONE)],
                reals=[({"pos_enc_1": 1}, {"pos_enc_0": 1})],
                pairs=[
                    (
                        ({"prog_cur_norm": 1}, {"prog_cur_one_norm": 1}),
                        ({"prog_idx_norm": 1}, {"prog_idx_one_norm": 1}),
                    ),
                    (
                        ({"prog_tmp_norm": 1}, {"prog_tmp_one_norm": 1}),
                        ({"goto_idx_norm": 1}, {"goto_one_norm": 1}),
                    ),
                ],
                values=[({column(token): 1}, {name: 1}) for token, name in _FETCHED.items()],
            )
        ],
        units=units,
    )


def _layout(specs: tuple[BlockSpec, ...]) -> Layout:
    """Collect the features in order of first use, integer ones first."""
    integers = [*map(column, TOKENS), "one", "is_read_key", "read_cur0_shift", "read_cur1_shift", "after_delim"]
    for target in (target for _, _, target in specs[0].units):
        integers += [name for name in target if not name.startswith("read_gap")]
    reals = [f"pos_enc_{j}" for j in range(4)]
    for spec in specs:
        for head in spec.heads:
            reals += [name for _, target in head.values for name in target]
        reals += [name for _, targets in spec.norms for name in targets]
        reals += [name for _, _, target in spec.units for name in target]
        reals += list(spec.output_bias)
    first = tuple(dict.fromkeys(integers))
    return Layout((*first, *(name for name in dict.fromkeys(reals) if name not in first)), len(first))
