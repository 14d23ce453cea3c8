"""Calibrating a surgery module on stored states: by Adam, or in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from surgekit.errors import InputError, MismatchError, NotFiniteError
from surgekit.models.anatomy import Head
from surgekit.states.states import States, check_same_tokens
from surgekit.surgery.closed_form import LinearProblem, fit_linear, fit_mean_shift
from surgekit.surgery.config import CalibrationConfig, SurgeryConfig
from surgekit.surgery.losses import ce_loss, entropy_weights, kl_loss, l1_loss
from surgekit.surgery.modules import SurgeryModule


def calibrate(
    merged_states: States,
    expert_states: States,
    config: SurgeryConfig,
    *,
    calibration: CalibrationConfig | None = None,
    head: Head | None = None,
    domain: str = "",
    device: str | torch.device = "cpu",
    progress: Callable[[int, float], None] | None = None,
) -> SurgeryModule:
    """Fit one domain's surgery module: the merged model's states toward its expert's.

    Args:
        merged_states: of the merged model on the calibration prompts.
        expert_states: of the expert on the same tokens, with entropies where they are weighted by.
        config: form and sizes of the module.
        calibration: loss, text, optimiser, seed; the defaults are DARTS' training.
        head: the merged model's head, for the losses ``kl`` and ``ce``.
        domain: named in messages.
        device: where to compute.
        progress: called with (iteration, loss) after each iteration.

    Returns:
        The module in bfloat16, as it is stored, with its ``record`` filled in. The same states
        and seed give the same bits on one machine.

    Raises:
        MismatchError: states of different tokens, or of another width than the module's.
        InputError: no tokens of the text asked for, no head or entropies.
        NotFiniteError: NaN or infinity in states or loss; names domain and iteration.
    """
    calibration = calibration or CalibrationConfig()
    name = domain or "surgery"
    check_same_tokens(merged_states, expert_states, name)
    if merged_states.hidden_size != config.hidden_size:
        raise MismatchError(
            f"{name}: config has hidden_size {config.hidden_size}, the states have "
            f"{merged_states.hidden_size}"
        )
    try:
        loss_name = calibration.loss_for(config.module)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error
    data = _Data.select(merged_states, expert_states, calibration, name).to(torch.device(device))
    module = SurgeryModule(config, calibration.seed).to(device)
    record: dict[str, object] = {
        "prompts": len(data.offsets) - 1,
        "tokens": len(data.merged),
        "tokens_per_position": torch.bincount(data.positions.cpu()).tolist(),
        "loss": loss_name,
        "calibration": calibration.model_dump(exclude={"loss"}),
        "merged_fingerprint": merged_states.model,
        "expert_fingerprint": expert_states.model,
    }
    if loss_name is not None:
        record |= _train(module, data, loss_name, calibration, head, name, progress)
    elif config.module == "linear":
        record |= _solve_linear(module, data, calibration, name)
    else:
        _assign(module, "shift", fit_mean_shift(data.merged, data.expert))
    # As it is stored: float32's greatest numbers are infinite in bfloat16.
    module = module.to(device="cpu", dtype=torch.bfloat16).requires_grad_(False)
    if not all(bool(p.isfinite().all()) for p in module.parameters()):
        raise NotFiniteError(f"{name}: the fitted {config.module} has NaN or infinite weights")
    module.record = record
    return module


def grown_loss(record: Mapping[str, object]) -> str | None:
    """What to say of a training that ended worse than it began, None of any other.

    Args:
        record: of a module, or what a run keeps of it: ``first_loss`` and ``last_loss``.
    """
    first, last = record.get("first_loss"), record.get("last_loss")
    if not isinstance(first, float) or not isinstance(last, float) or last <= first:
        return None
    return (
        f"the loss rose from {first:.4g} to {last:.4g}, so the module is worse than none; lower "
        "the learning rate"
    )


@dataclass(frozen=True)
class _Data:
    """The tokens used, prompt by prompt: (n, d) states in float32, positions, entropies."""

    merged: Tensor
    expert: Tensor
    positions: Tensor
    offsets: Tensor
    entropies: Tensor | None

    @classmethod
    def select(
        cls, merged: States, expert: States, calibration: CalibrationConfig, name: str
    ) -> _Data:
        mask = merged.mask(calibration.text)
        if not bool(mask.any()):
            raise InputError(
                f"{name}: calibration text is {calibration.text!r}, but the prompts have no such "
                "tokens (do they have a 'response'?); use text: prompt"
            )
        for states, whose in ((merged, "merged model"), (expert, "expert")):
            if not bool(states.hidden[mask].isfinite().all()):
                raise NotFiniteError(f"{name}: NaN or infinite states of the {whose}")
        owner = torch.arange(len(merged.tokens)).repeat_interleave(merged.tokens.offsets.diff())
        counts = torch.bincount(owner[mask], minlength=len(merged.tokens))
        counts = counts[counts > 0]
        entropies = None if expert.entropies is None else expert.entropies[mask]
        if entropies is not None and not bool(entropies.isfinite().all()):
            raise NotFiniteError(f"{name}: NaN or infinite entropies of the expert")
        return cls(
            merged.hidden[mask].float(),
            expert.hidden[mask].float(),
            merged.tokens.positions()[mask],
            torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            entropies,
        )

    def to(self, device: torch.device) -> _Data:
        moved = None if self.entropies is None else self.entropies.to(device)
        return _Data(
            self.merged.to(device),
            self.expert.to(device),
            self.positions.to(device),
            self.offsets.to(device),
            moved,
        )

    def weights(self, calibration: CalibrationConfig, name: str) -> Tensor:
        """(n,) entropy weights over all tokens used."""
        if self.entropies is None:
            raise InputError(
                f"{name}: entropy weights need the expert's entropies; "
                "capture the expert with entropies=True"
            )
        try:
            return entropy_weights(self.entropies, self.offsets, calibration.entropy_mean)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error

    def batches(self, size: int, seed: int) -> Iterator[Tensor]:
        """Endless batches of token indices; each prompt once an epoch, rests carried over."""
        generator = torch.Generator().manual_seed(seed)
        bounds = self.offsets.tolist()
        rows = [
            torch.arange(a, b, device=self.offsets.device)
            for a, b in zip(bounds[:-1], bounds[1:], strict=True)
        ]
        waiting: list[int] = []
        size = min(size, len(rows))
        while True:
            while len(waiting) < size:
                waiting += torch.randperm(len(rows), generator=generator).tolist()
            chosen, waiting = waiting[:size], waiting[size:]
            yield torch.cat([rows[i] for i in chosen])


def _train(
    module: SurgeryModule,
    data: _Data,
    loss_name: str,
    calibration: CalibrationConfig,
    head: Head | None,
    name: str,
    progress: Callable[[int, float], None] | None,
) -> dict[str, object]:
    loss_of = _loss_function(data, loss_name, calibration, head, name)
    optimizer = torch.optim.Adam(
        module.parameters(), lr=calibration.learning_rate, betas=(0.9, 0.999)
    )
    everything = torch.arange(len(data.merged), device=data.merged.device)
    with torch.no_grad():
        first = float(loss_of(module(data.merged, data.positions), everything))
    batches = data.batches(calibration.batch_size, calibration.seed)
    for iteration in range(1, calibration.iterations + 1):
        index = next(batches)
        loss = loss_of(module(data.merged[index], data.positions[index]), index)
        value = float(loss.detach())
        if not torch.isfinite(loss.detach()):
            raise NotFiniteError(
                f"{name}: the {loss_name} loss is {value} at iteration {iteration}; "
                "check the states, or lower the learning rate"
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if progress is not None:
            progress(iteration, value)
    with torch.no_grad():
        last = float(loss_of(module(data.merged, data.positions), everything))
    if not math.isfinite(last):
        # No later iteration is there to meet what the last step has done.
        raise NotFiniteError(
            f"{name}: the {loss_name} loss is {last} after iteration {calibration.iterations}; "
            "lower the learning rate"
        )
    return {"first_loss": first, "last_loss": last}


def _loss_function(
    data: _Data, loss_name: str, calibration: CalibrationConfig, head: Head | None, name: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """loss(corrected states of the tokens at index, index) → scalar."""
    if loss_name == "l1":
        return lambda corrected, index: l1_loss(corrected, data.expert[index])
    if loss_name == "ewl1":
        weights = data.weights(calibration, name)
        if calibration.entropy_mean != "batch":
            return lambda corrected, index: l1_loss(corrected, data.expert[index], weights[index])
        entropies = cast(Tensor, data.entropies)

        def batch_weighted(corrected: Tensor, index: Tensor) -> Tensor:
            own = entropy_weights(entropies[index], data.offsets, "batch")
            return l1_loss(corrected, data.expert[index], own)

        return batch_weighted
    if head is None:
        raise InputError(f"{name}: loss {loss_name!r} needs the merged model's head; pass head=")
    ready = head.prepared(torch.float32, data.merged.device)
    through = kl_loss if loss_name == "kl" else ce_loss
    return lambda corrected, index: through(corrected, data.expert[index], ready)


def _solve_linear(
    module: SurgeryModule, data: _Data, calibration: CalibrationConfig, name: str
) -> dict[str, object]:
    weights = data.weights(calibration, name) if calibration.weights == "entropy" else None
    try:
        problem = LinearProblem(data.merged, data.expert, weights, data.offsets)
        fit = fit_linear(problem, calibration.ridge)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if module.config.rank is None:
        _assign(module, "weight", fit.weight)
        _assign(module, "offset", fit.offset)
    else:
        left, right, offset = problem.factors(fit.ridge, module.config.rank)
        _assign(module, "left", left)
        _assign(module, "right", right)
        _assign(module, "offset", offset)
    return {
        "ridge": fit.ridge,
        "relative_ridge": fit.relative_ridge,
        "ridge_rule": calibration.ridge,
    }


def _assign(module: SurgeryModule, name: str, value: Tensor) -> None:
    with torch.no_grad():
        module.get_parameter(name).copy_(value)
