"""The C structures of ``native/abi.h``, field by field."""

from __future__ import annotations

import ctypes

__all__: list[str] = []

i32, i64, f32, ptr = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class Rows(ctypes.Structure):
    _fields_ = [("data", ptr), ("stride_batch", i64), ("stride_head", i64), ("stride_row", i64)]


class Hash(ctypes.Structure):
    _fields_ = [
        *((name, i32) for name in ("isa", "threads", "dtype", "key_bits", "tables", "head_dim")),
        ("count", i64),
        ("stride_row", i64),
        ("rows", ptr),
        ("mean", ptr),
        ("panels", ptr),
        ("plane_norm", f32),
        ("codes", ptr),
        ("norms", ptr),
    ]


class Tables(ctypes.Structure):
    _fields_ = [
        *((name, i32) for name in ("threads", "key_bits", "tables")),
        ("count", i64),
        *((name, ptr) for name in ("codes", "skip", "offsets", "ids")),
    ]


class Segment(ctypes.Structure):
    _fields_ = [("ids", ptr), ("offsets", ptr), ("start", i64), ("size", i64), ("limit", i64)]


_ATTEND_COUNTS = ("isa", "threads", "dtype", "batch", "kv_heads", "group", "head_dim", "key_bits", "tables")


class Attend(ctypes.Structure):
    _fields_ = [
        *((name, i32) for name in (*_ATTEND_COUNTS, "min_hits", "num_segments", "with_error", "panel_heads")),
        *((name, f32) for name in ("scale", "weight_eps", "plane_norm")),
        ("query", ptr),
        ("keys", Rows),
        ("values", Rows),
        ("norms", ptr),
        ("norm_stride", i64),
        *((name, ptr) for name in ("mean", "panels", "segments", "first")),
        *((name, i64) for name in ("sink", "tail", "length")),
        ("heavy", ptr),
        ("num_heavy", i64),
        *((name, ptr) for name in ("codes", "partial", "out", "lse", "stats")),
    ]


class Select(ctypes.Structure):
    _fields_ = [("attend", Attend), ("positions", ptr), ("capacity", i64), ("counts", ptr)]


class Dense(ctypes.Structure):
    _fields_ = [
        *((name, i32) for name in ("isa", "threads", "dtype", "batch", "kv_heads", "group", "head_dim")),
        ("scale", f32),
        ("query", ptr),
        ("keys", Rows),
        ("values", Rows),
        ("length", i64),
        *((name, ptr) for name in ("first", "mask", "active")),
        *((name, i64) for name in ("chunk", "num_chunks")),
        *((name, ptr) for name in ("partial", "out", "lse")),
    ]
