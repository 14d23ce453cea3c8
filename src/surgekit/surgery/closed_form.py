"""Surgery without training: the ridge-regressed linear map, and the mean shift."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surgekit.errors import InputError

# Multiples of the mean eigenvalue of the states' scatter, from almost no ridge to A ≈ I.
RIDGE_GRID = tuple(10.0**e for e in torch.linspace(-5, 3, 25).tolist())


@dataclass(frozen=True)
class LinearFit:
    """ẑ = A z + c.

    Attributes:
        weight: (d, d) A − I, float64.
        offset: (d,) c, float64.
        ridge: the λ used, absolute.
        relative_ridge: the same as a multiple of the mean eigenvalue.
        scores: for each relative ridge tried, its cross-validated squared error.
    """

    weight: Tensor
    offset: Tensor
    ridge: float
    relative_ridge: float
    scores: dict[float, float]


class LinearProblem:
    """min Σ_t w_t ‖(A z_t + c) − y_t‖² + λ ‖A − I‖²_F, c unpenalised, for many λ at once.

    With B = A − I and r = y − z it is ridge regression of r on z, centred by the weighted means.
    One eigendecomposition of the scatter C = Σ w z̃ z̃ᵀ = Q Λ Qᵀ, in float64, serves every λ:
    B(λ) = (Σ w r̃ z̃ᵀ) Q (Λ + λ)⁻¹ Qᵀ.

    Args:
        merged, expert: (n, d) states z and y of the same tokens.
        weights: (n,) w, or None for all ones.
        offsets: (P + 1,) boundaries of the prompts among the n tokens.
    """

    def __init__(
        self, merged: Tensor, expert: Tensor, weights: Tensor | None, offsets: Tensor
    ) -> None:
        z, y = merged.double(), expert.double()
        self.weights = z.new_ones(len(z)) if weights is None else weights.double()
        self.offsets = offsets
        residual = y - z
        total = self.weights.sum()
        self.z_mean = (self.weights @ z) / total
        self.r_mean = (self.weights @ residual) / total
        root = self.weights.sqrt()[:, None]
        self.z = (z - self.z_mean) * root  # scaled so that plain sums of squares are weighted
        self.r = (residual - self.r_mean) * root
        scatter = self.z.T @ self.z
        eigenvalues, self.vectors = torch.linalg.eigh(scatter)
        self.eigenvalues = eigenvalues.clamp_min(0)
        self.scale = float(self.eigenvalues.mean())
        if not self.scale > 0:
            raise InputError("linear needs states that differ between tokens; found all alike")
        self.cross = self.vectors.T @ (self.z.T @ self.r)  # Qᵀ Σ w z̃ r̃ᵀ, (d, d)

    def solve(self, ridge: float, rank: int | None = None) -> tuple[Tensor, Tensor]:
        """(A − I, c) for one absolute ridge; with a rank, the best map of that rank.

        The rank cut minimises the same objective: it keeps the leading directions of the fitted
        values, B_r = P P ᵀ B with P the top eigenvectors of B (C + λ) Bᵀ, and refits c.
        """
        shrunk = self.cross / (self.eigenvalues + ridge)[:, None]
        b = (self.vectors @ shrunk).T
        if rank is not None:
            left = self._leading(shrunk, ridge, rank)
            b = left @ (left.T @ b)
        return b, self.r_mean - b @ self.z_mean

    def factors(self, ridge: float, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        """(left (d, r), right (r, d), c) of the rank cut."""
        shrunk = self.cross / (self.eigenvalues + ridge)[:, None]
        b = (self.vectors @ shrunk).T
        left = self._leading(shrunk, ridge, rank)
        right = left.T @ b
        return left, right, self.r_mean - left @ (right @ self.z_mean)

    def _leading(self, shrunk: Tensor, ridge: float, rank: int) -> Tensor:
        gain = shrunk.T @ (shrunk * (self.eigenvalues + ridge)[:, None])
        return torch.linalg.eigh(gain).eigenvectors[:, -rank:]

    def leave_one_prompt_out(self, ridge: float) -> float:
        """Weighted squared error on each prompt of the map fitted without it, summed.

        Exact, without refitting: for a linear smoother with a fixed penalty the held-out
        residuals of a block p are (I − H_pp)⁻¹ e_p, with H the hat matrix and e the residuals.
        """
        inverse = 1.0 / (self.eigenvalues + ridge)
        shrunk = self.cross * inverse[:, None]
        total = self.weights.sum()
        error = 0.0
        for start, stop in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            if start == stop:
                continue
            u = self.z[start:stop] @ self.vectors
            residual = self.r[start:stop] - u @ shrunk
            root = self.weights[start:stop].sqrt()
            hat = (u * inverse) @ u.T + torch.outer(root, root) / total
            identity = torch.eye(stop - start, dtype=hat.dtype, device=hat.device)
            error += float(torch.linalg.solve(identity - hat, residual).square().sum())
        return error

    def generalised_cross_validation(self, ridge: float) -> float:
        """n · RSS / (n − df)², df counting the offset."""
        shrunk = self.cross / (self.eigenvalues + ridge)[:, None]
        rss = float((self.r - (self.z @ self.vectors) @ shrunk).square().sum())
        freedom = float((self.eigenvalues / (self.eigenvalues + ridge)).sum()) + 1.0
        count = len(self.z)
        return count * rss / max(count - freedom, 1e-9) ** 2


def fit_linear(problem: LinearProblem, rule: str | float) -> LinearFit:
    """Choose the ridge by ``loo``, ``gcv`` or as a given multiple of the mean eigenvalue, solve.

    Raises:
        InputError: ``loo`` with a single prompt.
    """
    scores: dict[float, float] = {}
    if isinstance(rule, str):
        if rule == "loo" and len(problem.offsets) < 3:
            raise InputError(
                "leave-one-prompt-out needs at least two prompts; use ridge: gcv or a number"
            )
        score = (
            problem.leave_one_prompt_out if rule == "loo" else problem.generalised_cross_validation
        )
        scores = {relative: score(relative * problem.scale) for relative in RIDGE_GRID}
        relative = min(scores, key=lambda r: scores[r])
    else:
        relative = rule
    weight, offset = problem.solve(relative * problem.scale)
    return LinearFit(weight, offset, relative * problem.scale, relative, scores)


def fit_mean_shift(merged: Tensor, expert: Tensor) -> Tensor:
    """(d,) the mean over tokens of z − z^k, float64."""
    return (merged.double() - expert.double()).mean(0)
