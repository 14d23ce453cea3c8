"""Reference formulas in plain float64 numpy, to hold the package's results against.

The formulas are those of SPEC.md, sections 1, 3, 4 and 5. Nothing here imports the package, so that
an agreement between the two is evidence. Clarity goes before speed throughout.

Shapes: n tokens, d the width of the last hidden state, r the rank, T the rows of a position table,
V the vocabulary. Tokens of several prompts are packed along n; `offsets` holds the boundaries,
(0, ..., n), so that prompt i is `offsets[i]:offsets[i + 1]`. No padding ever enters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Params = Mapping[str, Array]
Scope = Literal["dataset", "sequence", "batch"]
HeadFn = Callable[[Array], Array]
ValueAndGrad = Callable[[Array], tuple[float, Array]]

MODULES: dict[str, tuple[str, ...]] = {
    "standard": ("down", "up"),
    "darts": ("down", "up", "table"),
    "add": ("down", "up", "table"),
    "parallel": ("down", "up", "table", "down2", "up2"),
    "mean-shift": ("shift",),
    "table": ("table",),
    "linear": ("weight", "offset"),
}
"""Every module with the names of its parameters."""


# --------------------------------------------------------------------------------------------------
# Modules (section 4; mean shift, table and linear also section 5)


def rows_at(table: Array, positions: Ints) -> Array:
    """The table's row (T, d) of every token, (n, d); a zero row at positions outside 0..T-1."""
    out = np.zeros((len(positions), table.shape[1]))
    for i, t in enumerate(positions):
        if 0 <= t < len(table):
            out[i] = table[t]
    return out


def _scatter(per_token: Array, positions: Ints, count: int) -> Array:
    """Sum (n, d) over the tokens of each position, (count, d): the transpose of `rows_at`."""
    out = np.zeros((count, per_token.shape[1]))
    for row, t in zip(per_token, positions, strict=True):
        if 0 <= t < count:
            out[t] += row
    return out


def _bottleneck(x: Array, down: Array, up: Array) -> Array:
    return np.maximum(x @ down.T, 0.0) @ up.T


def _check(module: str, params: Params) -> None:
    if module not in MODULES:
        raise ValueError(f"unknown module {module!r}")
    if set(params) != set(MODULES[module]):
        raise ValueError(f"{module} has the parameters {MODULES[module]}, not {sorted(params)}")


def correct(module: str, params: Params, z: Array, positions: Ints) -> Array:
    """Corrected states (n, d) of `z` (n, d) at `positions` (n,): section 4, and 5 for rank zero.

    Positions below zero or past the table's end have no position part. ValueError if the module
    or its parameter names are wrong.
    """
    _check(module, params)
    z = np.asarray(z, dtype=np.float64)
    if module == "standard":
        return z - _bottleneck(z, params["down"], params["up"])
    if module == "darts":
        part = rows_at(params["table"], positions)
        return z - _bottleneck(z, params["down"], params["up"]) - part
    if module == "add":
        part = rows_at(params["table"], positions)
        return z - _bottleneck(z + part, params["down"], params["up"])
    if module == "parallel":
        part = rows_at(params["table"], positions)
        content = _bottleneck(z, params["down"], params["up"])
        return z - content - _bottleneck(part, params["down2"], params["up2"])
    if module == "mean-shift":
        return z - params["shift"]
    if module == "table":
        return z - rows_at(params["table"], positions)
    return z + z @ params["weight"].T + params["offset"]


def _bottleneck_back(x: Array, down: Array, up: Array, g: Array) -> tuple[Array, Array, Array]:
    """Gradients for down, up and x of <-g, bottleneck(x)>, the bottleneck being subtracted.

    The derivative of ReLU at exactly zero is taken as zero.
    """
    a = x @ down.T
    hidden = np.maximum(a, 0.0)
    grad_up = -(g.T @ hidden)
    grad_a = -(g @ up) * (a > 0)
    return grad_a.T @ x, grad_up, grad_a @ down


def gradients(
    module: str, params: Params, z: Array, positions: Ints, loss_fn: ValueAndGrad
) -> dict[str, Array]:
    """Gradient of the loss for every parameter, each of its parameter's shape (section 4).

    `loss_fn` maps corrected states (n, d) to the loss and its gradient for them; `make_loss`
    builds one for each loss of section 4.
    """
    _, g = loss_fn(correct(module, params, z, positions))
    out: dict[str, Array] = {}
    if module in ("standard", "darts", "parallel"):
        out["down"], out["up"], _ = _bottleneck_back(z, params["down"], params["up"], g)
    if module == "add":
        x = z + rows_at(params["table"], positions)
        out["down"], out["up"], grad_x = _bottleneck_back(x, params["down"], params["up"], g)
        out["table"] = _scatter(grad_x, positions, len(params["table"]))
    if module == "parallel":
        part = rows_at(params["table"], positions)
        back = _bottleneck_back(part, params["down2"], params["up2"], g)
        out["down2"], out["up2"] = back[0], back[1]
        out["table"] = _scatter(back[2], positions, len(params["table"]))
    if module in ("darts", "table"):
        out["table"] = -_scatter(g, positions, len(params["table"]))
    if module == "mean-shift":
        out["shift"] = -g.sum(axis=0)
    if module == "linear":
        out["weight"] = g.T @ z
        out["offset"] = g.sum(axis=0)
    return out


# --------------------------------------------------------------------------------------------------
# Heads, entropies and losses (section 4)


def log_softmax(logits: Array) -> Array:
    """Log-probabilities along the last axis; entries of minus infinity stay so."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _p_log(log_p: Array, other: Array) -> Array:
    """The product p * other with zero where p is zero, whatever `other` is there."""
    p = np.exp(log_p)
    return p * np.where(p > 0, other, 0.0)


def entropy(logits: Array) -> Array:
    """Entropy in nats of the softmax of every row of (n, V), as (n,)."""
    log_p = log_softmax(np.asarray(logits, dtype=np.float64))
    return -_p_log(log_p, log_p).sum(axis=-1)


def entropy_weights(entropies: Array, offsets: Sequence[int] | Ints, scope: Scope) -> Array:
    """Weights (n,) from entropies (n,): each divided by the mean of its scope (section 4).

    dataset: the mean over all tokens, so prompts count by their length; sequence: over the token's
    own prompt; batch: over the tokens passed, which the caller has restricted to one batch.
    ValueError where that mean is zero, for which section 4 gives no weight.
    """
    entropies = np.asarray(entropies, dtype=np.float64)
    if scope not in ("dataset", "sequence", "batch"):
        raise ValueError(f"unknown scope {scope!r}")
    bounds = list(offsets) if scope == "sequence" else [0, len(entropies)]
    if bounds[0] != 0 or bounds[-1] != len(entropies):
        raise ValueError("offsets must run from 0 to the number of tokens")
    out = np.empty_like(entropies)
    for lo, hi in pairwise(bounds):
        if lo == hi:
            continue
        mean = entropies[lo:hi].mean()
        if mean <= 0:
            raise ValueError("the mean entropy is zero")
        out[lo:hi] = entropies[lo:hi] / mean
    return out


def head(
    h: Array,
    weight: Array,
    bias: Array | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
) -> Array:
    """Logits (n, V) of states (n, d) under a head with all its parts (section 4)."""
    # Section 4 lists bias, soft cap and scale but not their order. Assumed: the bias belongs to
    # the projection, the scale multiplies its result, and the cap comes last, so that logits
    # are bounded by `softcap` itself whatever the scale. (A head that divides has scale 1/c.)
    x = h @ weight.T
    if bias is not None:
        x = x + bias
    x = scale * x
    return x if softcap is None else softcap * np.tanh(x / softcap)


@dataclass(frozen=True)
class Head:
    """`head` with its parameters bound: weight (V, d), bias (V,)."""

    weight: Array
    bias: Array | None = None
    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, h: Array) -> Array:
        """Logits (n, V) of states (n, d)."""
        return head(h, self.weight, self.bias, self.scale, self.softcap)

    def back(self, h: Array, grad_logits: Array) -> Array:
        """Gradient for the states (n, d), given that for the logits (n, V)."""
        slope = 1.0 if self.softcap is None else 1.0 - (self(h) / self.softcap) ** 2
        return self.scale * (grad_logits * slope) @ self.weight


def l1(corrected: Array, expert: Array) -> float:
    """Mean absolute error over tokens and dimensions (section 4)."""
    return float(np.abs(corrected - expert).mean())


def ewl1(corrected: Array, expert: Array, weights: Array) -> float:
    """Mean over tokens of weight (n,) times the mean absolute error over dimensions (section 4)."""
    return float((weights * np.abs(corrected - expert).mean(axis=1)).mean())


def kl(corrected: Array, expert: Array, head_fn: HeadFn) -> float:
    """Mean over tokens of KL(expert || corrected) in nats, one head on both (section 4)."""
    log_p, log_q = log_softmax(head_fn(expert)), log_softmax(head_fn(corrected))
    return float(_p_log(log_p, log_p - log_q).sum(axis=1).mean())


def ce(corrected: Array, expert: Array, head_fn: HeadFn, targets: Ints | None = None) -> float:
    """Mean over tokens of the cross-entropy in nats against the expert's top token (section 4).

    `targets` (n,) are the expert's top tokens; without them, the arg max of the same head on the
    expert's states.
    """
    top = head_fn(expert).argmax(axis=1) if targets is None else targets
    log_q = log_softmax(head_fn(corrected))
    return float(-log_q[np.arange(len(top)), top].mean())


def make_loss(
    name: str,
    expert: Array,
    weights: Array | None = None,
    head_fn: Head | None = None,
    targets: Ints | None = None,
) -> ValueAndGrad:
    """A function of the corrected states (n, d): the loss `name` and its gradient (section 4).

    `ewl1` needs `weights`, `kl` and `ce` need `head_fn`, `ce` may have `targets`. The derivative
    of |x| at zero is taken as zero. ValueError if something needed is missing.
    """
    n, d = expert.shape
    if name == "l1":
        return lambda x: (l1(x, expert), np.sign(x - expert) / (n * d))
    if name == "ewl1" and weights is not None:
        w = weights
        return lambda x: (ewl1(x, expert, w), w[:, None] * np.sign(x - expert) / (n * d))
    if name in ("kl", "ce") and head_fn is not None:
        fn = head_fn
        if name == "kl":
            wanted = np.exp(log_softmax(fn(expert)))
        else:
            top = fn(expert).argmax(axis=1) if targets is None else targets
            wanted = np.zeros(fn(expert).shape)
            wanted[np.arange(n), top] = 1.0

        def both(x: Array) -> tuple[float, Array]:
            # For both losses d/d logits = (softmax - wanted) / n: what is wanted is held fixed.
            grad = fn.back(x, (np.exp(log_softmax(fn(x))) - wanted) / n)
            return (kl(x, expert, fn) if name == "kl" else ce(x, expert, fn, targets)), grad

        return both
    raise ValueError(f"loss {name!r} is unknown or lacks its weights or head")


# --------------------------------------------------------------------------------------------------
# Closed forms (sections 4 and 5)


def weighted_median(values: Array, weights: Array) -> float:
    """The least value at which half of the weight is reached; zero if there is no weight.

    Where exactly half lies below, all points up to the next value are as good for the L1 error.
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if len(values) == 0 or reached[-1] <= 0:
        return 0.0
    return float(values[order][np.argmax(reached >= reached[-1] / 2)])


def exact_table(
    residual: Array, positions: Ints, weights: Array | None, count: int
) -> tuple[Array, float]:
    """The table (count, d) that minimises the (weighted) L1 of `residual` - row, and its loss.

    Section 5. `residual` (n, d) is merged minus expert state; the loss is that of `ewl1` (`l1`
    without weights) over all n tokens, those beyond the table uncorrected. Empty positions get
    zeros.
    """
    w = np.ones(len(residual)) if weights is None else weights
    table = np.zeros((count, residual.shape[1]))
    for t in range(count):
        here = positions == t
        for j in range(residual.shape[1]):
            table[t, j] = weighted_median(residual[here, j], w[here])
    left = residual - rows_at(table, positions)
    return table, ewl1(left, np.zeros_like(left), w)


def _normal(
    z: Array, ridge: float, weights: Array | None, offset: bool = True
) -> tuple[Array, Array, Array]:
    """Design [z, 1], weights, and the penalised normal matrix: no penalty on the column of ones."""
    x = np.hstack([z, np.ones((len(z), 1))]) if offset else np.asarray(z, dtype=np.float64)
    w = np.ones(len(z)) if weights is None else np.asarray(weights, dtype=np.float64)
    penalty = np.full(x.shape[1], float(ridge))
    if offset:
        penalty[-1] = 0.0
    return x, w, x.T @ (w[:, None] * x) + np.diag(penalty)


def linear_direct(
    z: Array, y: Array, ridge: float, weights: Array | None = None, fit_offset: bool = True
) -> dict[str, Array]:
    """The linear module fitted from z to y (both (n, d)): weight = A - I (d, d), offset c (d,).

    Section 4: the *sum* over tokens of weighted squared errors plus ridge * |A - I|^2, c free of
    penalty, weights taken as they come. With `fit_offset` false c is held at zero and A refitted.
    Needs ridge > 0 or enough tokens, or numpy raises LinAlgError.
    """
    x, w, normal = _normal(z, ridge, weights, fit_offset)
    # With B = A - I the target is y - z and the penalty is a plain ridge on B.
    solution = np.linalg.solve(normal, x.T @ (w[:, None] * (y - z))).astype(np.float64)
    d = z.shape[1]
    offset: Array = solution[d] if fit_offset else np.zeros(d)
    return {"weight": solution[:d].T.copy(), "offset": offset}


def weighted_errors(fit: Params, z: Array, y: Array, weights: Array | None = None) -> float:
    """Sum over tokens of weight times squared distance of the linear module's output from y."""
    w = np.ones(len(z)) if weights is None else weights
    out = correct("linear", fit, z, np.zeros(len(z), dtype=np.int64))
    return float((w * ((out - y) ** 2).sum(axis=1)).sum())


def leave_one_prompt_out(
    z: Array, y: Array, ridge: float, weights: Array | None, offsets: Sequence[int] | Ints
) -> float:
    """Weighted sum of squared errors on each prompt of the map fitted to all the others.

    Sections 4 and 5. The weights (n,) are used as they come, not normalised anew without the
    prompt, and the ridge is the same in every refit.
    """
    w = np.ones(len(z)) if weights is None else weights
    total = 0.0
    for lo, hi in pairwise(offsets):
        kept = np.ones(len(z), dtype=bool)
        kept[lo:hi] = False
        fit = linear_direct(z[kept], y[kept], ridge, w[kept])
        total += weighted_errors(fit, z[lo:hi], y[lo:hi], w[lo:hi])
    return total


def gcv(z: Array, y: Array, ridge: float, weights: Array | None = None) -> float:
    """Generalised cross validation of the linear map: n * RSS / (n - df)^2 (for section 4's fit).

    RSS is the weighted sum of squared errors over tokens and dimensions, n the number of tokens,
    df the trace of the hat matrix of one output dimension, the offset's 1 included.
    """
    x, w, normal = _normal(z, ridge, weights)
    df = float(np.trace(np.linalg.solve(normal, x.T @ (w[:, None] * x))))
    n = len(z)
    return n * weighted_errors(linear_direct(z, y, ridge, weights), z, y, weights) / (n - df) ** 2


# --------------------------------------------------------------------------------------------------
# Metrics (sections 1 and 4)


def fidelity(merged_logits: Array, expert_logits: Array, targets: Ints) -> dict[str, float]:
    """Means over tokens: next-token `loss`, `kl` (both in nats) and `agreement` (0 to 1).

    Logits are (n, V_merged) and (n, V_expert), each of the model's own head; targets (n,) are the
    true next tokens. `loss` is the merged (or corrected) model's, on its own whole vocabulary;
    `kl` is KL(expert || merged) on the tokens both have, the first min(V_merged, V_expert),
    renormalised (section 4); `agreement` the share of equal top tokens among those in common.
    """
    common = min(merged_logits.shape[1], expert_logits.shape[1])
    log_q = log_softmax(merged_logits[:, :common])
    log_p = log_softmax(expert_logits[:, :common])
    own = log_softmax(merged_logits)
    return {
        "loss": float(-own[np.arange(len(targets)), targets].mean()),
        "kl": float(_p_log(log_p, log_p - log_q).sum(axis=1).mean()),
        "agreement": float((log_q.argmax(axis=1) == log_p.argmax(axis=1)).mean()),
    }


def bias(z: Array, y: Array) -> dict[str, Array]:
    """Drift of z from y, both (n, d), per token (n,).

    `l1`: mean absolute difference over dimensions (section 1); `relative`: summed absolute
    difference over the summed magnitude of y; `cosine`: cosine similarity of z and y.
    """
    gap = np.abs(z - y)
    norms = np.sqrt((z**2).sum(axis=1) * (y**2).sum(axis=1))
    return {
        "l1": gap.mean(axis=1),
        "relative": gap.sum(axis=1) / np.abs(y).sum(axis=1),
        "cosine": (z * y).sum(axis=1) / norms,
    }
