"""A small world of models and prompts, recipes on it, and runs that can be watched."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from surgekit.pipeline.progress import Reporter
from surgekit.pipeline.run import run_recipe
from surgekit.recipe import Recipe, parse_recipe
from surgekit.states.states import load_states

from .tiny import checkpoint, jsonl, llama, prompts, shifted

SPLITS = ("calibration", "validation", "test")
DOMAINS = ("math", "code")


def make_world(root: Path) -> Path:
    """``base``, the experts ``math`` and ``code``, and ten prompts for each of their splits."""
    base = llama(0)
    checkpoint(root / "base", base)
    for seed, name in enumerate(DOMAINS, 1):
        checkpoint(root / name, shifted(base, seed, 0.3))
        for split in SPLITS:
            jsonl(root / "data" / name / f"{split}.jsonl", prompts(10, f"{name} {split}"))
    jsonl(root / "data" / "plain.jsonl", [{"prompt": f"plain text number {i}"} for i in range(4)])
    return root


def document(**changes: Any) -> dict[str, Any]:
    """The recipe of the small world as a mapping; ``changes`` replace its keys (None: without)."""
    domains = {
        name: {"expert": f"./{name}"} | {s: f"data/{name}/{s}.jsonl" for s in SPLITS}
        for name in DOMAINS
    }
    made: dict[str, Any] = {
        "base": "./base",
        "domains": domains,
        "merge": {
            "merge_method": "task_arithmetic",
            "parameters": {"lambda": 0.5},
            "dtype": "float32",
        },
        "surgery": [
            {"module": "darts", "loss": "ewl1", "iterations": 4, "rank": 4},
            {"module": "linear"},
        ],
        "seeds": [0, 1],
        "dtype": "float32",
    }
    made = copy.deepcopy(made | changes)
    return {k: v for k, v in made.items() if v is not None}


def recipe(root: Path, **changes: Any) -> Recipe:
    return parse_recipe(yaml.safe_dump(document(**changes), sort_keys=False), root)


class Watch(Reporter):
    """Notes which stages were done and which reused; can interrupt at the n-th thing it is told."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.done: list[str] = []
        self.reused: list[str] = []
        self.notes: list[str] = []
        self.told = 0
        self._interrupt_at = interrupt_at

    def _tick(self) -> None:
        self.told += 1
        if self.told == self._interrupt_at:
            raise KeyboardInterrupt

    def stage(self, name: str, *, reused: bool) -> None:
        (self.reused if reused else self.done).append(name)
        self._tick()

    def start(self, label: str, total: int) -> None:
        self._tick()

    def advance(self, steps: int = 1) -> None:
        self._tick()

    def finish(self) -> None:
        self._tick()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._tick()


def watched(recipe: Recipe, out: Path) -> tuple[dict[str, Any], Watch]:
    """(results, what was done) of a run."""
    watch = Watch()
    return run_recipe(recipe, out, reporter=watch), watch


def adapters(out: Path) -> dict[str, str]:
    """Digest of each adapter's tensors, by path within ``adapters``."""
    return {
        str(p.parent.relative_to(out / "adapters")): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted((out / "adapters").rglob("*.safetensors"))
    }


def stamps(out: Path) -> dict[str, int]:
    """When each file of a run's stages was last written."""
    return {
        str(p.relative_to(out)): p.stat().st_mtime_ns
        for part in ("adapters", "states", "merged", "models", "stages")
        for p in sorted((out / part).rglob("*"))
        if p.is_file()
    }


def figures(results: dict[str, Any], out: Path) -> dict[str, Any]:
    """The results less what may differ between two runs: times, memory, machine, their folder."""
    changing = ("timing", "peak_memory_bytes", "environment", "recipe_sha256")
    kept = {k: v for k, v in results.items() if k not in changing}
    return json.loads(json.dumps(kept).replace(str(out), "RUN"))


def leftovers(out: Path) -> list[str]:
    """What was written beside its place and not moved there."""
    return [str(p) for p in out.rglob(".*") if ".part-" in p.name or ".old-" in p.name]


def sound(out: Path) -> None:
    """Nothing half-written lies about: what is there can be read."""
    assert leftovers(out) == []
    for path in out.rglob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))
    for path in (out / "states").rglob("*.safetensors"):
        if path.parent.name != "heads":
            load_states(path)
