"""Summaries over runs, and intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

Array = NDArray[np.float64]
_RESAMPLES = 2000


def over_runs(values: Sequence[float]) -> dict[str, Any]:
    """Mean and sample standard deviation over runs; the deviation of one run is None."""
    array = np.asarray(values, dtype=np.float64)
    std = float(array.std(ddof=1)) if len(array) > 1 else None
    return {"mean": float(array.mean()), "std": std, "runs": [float(v) for v in array]}


def ratio_interval(
    numerator: Array, denominator: Array, *, confidence: float = 0.95, seed: int = 0
) -> list[float] | None:
    """Percentile bootstrap interval of Σ numerator / Σ denominator, resampling prompts.

    With token sums above and token counts below this is the interval of a mean over tokens that
    respects that tokens of one prompt belong together.

    Args:
        numerator, denominator: (P,) one entry a prompt.

    Returns:
        [low, high]; None for fewer than two prompts, or where the ratio is not finite.
    """
    if len(numerator) < 2:
        return None

    def ratio(top: Array, bottom: Array, axis: int = -1) -> Array:
        below = bottom.sum(axis=axis)
        return top.sum(axis=axis) / np.where(below == 0, np.nan, below)

    if not np.isfinite(ratio(numerator, denominator)):
        return None
    if np.ptp(numerator) == 0 and np.ptp(denominator) == 0:
        value = float(ratio(numerator, denominator))
        return [value, value]
    result = bootstrap(
        (numerator, denominator),
        ratio,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    interval = [float(result.confidence_interval.low), float(result.confidence_interval.high)]
    return interval if np.isfinite(interval).all() else None
