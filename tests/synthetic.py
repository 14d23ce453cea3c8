"""Random states, heads and modules, each also as the float64 arrays that the oracle takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surgekit.models.anatomy import Head
from surgekit.states.prompts import TokenizedPrompts, pack_tokens
from surgekit.states.states import States
from surgekit.surgery.config import CalibrationConfig, SurgeryConfig
from surgekit.surgery.fit import calibrate
from surgekit.surgery.modules import SurgeryModule

from . import oracle
from .oracle import Array, Ints

FORMS: list[tuple[str, int | None]] = [
    ("standard", 3),
    ("darts", 3),
    ("add", 3),
    ("parallel", 3),
    ("mean-shift", None),
    ("table", None),
    ("linear", None),
    ("linear", 3),
]
"""Every module with a rank; linear both whole and cut."""
TRAINED = ["standard", "darts", "add", "parallel", "mean-shift", "table"]
"""Modules that take a loss."""


def numbers(tensor: Tensor) -> Array:
    """The exact values of a tensor in float64."""
    return tensor.detach().double().numpy()


def whole(tensor: Tensor) -> Ints:
    """An integer tensor as an array."""
    return tensor.to(torch.int64).numpy()


def config(name: str, d: int, rank: int | None = None, positions: int = 6) -> SurgeryConfig:
    """A small form of the module."""
    rows = positions if "table" in oracle.MODULES[name] else None
    return SurgeryConfig.model_validate(
        {"module": name, "hidden_size": d, "rank": rank, "max_positions": rows}
    )


def random_module(
    name: str, d: int, rank: int | None = None, *, positions: int = 6, seed: int = 0
) -> SurgeryModule:
    """A module in float64 none of whose tensors is left at its start."""
    module = SurgeryModule(config(name, d, rank, positions)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
    return module


def parameters(module: SurgeryModule) -> dict[str, Array]:
    """The parameters under the oracle's names, a cut linear map multiplied out."""
    found = {name: numbers(p) for name, p in module.named_parameters()}
    if "left" in found:
        found["weight"] = found.pop("left") @ found.pop("right")
    return found


def heads(d: int, vocabulary: int, *, full: bool, seed: int = 0) -> tuple[Head, oracle.Head]:
    """A head in float64 and the oracle's; ``full``: with bias, scale and soft cap."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(vocabulary, d))
    bias = rng.normal(size=vocabulary) if full else None
    scale, softcap = (0.7, 3.0) if full else (1.0, None)
    ours = Head(
        torch.from_numpy(weight), None if bias is None else torch.from_numpy(bias), scale, softcap
    )
    return ours, oracle.Head(weight, bias, scale, softcap)


def tokens(
    lengths: Sequence[int], starts: Sequence[int] | None = None, *, vocabulary: int = 20
) -> TokenizedPrompts:
    """Random sequences; without ``starts`` none has a response."""
    rng = np.random.default_rng(7)
    rows = [rng.integers(0, vocabulary, size=n).tolist() for n in lengths]
    return pack_tokens(rows, list(lengths) if starts is None else starts)


def pair(
    text: TokenizedPrompts,
    d: int,
    *,
    seed: int = 0,
    drift: float = 0.1,
    noise: float = 0.05,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[States, States]:
    """(merged, expert): the merged states drift with position and content, plus noise."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    expert = normal(len(text.ids), d)
    rows = normal(int(text.offsets.diff().max()), d) * drift
    content = expert @ (normal(d, d) * drift / d**0.5)
    merged = expert + rows[text.positions()] + content + noise * normal(len(text.ids), d)
    entropies = normal(len(text.ids)).exp().float()
    return (
        States(merged.to(dtype), text, model="merged"),
        States(expert.to(dtype), text, entropies, model="expert"),
    )


def arrays(merged: States, expert: States, text: str = "both") -> tuple[Array, Array, Ints, Ints]:
    """(z, y, positions, offsets) of the tokens of a text, found by a loop over the prompts."""
    chosen: list[int] = []
    offsets = [0]
    ends = merged.tokens.offsets.tolist()
    for start, stop, first in zip(
        ends[:-1], ends[1:], merged.tokens.response_starts.tolist(), strict=True
    ):
        length = stop - start
        if text == "both":
            here = list(range(length))
        elif text == "prompt":
            here = list(range(first))
        else:
            here = list(range(first - 1, length - 1)) if first < length else []
        chosen += [start + t for t in here]
        if here:
            offsets.append(len(chosen))
    index = torch.tensor(chosen)
    return (
        numbers(merged.hidden[index]),
        numbers(expert.hidden[index]),
        whole(merged.tokens.positions()[index]),
        np.array(offsets),
    )


def fit_states() -> tuple[States, States]:
    """Six prompts of width 8, two of them (1 and 5) without a response."""
    return pair(tokens([9, 4, 7, 3, 8, 5], [5, 4, 2, 1, 3, 5]), 8, drift=0.3)


def rank_of(name: str) -> int | None:
    """A small rank for modules that have one."""
    return 3 if "down" in oracle.MODULES[name] else None


def calibrated(name: str, *, head: Head | None = None, **settings: Any) -> SurgeryModule:
    """A module calibrated on ``fit_states`` with these settings, for the domain math."""
    chosen = CalibrationConfig.model_validate({"iterations": 30, "learning_rate": 1e-2} | settings)
    form = config(name, 8, rank_of(name))
    return calibrate(*fit_states(), form, calibration=chosen, head=head, domain="math")


def digest(module: SurgeryModule) -> str:
    """Of the bits of a bfloat16 module."""
    made = hashlib.sha256()
    for name, value in sorted(module.named_parameters()):
        made.update(name.encode() + value.detach().view(torch.int16).numpy().tobytes())
    return made.hexdigest()
