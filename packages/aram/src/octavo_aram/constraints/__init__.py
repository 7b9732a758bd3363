"""Constraints on actions: feasible sets with membership, violation, projection, interior point and volume."""

from octavo_aram.constraints.balls import Box, Ellipsoid, L2Ball
from octavo_aram.constraints.base import Constraint, ConvexPieces, QPCounter, VolumeEstimate, count_qp
from octavo_aram.constraints.combine import Intersection, Union
from octavo_aram.constraints.integer import IntegerAllocation
from octavo_aram.constraints.linear import LinearInequality, SumEquality
from octavo_aram.constraints.oracle import Oracle
from octavo_aram.constraints.power import Orthoplex, PositivePower

__all__ = [
    "Box",
    "Constraint",
    "ConvexPieces",
    "Ellipsoid",
    "IntegerAllocation",
    "Intersection",
    "L2Ball",
    "LinearInequality",
    "Oracle",
    "Orthoplex",
    "PositivePower",
    "QPCounter",
    "SumEquality",
    "Union",
    "VolumeEstimate",
    "count_qp",
]
