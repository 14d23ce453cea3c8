"""Surgery modules: the correction of one domain's last hidden states.

With z the merged model's state, t its position, b_t and p_t rows of the position table:

    standard    z − U·ReLU(D·z)                                   (Yang et al. 2024)
    darts       z − U·ReLU(D·z) − b_t                             (DARTS)
    add         z − U·ReLU(D·(z + p_t))
    parallel    z − U·ReLU(D·z) − U₂·ReLU(D₂·p_t)
    mean-shift  z − s
    table       z − b_t
    linear      A·z + c, kept as A − I (whole, or as left·right of a rank) and c

Positions outside the table (t ≥ T_max, or negative: padding) get no position part.
The names are the paper's; the formulas of standard, add and parallel are this project's reading
of it, and docs/method.md says which is which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surgekit.errors import MismatchError
from surgekit.surgery.config import POSITIONAL, SurgeryConfig


class SurgeryModule(nn.Module):
    """One domain's correction: ``module(hidden, position_ids)`` gives the corrected states.

    Args:
        config: its form and sizes.
        seed: of the initial weights; every form but ``parallel`` starts as the identity in its
            content and position parts (``parallel`` too, by a zero U₂).

    Attributes:
        config: as given.
        record: how it was made: tokens per position, losses, ridge (empty before calibration).

    Example:
        >>> module = SurgeryModule(SurgeryConfig(module="darts", hidden_size=8, rank=2))
        >>> corrected = module(torch.randn(2, 5, 8), torch.arange(5).expand(2, 5))
        >>> corrected.shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, config: SurgeryConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.record: dict[str, Any] = {}
        generator = torch.Generator().manual_seed(seed)
        for name, shape in tensor_shapes(config).items():
            self.register_parameter(name, nn.Parameter(_initial(config, name, shape, generator)))

    def forward(self, hidden: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Correct hidden states.

        Args:
            hidden: (…, T, d) in any floating type; computed in float32 or wider.
            position_ids: (…, T) integers, or anything that broadcasts to it: the index of each
                token among the real tokens of its sequence. May be None for modules that have no
                position part.

        Returns:
            (…, T, d) in the type of ``hidden``.

        Raises:
            MismatchError: another width, or positions missing.
        """
        if hidden.shape[-1] != self.config.hidden_size:
            raise MismatchError(
                f"this surgery module corrects states of width {self.config.hidden_size}, "
                f"found {hidden.shape[-1]}"
            )
        if position_ids is None and self.config.module in POSITIONAL:
            raise MismatchError(f"module {self.config.module} needs position_ids")
        kind = torch.promote_types(hidden.dtype, torch.float32)
        weights = {n: p.to(kind) for n, p in self.named_parameters() if n != "table"}
        rows = None
        if position_ids is not None and self.config.module in POSITIONAL:
            # Rows first, cast after: at decoding the table is far larger than the step.
            rows = table_rows(self.get_parameter("table"), position_ids).to(kind)
        z = hidden.to(kind)
        return (z - _CORRECTIONS[self.config.module](weights, z, rows)).to(hidden.dtype)

    def parameter_count(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.parameters())

    def tensor_bytes(self) -> int:
        """Bytes of the tensors as stored."""
        return sum(p.numel() * p.element_size() for p in self.parameters())

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return ", ".join(f"{k}={v}" for k, v in self.config.model_dump(exclude_none=True).items())


def tensor_shapes(config: SurgeryConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a module's tensors, in the order they are initialised and stored."""
    d, r, t = config.hidden_size, config.rank or 0, config.max_positions or 0
    low_rank = {"down": (r, d), "up": (d, r)}
    table = {"table": (t, d)}
    forms: dict[str, dict[str, tuple[int, ...]]] = {
        "standard": low_rank,
        "darts": low_rank | table,
        "add": low_rank | table,
        "parallel": low_rank | table | {"down2": (r, d), "up2": (d, r)},
        "mean-shift": {"shift": (d,)},
        "table": table,
        "linear": ({"left": (d, r), "right": (r, d)} if r else {"weight": (d, d)})
        | {"offset": (d,)},
    }
    return forms[config.module]


def table_rows(table: Tensor, position_ids: Tensor) -> Tensor:
    """(…, d) the table's row of each position, zero where the table has none."""
    count = table.shape[0]
    positions = position_ids.to(table.device)
    inside = (positions >= 0) & (positions < count)
    rows = F.embedding(positions.clamp(0, count - 1), table)
    return torch.where(
        inside[..., None], rows, torch.zeros((), dtype=rows.dtype, device=rows.device)
    )


def _initial(
    config: SurgeryConfig, name: str, shape: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    if name in ("down", "down2"):
        weight = torch.empty(shape)
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
        return weight
    if config.module == "parallel" and name == "table":
        # At zero, p, D₂ and U₂ would all be without gradient.
        return torch.randn(shape, generator=generator) * 0.02
    return torch.zeros(shape)


Weights = Mapping[str, Tensor]


def _low_rank(w: Weights, z: Tensor) -> Tensor:
    return F.linear(F.relu(F.linear(z, w["down"])), w["up"])


def _standard(w: Weights, z: Tensor, rows: Tensor | None) -> Tensor:
    return _low_rank(w, z)


def _darts(w: Weights, z: Tensor, rows: Tensor | None) -> Tensor:
    assert rows is not None
    return _low_rank(w, z) + rows


def _add(w: Weights, z: Tensor, rows: Tensor | None) -> Tensor:
    assert rows is not None
    return _low_rank(w, z + rows)


def _parallel(w: Weights, z: Tensor, rows: Tensor | None) -> Tensor:
    assert rows is not None
    return _low_rank(w, z) + F.linear(F.relu(F.linear(rows, w["down2"])), w["up2"])


def _mean_shift(w: Weights, z: Tensor, rows: Tensor | None) -> Tensor:
    return w["shift"]


def _table(w: Weights, z: Tensor, rows: Tensor | None) -> Tensor:
    assert rows is not None
    return rows


def _linear(w: Weights, z: Tensor, rows: Tensor | None) -> Tensor:
    if "weight" in w:
        return -F.linear(z, w["weight"], w["offset"])
    return -F.linear(F.linear(z, w["right"]), w["left"], w["offset"])


_CORRECTIONS: dict[str, Callable[[Weights, Tensor, Tensor | None], Tensor]] = {
    "standard": _standard,
    "darts": _darts,
    "add": _add,
    "parallel": _parallel,
    "mean-shift": _mean_shift,
    "table": _table,
    "linear": _linear,
}
