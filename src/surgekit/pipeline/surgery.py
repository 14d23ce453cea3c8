"""Surgery stage: every method, domain and seed, each an adapter of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from surgekit.adapters.files import (
    CARD_FILE,
    TENSOR_FILE,
    is_adapter,
    load_adapter,
    save_adapter,
)
from surgekit.errors import InputError
from surgekit.models.anatomy import Head
from surgekit.models.fingerprint import digest_json
from surgekit.parsing import first_problem
from surgekit.pipeline.capturing import StateStore
from surgekit.pipeline.prompts import DomainTokens
from surgekit.pipeline.run_directory import RunDirectory
from surgekit.recipe import Method, Recipe
from surgekit.states.states import States
from surgekit.surgery.config import SurgeryConfig
from surgekit.surgery.fit import calibrate, grown_loss
from surgekit.surgery.modules import SurgeryModule


@dataclass(frozen=True)
class AdapterShelf:
    """The adapters of a run.

    Attributes:
        folders: by (domain, method id, seed).
        identities: likewise, a digest of what each was made from.
        facts: by (domain, method id, seed): parameters, bytes, losses.
    """

    folders: Mapping[tuple[str, str, int], Path]
    identities: Mapping[tuple[str, str, int], str]
    facts: Mapping[tuple[str, str, int], dict[str, Any]]

    def load(self, domain: str, method: str, seed: int) -> SurgeryModule:
        """The module as stored."""
        return load_adapter(self.folders[domain, method, seed])[0]


@dataclass
class _Shared:
    """States and head that several methods need, read once."""

    store: StateStore
    domain: str
    _states: dict[str, States] = field(default_factory=dict)
    _head: list[Head] = field(default_factory=list)

    def states(self, model: str) -> States:
        if model not in self._states:
            self._states[model] = self.store.load(self.domain, "calibration", model)
        return self._states[model]

    def head(self) -> Head:
        if not self._head:
            self._head.append(self.store.head("merged"))
        return self._head[0]


def calibrate_all(
    run: RunDirectory,
    recipe: Recipe,
    store: StateStore,
    tokens: Mapping[str, DomainTokens],
) -> AdapterShelf:
    """Calibrate every method for every domain and seed.

    The first seed's adapter lies in ``adapters/DOMAIN/METHOD``, the one to use; those of further
    seeds, made to see the spread, lie beside the methods in ``adapters/DOMAIN/.seeds/SEED``.
    """
    folders: dict[tuple[str, str, int], Path] = {}
    identities: dict[tuple[str, str, int], str] = {}
    facts: dict[tuple[str, str, int], dict[str, Any]] = {}
    methods = recipe.methods()
    run.reporter.start("surgery", len(tokens) * len(methods) * len(recipe.seeds))
    for domain, prepared in tokens.items():
        shared = _Shared(store, domain)
        for method in methods:
            for seed in recipe.seeds:
                key = (domain, method.id, seed)
                folder = adapter_folder(run, recipe, *key)
                inputs = _inputs(store, domain, method, seed, prepared.draws[seed])

                def work(
                    method: Method = method,
                    seed: int = seed,
                    folder: Path = folder,
                    shared: _Shared = shared,
                    draw: list[int] = prepared.draws[seed],
                ) -> dict[str, Any]:
                    return _calibrate_one(recipe, shared, method, seed, draw, folder)

                # Named after its folder, which another order of seeds gives to another of them.
                stage = folder.relative_to(run.path("adapters"))
                facts[key] = run.stage(f"surgery/{stage.as_posix()}", inputs, [folder], work)
                grown = grown_loss(facts[key])
                if grown is not None:
                    run.reporter.note(f"warning: adapters/{stage.as_posix()}: {grown}")
                folders[key], identities[key] = folder, digest_json(inputs)
                run.reporter.advance()
    run.reporter.finish()
    return AdapterShelf(folders, identities, facts)


def adapter_folder(run: RunDirectory, recipe: Recipe, domain: str, method: str, seed: int) -> Path:
    """Where the adapter of a (domain, method, seed) lies."""
    if seed == recipe.seeds[0]:
        return run.path("adapters", domain, method)
    return run.path("adapters", domain, ".seeds", str(seed), method)


def module_config(method: Method, hidden_size: int) -> SurgeryConfig:
    """The configuration of a method's modules; raises InputError where the width forbids it."""
    try:
        return method.config(hidden_size)
    except ValidationError as error:
        raise InputError(f"method {method.id}: {first_problem(error)}") from error


def _inputs(
    store: StateStore, domain: str, method: Method, seed: int, draw: list[int]
) -> dict[str, Any]:
    return {
        "states": [
            store.identities[f"{domain}/calibration/{model}"] for model in ("merged", domain)
        ],
        "draw": draw,
        "module": method.module,
        "rank": method.rank,
        "max_positions": method.max_positions,
        "calibration": method.calibration.model_dump(),
        "seed": seed,
    }


def _calibrate_one(
    recipe: Recipe, shared: _Shared, method: Method, seed: int, draw: list[int], folder: Path
) -> dict[str, Any]:
    merged = shared.states("merged").select(draw)
    expert = shared.states(shared.domain).select(draw)
    calibration = method.calibration.model_copy(update={"seed": seed})
    module = calibrate(
        merged,
        expert,
        module_config(method, merged.hidden_size),
        calibration=calibration,
        head=shared.head() if calibration.loss in ("kl", "ce") else None,
        domain=f"{shared.domain}, {method.id}, seed {seed}",
        device="cpu" if recipe.device == "auto" else recipe.device,
    )
    if folder.is_dir() and not is_adapter(folder):
        for name in (TENSOR_FILE, CARD_FILE):  # of this run's own; what else lies there is kept
            (folder / name).unlink(missing_ok=True)
    save_adapter(module, folder, domain=shared.domain, method=method.id)
    record = module.record
    return {
        "parameters": module.parameter_count(),
        "bytes": module.tensor_bytes(),
        "rank": module.config.rank,
        "tokens": record["tokens"],
        "first_loss": record.get("first_loss"),
        "last_loss": record.get("last_loss"),
        "relative_ridge": record.get("relative_ridge"),
    }
