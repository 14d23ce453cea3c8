"""What the numbers of mergekit's methods may be; mergekit 0.1.5 itself takes any.

Read off its methods (``mergekit/merge_methods``, ``mergekit/sparsify.py``): outside of its range a
parameter makes the merge NaN, leaves every model out of it, or stops it half-way. ``weight``,
``lambda``, ``scale`` and slerp's ``t`` have no such range; what comes of them is told by
``effects``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surgekit.findings import Finding


@dataclass(frozen=True)
class Range:
    """Numbers that a parameter may have.

    Attributes:
        expected: in words.
        low, high: the bounds.
        low_in, high_in: whether the bounds themselves are allowed.
        nothing: what is said of 0, where it is allowed and leaves nothing of the merge.
    """

    expected: str
    low: float = -math.inf
    high: float = math.inf
    low_in: bool = True
    high_in: bool = True
    nothing: str = ""

    def holds(self, value: float) -> bool:
        """Whether ``value`` lies in the range."""
        above = value >= self.low if self.low_in else value > self.low
        return above and (value <= self.high if self.high_in else value < self.high)


_SHARE = Range("a share from 0 to 1", 0, 1)
_TINY = Range("a number above 0 and below 1", 0, 1, low_in=False, high_in=False)
_NO_LESS = Range("a number from 0 on", 0)

RANGES: Mapping[tuple[str, str], Range] = {
    ("*", "density"): _SHARE,
    ("*", "gamma"): _SHARE,
    # How far the chance of an entry to be kept moves with its rank; below 0 the small ones stay.
    ("della", "epsilon"): Range("a number from 0 to below 0.5", 0, 0.5, high_in=False),
    ("della_linear", "epsilon"): Range("a number from 0 to below 0.5", 0, 0.5, high_in=False),
    ("sce", "select_topk"): Range(
        "a share from 0 to 1", 0, 1, nothing="it selects nothing, so the merge is the base itself"
    ),
    # A swap takes over what differs by less than t; 1 - t / |a - b| is its measure.
    ("nearswap", "t"): Range(
        "a distance from 0 on", 0, nothing="it takes over nothing, so the merge is the base itself"
    ),
    # At 0 and below, two models with a tensor in common divide 0 by 0.
    ("karcher", "tol"): Range(_TINY.expected, 0, 1, False, False),
    ("karcher", "max_iter"): Range("a whole number from 1 on", 1),
    ("multislerp", "eps"): Range(_TINY.expected, 0, 1, False, False),
    # Entries that changed by no more count as unchanged; below 0 all count as changed by all.
    ("ram", "epsilon"): Range("a number from 0 to below 1", 0, 1, high_in=False),
    # At 0 a tensor that no model changed divides 0 by 0.
    ("ramplus_tl", "epsilon"): _TINY,
    ("ramplus_tl", "r"): _NO_LESS,
    ("ramplus_tl", "alpha"): _NO_LESS,
}
"""By (method, parameter); ``*`` is any method that has the parameter."""


def range_of(method: str, parameter: str) -> Range | None:
    """The numbers that a parameter of a method may have, where not all are."""
    return RANGES.get((method, parameter)) or RANGES.get(("*", parameter))


def check_number(
    place: str, method: str, parameter: str, value: float, shown: Any
) -> list[Finding]:
    """What is wrong with one finite number of a parameter.

    Args:
        place: where it stands.
        method, parameter: their names.
        value: the number.
        shown: as it was written.
    """
    allowed = range_of(method, parameter)
    if allowed is None:
        if parameter == "t" and not 0 <= value <= 1:
            said = f"{place}: {shown} lies outside of 0 to 1, beyond the two models"
            return [Finding("warning", said)]
        return []
    if allowed.holds(value):
        return []
    share = allowed.expected == _SHARE.expected and 1 < value <= 100
    hint = f"; did you mean {value / 100:g}?" if share else ""
    return [Finding("error", f"{place}: expected {allowed.expected}, found {shown}{hint}")]
