"""Random surgery modules, and what they must do to a model's logits, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from surgekit.surgery.config import SurgeryConfig
from surgekit.surgery.modules import SurgeryModule

from .oracle import Array, correct
from .tiny import HIDDEN

TABLE = 6
"""Rows of the position tables: fewer than the tests' sequences have tokens."""

FORMS: dict[str, dict[str, Any]] = {
    "standard": {"module": "standard", "rank": 4},
    "darts": {"module": "darts", "rank": 4, "max_positions": TABLE},
    "add": {"module": "add", "rank": 4, "max_positions": TABLE},
    "parallel": {"module": "parallel", "rank": 4, "max_positions": TABLE},
    "mean-shift": {"module": "mean-shift"},
    "table": {"module": "table", "max_positions": TABLE},
    "linear": {"module": "linear"},
    "linear-cut": {"module": "linear", "rank": 4},
}
"""Every form of a correction, small."""


def surgery(
    form: str = "darts",
    seed: int = 0,
    *,
    hidden: int = HIDDEN,
    dtype: torch.dtype = torch.float32,
    **record: Any,
) -> SurgeryModule:
    """A module whose every tensor is random and large enough to change most logits."""
    module = SurgeryModule(SurgeryConfig(hidden_size=hidden, **FORMS[form]))
    generator = torch.Generator().manual_seed(100 + seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    module.record = record
    return module.to(dtype)


def corrected_by_hand(module: SurgeryModule, hidden: Tensor, positions: Any) -> Array:
    """(B, T, d) float64 states: the formulas of the oracle, fed with the module's tensors."""
    params = {n: p.detach().double().numpy() for n, p in module.named_parameters()}
    if "left" in params:
        params["weight"] = params.pop("left") @ params.pop("right")
    flat = hidden.detach().double().numpy()
    places = np.broadcast_to(np.asarray(positions), flat.shape[:-1])
    moved = correct(module.config.module, params, flat.reshape(-1, flat.shape[-1]), places.ravel())
    return moved.reshape(flat.shape)


@torch.no_grad()
def uncorrected(model: Any, **call: Any) -> Tensor:
    """(B, T, d) what the bare model's body gives; nothing may be attached to it."""
    assert not model.model._forward_hooks, "the reference needs a model without hooks"
    seen: list[Tensor] = []
    hook = model.model.register_forward_hook(lambda m, a, out: seen.append(out.last_hidden_state))
    try:
        model(**call)
    finally:
        hook.remove()
    return seen[0]


def logits_by_hand(model: Any, module: SurgeryModule | None, positions: Any, **call: Any) -> Tensor:
    """(B, T, V) float64 logits that ``model(**call)`` must give with ``module`` attached."""
    hidden = uncorrected(model, **call)
    states = hidden.double().numpy()
    if module is not None:
        states = corrected_by_hand(module, hidden, positions)
    return torch.from_numpy(states @ model.lm_head.weight.detach().double().numpy().T)


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    """(rows, length) random ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, length), generator=generator)


def left_padded(rows: list[Tensor], pad: int = 258) -> dict[str, Tensor]:
    """One batch of rows (length,) of different lengths, padded on the left, with its mask."""
    width = max(len(r) for r in rows)
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros_like(ids)
    for k, row in enumerate(rows):
        ids[k, width - len(row) :] = row
        mask[k, width - len(row) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    """Assert agreement within float32's rounding; logits here are of size 1 to 10."""
    assert found.shape == expected.shape
    worst = float((found.double() - expected.double()).abs().max())
    assert worst < tolerance, f"off by {worst:.2e}"
