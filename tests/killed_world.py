"""The small world for processes that are killed, and runs in it that nobody disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .killing import Outcome, Server, serving
from .runs import document, make_world, recipe
from .sources import lora
from .tiny import llama


@dataclass(frozen=True)
class World:
    """The small world with a LoRA for an expert, a server, and runs that nobody disturbed.

    Attributes:
        root: where the models and prompts lie.
        server: forks what is to be killed.
        whole: the undisturbed run directory, by the recipe's name.
        outcome: how that run went.
    """

    root: Path
    server: Server
    whole: dict[str, Path]
    outcome: dict[str, Outcome]

    def job(self, out: Path, name: str = "first", **how: Any) -> dict[str, Any]:
        return self.server.recipe(self.root, out, CHANGES[name]) | how

    def run(self, out: Path, name: str = "first", **how: Any) -> Outcome:
        (ended,) = self.server.run(self.job(out, name, **how))
        return ended


def _changes(iterations: int) -> dict[str, Any]:
    made = document()
    made["domains"]["code"]["expert"] = {"lora": "./lora"}
    made["surgery"][0]["iterations"] = iterations
    made["plain_text"] = "data/plain.jsonl"
    return {k: made[k] for k in ("domains", "surgery", "plain_text")}


CHANGES = {"first": _changes(4), "second": _changes(5), "long": _changes(150)}


@contextmanager
def killable_world(folder: Path, *names: str) -> Iterator[World]:
    """The world in a folder, with the undisturbed runs of these recipes."""
    root = make_world(folder / "world")
    lora(root / "lora", llama(0))
    (folder / "logs").mkdir()
    with serving(folder / "logs") as server:
        made = World(root, server, {}, {})
        for name in names:
            made.whole[name] = root / name
            made.outcome[name] = made.run(root / name, name)
            assert made.outcome[name].status == 0, made.outcome[name].said
        yield made


def recipe_file(world: World, path: Path, name: str) -> Path:
    made = recipe(world.root, **CHANGES[name]).model_dump(mode="json", exclude_none=True)
    path.write_text(yaml.safe_dump(made, sort_keys=False))
    return path
