"""Is an expert worth anything: its loss on its own domain beside the base's and the merge's.

Surgery moves the merged model towards its expert. Where the expert is no better than what it was
tuned from, or worse than the merge already, that makes the domain worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from surgekit.errors import InputError
from surgekit.fidelity import scored_tokens
from surgekit.models.anatomy import Head
from surgekit.pipeline.capturing import StateStore
from surgekit.pipeline.run_directory import RunDirectory
from surgekit.states.states import States
from surgekit.statistics import Array, ratio_interval

_TOKENS = 128


@torch.no_grad()
def prompt_losses(states: States, head: Head) -> tuple[Array, Array]:
    """(sum of the losses in nats of its judged tokens, their number) of each prompt with any.

    The tokens judged are those of ``scored_tokens``; the loss is that of ``measure_fidelity``.

    Raises:
        InputError: a token that the head does not know.
    """
    index = scored_tokens(states.tokens).nonzero()[:, 0]
    targets = states.tokens.targets()[index]
    if len(index) and int(targets.max()) >= head.vocabulary:
        raise InputError(
            f"token id {int(targets.max())} is outside a vocabulary of {head.vocabulary}"
        )
    ready = head.prepared()
    losses = torch.empty(len(index), dtype=torch.float64)
    for start in range(0, len(index), _TOKENS):
        part = slice(start, start + _TOKENS)
        logits = ready.logits(states.hidden[index[part]])
        own = logits.gather(-1, targets[part, None])[:, 0]
        losses[part] = (logits.logsumexp(-1) - own).double()
    counts = states.tokens.offsets.diff()
    owner = torch.arange(len(counts)).repeat_interleave(counts)[index]
    sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, owner, losses)
    numbers = torch.bincount(owner, minlength=len(counts))
    judged = numbers > 0
    return sums[judged].numpy(), numbers[judged].double().numpy()


def compare_losses(losses: Mapping[str, tuple[Array, Array]]) -> dict[str, Any]:
    """An expert's loss beside those of other models on the same tokens.

    Args:
        losses: ``expert`` and others, from ``prompt_losses``.

    Returns:
        {"prompts", "tokens", "loss": {model: mean over tokens}, "difference": {other: {"mean":
        the expert's mean loss less the other's, "interval": 95 %, bootstrap over prompts, or
        None}}}.

    Raises:
        InputError: nothing to judge.
    """
    sums, numbers = losses["expert"]
    tokens = float(numbers.sum())
    if not tokens:
        raise InputError("no token to score (are all prompts a single token?)")
    return {
        "prompts": len(numbers),
        "tokens": int(tokens),
        "loss": {name: float(top.sum() / tokens) for name, (top, _) in losses.items()},
        "difference": {
            other: {
                "mean": float((sums - top).sum() / tokens),
                "interval": ratio_interval(sums - top, numbers),
            }
            for other, (top, _) in losses.items()
            if other != "expert"
        },
    }


def expert_warnings(compared: Mapping[str, Any]) -> list[str]:
    """What is to be said of an expert by ``compare_losses``: only what its intervals bear out."""
    said: list[str] = []
    losses = compared["loss"]
    for other, consequence in (
        (
            "base",
            "surgery would pull the merged model towards it; is it the expert of this domain?",
        ),
        ("merged", "there is nothing to repair in this domain"),
    ):
        interval = compared["difference"].get(other, {}).get("interval")
        if interval is not None and interval[0] > 0:
            name = "the merged model" if other == "merged" else "the base"
            said.append(
                f"the expert's loss on its own domain is {losses['expert']:.3f}, that of {name} "
                f"{losses[other]:.3f} (more by {interval[0]:.3f} to {interval[1]:.3f}, 95 % "
                f"interval, {compared['prompts']} prompts); {consequence}"
            )
    return said


def check_expert(run: RunDirectory, store: StateStore, domain: str) -> Any:
    """Compare an expert with base and merged model on the validation prompts; tell what is wrong.

    Returns:
        As ``compare_losses``, with ``"split"`` and ``"warnings"``.
    """
    models = {"expert": domain, "base": "base", "merged": "merged"}
    inputs = {
        "states": [store.identities[f"{domain}/validation/{m}"] for m in models.values()],
    }

    def work() -> dict[str, Any]:
        losses: dict[str, tuple[Array, Array]] = {}
        for name, model in models.items():
            states = store.load(domain, "validation", model)
            try:
                losses[name] = prompt_losses(states, store.head(model))
            except InputError as error:
                raise type(error)(f"{domain}, {model}: {error}") from error
        compared = compare_losses(losses)
        warnings = expert_warnings(compared)
        return {"split": "validation", **compared, "warnings": warnings}

    result = run.stage(f"experts/{domain}", inputs, [], work)
    for warning in result["warnings"]:
        run.reporter.note(f"warning: {domain}: {warning}")
    return result
