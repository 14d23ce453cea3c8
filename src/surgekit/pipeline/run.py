"""From a recipe to results.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from surgekit._version import __version__
from surgekit.bias import MEASURES
from surgekit.files import write_json, write_text
from surgekit.models.fingerprint import digest_json
from surgekit.models.loading import load_tokenizer
from surgekit.pipeline.capturing import StateStore, capture_all
from surgekit.pipeline.expert_check import check_expert
from surgekit.pipeline.judging import choose_method, cross_effects, measure_drift, report_domain
from surgekit.pipeline.models import ModelFolders, prepare_models
from surgekit.pipeline.predecessor import RECIPE_FILE, tell_of_another_recipe
from surgekit.pipeline.progress import Reporter
from surgekit.pipeline.prompts import (
    DomainTokens,
    check_tokenizers,
    read_domain,
    read_plain,
    tokenize_domain,
)
from surgekit.pipeline.results import RESULTS_FILE, RESULTS_FORMAT
from surgekit.pipeline.run_directory import RunDirectory, environment
from surgekit.pipeline.surgery import AdapterShelf, calibrate_all
from surgekit.recipe import Recipe
from surgekit.states.prompts import tokenize_prompts


def run_recipe(
    recipe: Recipe,
    out: str | Path,
    *,
    reporter: Reporter | None = None,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Run every stage of a recipe that is not done yet, and write ``OUT/results.json``.

    Args:
        recipe: from ``load_recipe``.
        out: the run directory; made where it is missing, taken up where it is not.
        reporter: told what happens.
        trust_remote_code: run Python code that comes with checkpoints.

    Returns:
        The results, as written (format: DESIGN of the project, docs/results.md).
    """
    reporter = reporter or Reporter()
    with RunDirectory.open(Path(out), reporter) as run:
        domains = {n: read_domain(n, d, recipe.seeds) for n, d in recipe.domains.items()}
        plain_prompts = read_plain(recipe)
        resolved = recipe.model_dump(mode="json")
        tell_of_another_recipe(run, recipe, resolved)
        write_text(run.path(RECIPE_FILE), yaml.safe_dump(resolved, sort_keys=False))
        models = prepare_models(run, recipe, trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(
            str(models.folders["merged"]), trust_remote_code=trust_remote_code
        )
        tokens = {
            name: tokenize_domain(name, prompts, recipe.domains[name], tokenizer, recipe.max_length)
            for name, prompts in domains.items()
        }
        check_tokenizers(
            models.folders, domains, recipe, tokenizer, trust_remote_code=trust_remote_code
        )
        plain = None
        if plain_prompts is not None:
            plain = tokenize_prompts(
                plain_prompts, tokenizer, format="plain", max_length=recipe.max_length
            )
        _tell_cuts(reporter, tokens)
        store = capture_all(run, recipe, models, tokens, plain, trust_remote_code=trust_remote_code)
        experts = {name: check_expert(run, store, name) for name in recipe.domains}
        drift = {name: measure_drift(run, recipe, store, name) for name in recipe.domains}
        shelf = calibrate_all(run, recipe, store, tokens)
        choices = {n: choose_method(run, recipe, store, shelf, n) for n in recipe.domains}
        tested = {n: report_domain(run, recipe, store, shelf, n) for n in recipe.domains}
        best = {n: choice["best"] for n, choice in choices.items()}
        cross = cross_effects(run, recipe, store, shelf, best, plain=plain is not None)
        results = {
            "format": RESULTS_FORMAT,
            "surgekit": __version__,
            "recipe_sha256": digest_json(resolved),
            "models": _models(recipe, models, store),
            "environment": environment() | {"batch_size": recipe.batch_size},
            "seeds": recipe.seeds,
            "methods": _methods(recipe, shelf),
            "domains": {
                name: {
                    "items": tokens[name].items(),
                    "expert_check": experts[name],
                    "bias": _bias(drift[name], tested[name]["bias"]),
                    "metrics": tested[name]["metrics"],
                    "validation": choices[name],
                    "recommended": choices[name]["recommended"],
                    "chosen_on": "validation",
                }
                for name in recipe.domains
            },
            "cross_domain": cross,
            "timing": run.timing,
            "peak_memory_bytes": run.peak_memory,
        }
        write_json(run.path(RESULTS_FILE), results)
    return results


def _tell_cuts(reporter: Reporter, tokens: Mapping[str, DomainTokens]) -> None:
    for name, prepared in tokens.items():
        cut = prepared.items()["cut"]
        if cut:
            reporter.note(f"{name}: {cut} sequences were cut at max_length")
        no_response = [s for s, t in prepared.splits.items() if not bool(t.mask("response").any())]
        if "validation" in no_response or "test" in no_response:
            reporter.note(
                f"{name}: the {' and '.join(no_response)} prompts have no responses, so all their "
                "tokens are judged"
            )


def _models(recipe: Recipe, models: ModelFolders, store: StateStore) -> dict[str, Any]:
    sources = {"base": recipe.base.describe()} | {
        n: d.expert.over(recipe.base).describe() for n, d in recipe.domains.items()
    }
    entries: dict[str, Any] = {
        name: {"source": source, "fingerprint": store.fingerprints[name]}
        for name, source in sources.items()
    }
    entries["merged"] = {"fingerprint": store.fingerprints["merged"]}
    entries["merged"] |= models.merge or {"source": str(models.folders["merged"])}
    return entries


def _methods(recipe: Recipe, shelf: AdapterShelf) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    first_domain = next(iter(recipe.domains))
    for method in recipe.methods():
        facts = shelf.facts[first_domain, method.id, recipe.seeds[0]]
        entries[method.id] = {
            "module": method.module,
            "loss": method.calibration.loss,
            "text": method.calibration.text,
            "rank": facts["rank"],
            "parameters": facts["parameters"],
            "bytes": facts["bytes"],
            "calibration": method.calibration.model_dump(exclude={"seed"}),
            "fits": {
                domain: [
                    {"seed": seed, **shelf.facts[domain, method.id, seed]} for seed in recipe.seeds
                ]
                for domain in recipe.domains
            },
        }
    return entries


def _bias(drift: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        measure: {
            "noise": drift["noise"][measure],
            "merged": drift["merged"][measure],
            "methods": after["methods"][measure],
        }
        for measure in MEASURES
    }
    entry["by_position"] = {"merged": drift["by_position"], "methods": after["by_position"]}
    entry["noise_prompts"] = drift["noise_prompts"]
    return entry
