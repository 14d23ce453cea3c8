"""Pre-flight of the cost: memory, disk and time against what the machine has."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from surgekit.findings import Finding
from surgekit.models.loading import is_plain_folder
from surgekit.models.source import gguf_path, split_lora_folder
from surgekit.pipeline.models import source_files
from surgekit.pipeline.prompts import DomainPrompts
from surgekit.recipe import Recipe
from surgekit.states.prompts import Prompt

_CHARACTERS_PER_TOKEN = 3.5


def check_cost(recipe: Recipe, domains: dict[str, DomainPrompts]) -> list[Finding]:
    """Rough sizes: disk for what a run writes, memory for one model at a time."""
    weights = sum(p.stat().st_size for p in source_files(recipe.base))
    gguf = gguf_path(split_lora_folder(recipe.base)) is not None
    # GGUF blocks unpack to two bytes a weight from about half a byte (4 bits) to one (8 bits).
    model_bytes = weights * 4 if gguf else weights
    written = sum(
        not is_plain_folder(s)
        for s in (recipe.base, *(d.expert.over(recipe.base) for d in recipe.domains.values()))
    )
    written += recipe.merged_folder is None
    characters = {
        name: {split: sum(len(_text(p)) for p in items) for split, items in prompts.splits.items()}
        for name, prompts in domains.items()
    }
    tokens = int(
        sum(
            counts["calibration"] * 2 + counts["validation"] * 2 + counts["test"] * 3
            for counts in characters.values()
        )
        / _CHARACTERS_PER_TOKEN
    )
    # A forward pass takes two operations a weight and token; about a third of the processor's
    # matrix speed is reached, and the judging of methods takes as long again.
    minutes = 2 * 2 * (model_bytes / 2) * tokens / (_matrix_speed() / 3) / 60
    # Twice the weights while a model is loaded or merged, and the interpreter with torch.
    memory = 2 * model_bytes + (1 << 30)
    disk = model_bytes * written
    findings = [
        Finding(
            "note",
            f"about {tokens:,} tokens to run through models, {disk / 2**30:.1f} GiB to write, "
            f"{memory / 2**30:.1f} GiB of memory, {_span(minutes)} on this processor "
            "(rough estimates)",
        )
    ]
    free = shutil.disk_usage(Path.cwd()).free
    if disk > free:
        findings.append(
            Finding(
                "warning",
                f"about {disk / 2**30:.1f} GiB will be written, {free / 2**30:.1f} GiB are free",
            )
        )
    import psutil

    total = psutil.virtual_memory().total
    if memory > total:
        findings.append(
            Finding(
                "warning",
                f"about {memory / 2**30:.1f} GiB of memory may be needed, this machine has "
                f"{total / 2**30:.1f} GiB",
            )
        )
    return findings


def _matrix_speed() -> float:
    """Operations a second of a bfloat16 matrix product here, measured in a moment."""
    import torch

    a, b = torch.ones(1024, 576, dtype=torch.bfloat16), torch.ones(576, 576, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        for _ in range(8):
            torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return 8 * 2 * 1024 * 576 * 576 / best


def _span(minutes: float) -> str:
    if minutes < 1:
        return "under a minute"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _text(prompt: Prompt) -> str:
    turns, response = prompt.turns()
    return "".join(t["content"] for t in turns) + (response or "")
