"""The linear map in closed form: solution, ridge rules and rank cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from surgekit.errors import InputError
from surgekit.surgery.closed_form import RIDGE_GRID, LinearProblem, fit_linear, fit_mean_shift
from surgekit.surgery.config import CalibrationConfig
from surgekit.surgery.fit import calibrate

from . import oracle
from .oracle import Array, Ints
from .synthetic import arrays, config, fit_states, numbers, pair, parameters, tokens

D = 6
LENGTHS = [7, 3, 9, 1, 6, 8, 4, 5]
RIDGES = [1e-3, 0.5, 20.0, 1e4]
WEIGHTED = [False, True]


@dataclass(frozen=True)
class Case:
    """The same data for both sides."""

    z: Array
    y: Array
    weights: Array | None
    offsets: Ints

    def problem(self) -> LinearProblem:
        return LinearProblem(
            torch.from_numpy(self.z),
            torch.from_numpy(self.y),
            None if self.weights is None else torch.from_numpy(self.weights),
            torch.from_numpy(self.offsets),
        )

    def objective(self, weight: Array, ridge: float) -> float:
        """What the fit minimises, at A − I = weight and the best offset for it."""
        w = np.ones(len(self.z)) if self.weights is None else self.weights
        left = self.y - self.z - self.z @ weight.T
        fit = {"weight": weight, "offset": (w @ left) / w.sum()}
        penalty = ridge * float((weight**2).sum())
        return oracle.weighted_errors(fit, self.z, self.y, self.weights) + penalty


def case(weighted: bool, *, seed: int = 0, d: int = D) -> Case:
    merged, expert = pair(tokens(LENGTHS), d, seed=seed, drift=0.3, noise=0.4, dtype=torch.float64)
    z, y, _, offsets = arrays(merged, expert)
    unequal = np.linspace(0.2, 3.0, d)  # directions of unequal size, a mean far from zero
    z, y = z * unequal + 2.0, y * unequal + 2.0
    assert expert.entropies is not None
    entropies = numbers(expert.entropies)
    weights = oracle.entropy_weights(entropies, offsets, "dataset") if weighted else None
    return Case(z, y, weights, offsets)


def close(found: Any, wanted: Array, relative: float) -> bool:
    found = numbers(found) if isinstance(found, torch.Tensor) else found
    assert found.shape == wanted.shape
    return bool(np.abs(found - wanted).max() <= relative * np.abs(wanted).max())


# -- Solution -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_normal_equations(weighted: bool, ridge: float, seed: int) -> None:
    data = case(weighted, seed=seed)
    weight, offset = data.problem().solve(ridge)
    wanted = oracle.linear_direct(data.z, data.y, ridge, data.weights)
    assert close(weight, wanted["weight"], 1e-9)
    assert close(offset, wanted["offset"], 1e-9)


def test_fewer_tokens_than_dimensions() -> None:
    data = case(weighted=True, d=60)
    assert len(data.z) < 60
    weight, offset = data.problem().solve(0.3)
    wanted = oracle.linear_direct(data.z, data.y, 0.3, data.weights)
    assert close(weight, wanted["weight"], 1e-8)
    assert close(offset, wanted["offset"], 1e-8)


def test_states_in_bfloat16_are_taken_for_what_they_are() -> None:
    merged, expert = fit_states()
    z, y, _, _ = arrays(merged, expert)
    problem = LinearProblem(merged.hidden, expert.hidden, None, merged.tokens.offsets)
    wanted = oracle.linear_direct(z, y, 1.0)
    assert close(problem.solve(1.0)[0], wanted["weight"], 1e-9)


def test_a_great_ridge_leaves_the_mean_shift() -> None:
    data = case(weighted=False)
    weight, offset = data.problem().solve(1e15)
    assert float(weight.abs().max()) < 1e-9
    shift = fit_mean_shift(torch.from_numpy(data.z), torch.from_numpy(data.y))
    assert numbers(shift) == pytest.approx((data.z - data.y).mean(axis=0), rel=1e-12)
    assert close(-offset, numbers(shift), 1e-8)


def test_states_all_alike_have_no_map() -> None:
    same = torch.ones(4, D)
    with pytest.raises(InputError, match="all alike"):
        LinearProblem(same, torch.randn(4, D), None, torch.tensor([0, 2, 4]))


# -- Ridge --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("ridge", RIDGES)
def test_leave_one_prompt_out_equals_refitting(weighted: bool, ridge: float) -> None:
    data = case(weighted)
    wanted = oracle.leave_one_prompt_out(data.z, data.y, ridge, data.weights, data.offsets)
    assert data.problem().leave_one_prompt_out(ridge) == pytest.approx(wanted, rel=1e-9)


def test_leave_one_prompt_out_with_weights_of_zero_and_prompts_of_nothing() -> None:
    data = case(weighted=True)
    assert data.weights is not None
    weights = data.weights.copy()
    weights[2:5] = 0.0
    offsets = np.insert(data.offsets, 3, data.offsets[3])
    spoiled = Case(data.z, data.y, weights, offsets)
    wanted = oracle.leave_one_prompt_out(data.z, data.y, 0.5, weights, data.offsets)
    assert spoiled.problem().leave_one_prompt_out(0.5) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("ridge", RIDGES)
def test_generalised_cross_validation(weighted: bool, ridge: float) -> None:
    data = case(weighted)
    wanted = oracle.gcv(data.z, data.y, ridge, data.weights)
    assert data.problem().generalised_cross_validation(ridge) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("rule", ["loo", "gcv"])
def test_the_rule_takes_the_best_ridge_of_the_grid(rule: str, weighted: bool) -> None:
    data = case(weighted)
    fit = fit_linear(data.problem(), rule)
    w = np.ones(len(data.z)) if data.weights is None else data.weights
    centred = data.z - (w @ data.z) / w.sum()
    scale = float((w @ centred**2).sum()) / D  # the mean eigenvalue of the scatter
    scores = {
        relative: (
            oracle.leave_one_prompt_out(
                data.z, data.y, relative * scale, data.weights, data.offsets
            )
            if rule == "loo"
            else oracle.gcv(data.z, data.y, relative * scale, data.weights)
        )
        for relative in RIDGE_GRID
    }
    assert fit.scores == pytest.approx(scores, rel=1e-7)
    assert fit.relative_ridge == min(scores, key=lambda r: scores[r])
    assert RIDGE_GRID[0] < fit.relative_ridge < RIDGE_GRID[-1]
    assert fit.ridge == pytest.approx(fit.relative_ridge * scale, rel=1e-12)
    wanted = oracle.linear_direct(data.z, data.y, fit.ridge, data.weights)
    assert close(fit.weight, wanted["weight"], 1e-9)


def test_a_given_ridge_is_a_multiple_of_the_mean_eigenvalue() -> None:
    data = case(weighted=False)
    fit = fit_linear(data.problem(), 0.25)
    scatter = np.cov(data.z.T, bias=True) * len(data.z)
    assert fit.ridge == pytest.approx(0.25 * np.linalg.eigvalsh(scatter).mean(), rel=1e-9)
    assert fit.scores == {}


def test_leave_one_prompt_out_needs_two_prompts() -> None:
    data = case(weighted=False)
    alone = Case(data.z, data.y, None, np.array([0, len(data.z)]))
    with pytest.raises(InputError, match="ridge: gcv or a number"):
        fit_linear(alone.problem(), "loo")
    assert fit_linear(alone.problem(), "gcv").scores


# -- Rank ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("ridge", RIDGES)
def test_full_rank_is_the_whole_map(weighted: bool, ridge: float) -> None:
    problem = case(weighted).problem()
    weight, offset = problem.solve(ridge)
    cut, cut_offset = problem.solve(ridge, rank=D)
    assert close(cut, numbers(weight), 1e-10)
    assert close(cut_offset, numbers(offset), 1e-10)


@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_factors_multiply_to_the_cut_map(weighted: bool, rank: int) -> None:
    problem = case(weighted).problem()
    left, right, offset = problem.factors(0.5, rank)
    assert tuple(left.shape) == (D, rank)
    assert tuple(right.shape) == (rank, D)
    cut, cut_offset = problem.solve(0.5, rank=rank)
    assert close(left @ right, numbers(cut), 1e-10)
    assert close(offset, numbers(cut_offset), 1e-10)


@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_no_map_of_the_rank_does_better(weighted: bool, ridge: float, rank: int) -> None:
    data = case(weighted)
    problem = data.problem()
    whole = numbers(problem.solve(ridge)[0])
    cut, offset = (numbers(part) for part in problem.solve(ridge, rank=rank))
    assert np.linalg.matrix_rank(cut, tol=1e-9) == rank
    least = data.objective(cut, ridge)
    # Its own offset is the best for it.
    with_own = oracle.weighted_errors(
        {"weight": cut, "offset": offset}, data.z, data.y, data.weights
    )
    assert with_own + ridge * float((cut**2).sum()) == pytest.approx(least, rel=1e-10)
    assert data.objective(whole, ridge) <= least

    u, s, v = np.linalg.svd(whole)
    rng = np.random.default_rng(0)
    rivals = {"truncated": (u[:, :rank] * s[:rank]) @ v[:rank]}
    top_u, top_s, top_v = np.linalg.svd(cut)
    for i in range(40):
        some = np.linalg.qr(rng.normal(size=(D, rank)))[0]
        rivals[f"random output directions {i}"] = some @ some.T @ whole
        rivals[f"random input directions {i}"] = whole @ some @ some.T
        rivals[f"random {i}"] = some @ rng.normal(size=(rank, D)) * s[0]
        # A step away that keeps the rank.
        left = top_u[:, :rank] + 1e-2 * rng.normal(size=(D, rank))
        right = top_s[:rank, None] * top_v[:rank] * (1 + 1e-2 * rng.normal(size=(rank, 1)))
        rivals[f"near {i}"] = left @ right
    for name, rival in rivals.items():
        assert least <= data.objective(rival, ridge) * (1 + 1e-12), name


def test_the_cut_is_not_the_truncated_svd() -> None:
    """Directions of unequal size tell the two apart; by how much is what the cut gains."""
    data = case(weighted=False)
    whole = numbers(data.problem().solve(0.5)[0])
    u, s, v = np.linalg.svd(whole)
    truncated = data.objective((u[:, :1] * s[:1]) @ v[:1], 0.5)
    assert data.objective(numbers(data.problem().solve(0.5, rank=1)[0]), 0.5) < 0.95 * truncated


# -- End to end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["uniform", "entropy"])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("ridge", ["loo", "gcv", 0.1])
@pytest.mark.parametrize("text", ["both", "response"])
def test_calibrated(weights: str, rank: int | None, ridge: str | float, text: str) -> None:
    merged, expert = fit_states()
    z, y, _, offsets = arrays(merged, expert, text)
    drawn = None
    if weights == "entropy":
        assert expert.entropies is not None
        part = "both" if text == "both" else "response"
        entropies = numbers(expert.entropies)[merged.mask(part).numpy()]
        drawn = oracle.entropy_weights(entropies, offsets, "dataset")
    module = calibrate(
        merged,
        expert,
        config("linear", 8, rank),
        calibration=CalibrationConfig.model_validate(
            {"weights": weights, "ridge": ridge, "text": text}
        ),
    )
    record = module.record
    reference = Case(z, y, drawn, offsets).problem()
    fit = fit_linear(reference, ridge)
    assert record["relative_ridge"] == fit.relative_ridge
    assert record["ridge"] == pytest.approx(fit.ridge, rel=1e-5)
    assert record["ridge_rule"] == ridge
    assert record["loss"] is None
    found = parameters(module)
    if rank is None:
        wanted = oracle.linear_direct(z, y, record["ridge"], drawn)
    else:
        cut, offset = reference.solve(record["ridge"], rank=rank)
        wanted = {"weight": numbers(cut), "offset": numbers(offset)}
    for key, value in wanted.items():  # stored in bfloat16
        assert close(found[key], value, 2**-7 if rank else 2**-8), key
    assert all(p.dtype == torch.bfloat16 for p in module.parameters())


def test_one_prompt_is_too_few_for_the_default_rule() -> None:
    merged, expert = pair(tokens([9]), 4)
    with pytest.raises(InputError, match=r"^math: leave-one-prompt-out needs at least two"):
        calibrate(merged, expert, config("linear", 4), domain="math")
