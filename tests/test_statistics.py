"""Intervals over prompts and summaries over runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from surgekit.statistics import over_runs, ratio_interval

from .oracle import Array


def draws(count: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    below = rng.integers(5, 50, size=count).astype(np.float64)
    return below * rng.gamma(2.0, size=count), below


def width(interval: list[float] | None) -> float:
    assert interval is not None
    return interval[1] - interval[0]


@pytest.mark.parametrize("count", [2, 3, 10, 50])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_interval_holds_its_ratio(count: int, seed: int) -> None:
    top, bottom = draws(count, seed)
    interval = ratio_interval(top, bottom)
    assert interval is not None
    assert interval[0] < top.sum() / bottom.sum() < interval[1]
    ratios = top / bottom  # no mixture leaves the range of its parts
    assert ratios.min() <= interval[0]
    assert interval[1] <= ratios.max()
    assert ratio_interval(top, bottom) == interval
    if count > 3:
        assert ratio_interval(top, bottom, seed=1) != interval
        assert width(ratio_interval(top, bottom, confidence=0.5)) < width(interval)


def test_intervals_shrink_with_the_number_of_prompts() -> None:
    widths = [width(ratio_interval(*draws(count))) for count in (10, 40, 160, 640)]
    assert widths == sorted(widths, reverse=True)
    # As one over the root of the number; 64 times as many prompts, an eighth of the width.
    assert widths[0] / widths[-1] == pytest.approx(8, rel=0.5)


def test_an_interval_is_of_the_width_theory_gives() -> None:
    """For equal token counts it is that of a mean over prompts: ±1.96 standard errors."""
    top, bottom = draws(400)
    ratios = top / bottom
    interval = ratio_interval(ratios * 10, np.full(400, 10.0))
    error = ratios.std(ddof=1) / math.sqrt(400)
    assert width(interval) == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_prompts_are_drawn_whole() -> None:
    """Numerator and denominator of a prompt stay together: a constant ratio has no spread."""
    _, bottom = draws(20)
    interval = ratio_interval(3 * bottom, bottom)
    assert interval == pytest.approx([3.0, 3.0], rel=1e-12)


def test_intervals_that_do_not_exist() -> None:
    assert ratio_interval(np.array([1.0]), np.array([2.0])) is None
    assert ratio_interval(np.array([1.0, 2.0]), np.zeros(2)) is None
    assert ratio_interval(np.array([np.nan, 2.0]), np.ones(2)) is None
    assert ratio_interval(np.full(5, 2.0), np.full(5, 4.0)) == [0.5, 0.5]


def test_over_runs() -> None:
    found = over_runs([1.0, 2.0, 4.0])
    assert found["mean"] == pytest.approx(7 / 3)
    assert found["std"] == pytest.approx(math.sqrt(7 / 3))  # 14/3 over two
    assert found["runs"] == [1.0, 2.0, 4.0]
    assert over_runs([5.0]) == {"mean": 5.0, "std": None, "runs": [5.0]}
    assert over_runs([5.0, 5.0])["std"] == 0.0
