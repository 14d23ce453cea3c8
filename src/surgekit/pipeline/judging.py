"""Judging stages: bias and fidelity of every method, the choice among them, and cross effects.

What is chosen is chosen on validation prompts; what is reported is measured on test prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surgekit.bias import MEASURES, Bias, measure_bias
from surgekit.fidelity import (
    METRICS,
    Candidate,
    Fidelity,
    measure_fidelity,
    recovered_share,
    scored_tokens,
)
from surgekit.models.anatomy import Head
from surgekit.pipeline.capturing import StateStore
from surgekit.pipeline.run_directory import RunDirectory
from surgekit.pipeline.surgery import AdapterShelf
from surgekit.recipe import Recipe
from surgekit.states.states import States
from surgekit.statistics import over_runs, ratio_interval

BASE = "__base__"
CHOSEN_BY = "kl"
"""The metric that methods are chosen by, on validation prompts."""


def measure_drift(run: RunDirectory, recipe: Recipe, store: StateStore, domain: str) -> Any:
    """Bias of the merged model on the test prompts, and the noise floor, before any surgery."""
    names = [f"{domain}/test/merged", f"{domain}/test/{domain}", f"{domain}/noise/{domain}"]
    inputs = {"states": [store.identities[n] for n in names], "bin": recipe.position_bin}

    def work() -> dict[str, Any]:
        expert = store.load(domain, "test", domain)
        merged = measure_bias(store.load(domain, "test", "merged"), expert, domain=domain)
        again = store.load(domain, "noise", domain)
        few = expert.select(list(range(len(again.tokens))))
        noise = measure_bias(again, few, domain=f"{domain} (noise)")
        return {
            "merged": merged.mean(),
            "noise": noise.mean(),
            "noise_prompts": len(again.tokens),
            "by_position": merged.by_position(recipe.position_bin),
        }

    return run.stage(f"bias/{domain}", inputs, [], work)


def choose_method(
    run: RunDirectory, recipe: Recipe, store: StateStore, shelf: AdapterShelf, domain: str
) -> Any:
    """Validate every method of a domain: {recommended, best, merged, methods: {ID: {...}}}.

    A method whose mean KL to the expert over seeds is not below that of no correction is marked
    ``worse``; where all are, ``__base__`` is recommended.
    """

    def work() -> dict[str, Any]:
        expert = store.load(domain, "validation", domain)
        merged = store.load(domain, "validation", "merged")
        keys = _keys(recipe, domain)
        figures = _judge(run, store, shelf, expert, domain, merged, keys, "validation")
        uncorrected = figures[0].mean()
        methods: dict[str, Any] = {}
        for method, runs in _by_method(keys, figures[1:]).items():
            value = over_runs([f.mean()[CHOSEN_BY] for f in runs])
            methods[method] = value | {"worse": not value["mean"] < uncorrected[CHOSEN_BY]}
        best = min(methods, key=lambda m: methods[m]["mean"])
        return {
            "metric": CHOSEN_BY,
            "merged": uncorrected[CHOSEN_BY],
            "methods": methods,
            "best": best,
            "recommended": BASE if methods[best]["worse"] else best,
        }

    return run.stage(
        f"validation/{domain}", _inputs(recipe, store, shelf, domain, "validation"), [], work
    )


def report_domain(
    run: RunDirectory, recipe: Recipe, store: StateStore, shelf: AdapterShelf, domain: str
) -> Any:
    """Test every method of a domain: {"bias": ..., "metrics": ...} as results.json has them."""

    def work() -> dict[str, Any]:
        expert = store.load(domain, "test", domain)
        merged = store.load(domain, "test", "merged")
        base = store.load(domain, "test", "base")
        keys = _keys(recipe, domain)
        head = store.head(domain)
        extra = [
            Candidate(base.hidden, store.head("base"), name="the base"),
            Candidate(expert.hidden, head, name="the expert"),
        ]
        figures = _judge(run, store, shelf, expert, domain, merged, keys, "test", extra, head)
        by_method = _by_method(keys, figures[3:])
        return {
            "metrics": _metrics(figures[1], figures[2], figures[0], by_method),
            "bias": _bias_after(recipe, shelf, merged, expert, keys),
        }

    inputs = _inputs(recipe, store, shelf, domain, "test")
    inputs["base"] = store.identities[f"{domain}/test/base"]
    inputs["bin"] = recipe.position_bin
    return run.stage(f"test/{domain}", inputs, [], work)


def cross_effects(
    run: RunDirectory,
    recipe: Recipe,
    store: StateStore,
    shelf: AdapterShelf,
    chosen: Mapping[str, str],
    *,
    plain: bool,
) -> Any:
    """What each domain's adapter does to the other domains' test text, and to plain text.

    Args:
        chosen: for each domain the method whose adapter (of the first seed) is tried.

    Returns:
        {ADAPTER_DOMAIN: {"method": ID, TEXT_DOMAIN: {"loss", "kl": {"corrected", "uncorrected"}}}}.
        On plain text there is no expert: ``kl`` is taken from the merged model's own predictions.
    """
    seed = recipe.seeds[0]
    domains = list(recipe.domains)
    texts = [*domains, "plain"] if plain else domains
    result: dict[str, dict[str, Any]] = {d: {"method": chosen[d]} for d in domains}
    for text in texts:
        reference = "merged" if text == "plain" else text
        inputs = {
            "adapters": [[d, shelf.identities[d, chosen[d], seed]] for d in domains],
            "states": [store.identities[f"{text}/test/{m}"] for m in ("merged", reference)],
        }

        def work(text: str = text, reference: str = reference) -> dict[str, Any]:
            expert = store.load(text, "test", reference)
            merged = store.load(text, "test", "merged")
            keys = [(d, chosen[d], seed) for d in domains]
            figures = _judge(run, store, shelf, expert, reference, merged, keys, f"cross {text}")
            before = figures[0].mean()
            return {
                domain: {
                    metric: {"corrected": after.mean()[metric], "uncorrected": before[metric]}
                    for metric in ("loss", "kl")
                }
                for domain, after in zip(domains, figures[1:], strict=True)
            }

        for domain, row in run.stage(f"cross/{text}", inputs, [], work).items():
            result[domain][text] = row
    return result


Key = tuple[str, str, int]


def _keys(recipe: Recipe, domain: str) -> list[Key]:
    return [(domain, m.id, seed) for m in recipe.methods() for seed in recipe.seeds]


def _inputs(
    recipe: Recipe, store: StateStore, shelf: AdapterShelf, domain: str, split: str
) -> dict[str, Any]:
    return {
        "states": [store.identities[f"{domain}/{split}/{m}"] for m in ("merged", domain)],
        "adapters": [[k[1], k[2], shelf.identities[k]] for k in _keys(recipe, domain)],
    }


def _judge(
    run: RunDirectory,
    store: StateStore,
    shelf: AdapterShelf,
    reference: States,
    reference_model: str,
    merged: States,
    keys: Sequence[Key],
    what: str,
    extra: Sequence[Candidate] = (),
    reference_head: Head | None = None,
) -> list[Fidelity]:
    """Fidelity of [uncorrected, *extra, *the adapters at keys]."""
    head = store.head("merged")
    candidates = [Candidate(merged.hidden, head, name="the merged model"), *extra]
    for adapter, method, seed in keys:
        module = shelf.load(adapter, method, seed).float()
        name = f"adapter {adapter}/{method}, seed {seed}"
        candidates.append(Candidate(merged.hidden, head, module, name))
    total = int(scored_tokens(reference.tokens).sum())
    run.reporter.start(f"fidelity on {reference_model}, {what}", total)
    try:
        return measure_fidelity(
            reference,
            reference_head or store.head(reference_model),
            candidates,
            domain=reference_model,
            progress=run.reporter.advance,
        )
    finally:
        run.reporter.finish()


def _by_method(keys: Sequence[Key], figures: Sequence[Fidelity]) -> dict[str, list[Fidelity]]:
    grouped: dict[str, list[Fidelity]] = {}
    for (_, method, _), figure in zip(keys, figures, strict=True):
        grouped.setdefault(method, []).append(figure)
    return grouped


def _metrics(
    base: Fidelity, expert: Fidelity, merged: Fidelity, methods: Mapping[str, list[Fidelity]]
) -> dict[str, Any]:
    rows = {"base": base, "expert": expert, "merged": merged}
    result: dict[str, Any] = {}
    for metric in METRICS:
        result[metric] = {name: figure.mean()[metric] for name, figure in rows.items()}
        result[metric]["methods"] = {
            method: over_runs([f.mean()[metric] for f in runs])
            | {"interval": _interval(runs, metric)}
            for method, runs in methods.items()
        }
    result["recovered"] = _recovered(expert, merged, methods)
    splits = {name: figure.by_entropy() for name, figure in rows.items()}
    splits["methods"] = {m: _mean_split(runs) for m, runs in methods.items()}  # type: ignore[assignment]
    for metric in METRICS:
        result[metric]["by_entropy"] = _split_of(splits, metric)
    return result


def _interval(runs: Sequence[Fidelity], metric: str) -> list[float] | None:
    """95 % bootstrap interval over prompts of the mean over runs."""
    tops, bottoms = zip(*(f.sums(metric) for f in runs), strict=True)
    return ratio_interval(np.mean(tops, axis=0), bottoms[0])


def _recovered(
    expert: Fidelity, merged: Fidelity, methods: Mapping[str, list[Fidelity]]
) -> dict[str, Any]:
    """Share of the merged→expert gap in KL and in loss that each method closes."""
    result: dict[str, Any] = {}
    for metric in ("kl", "loss"):
        before, goal = merged.sums(metric)[0], expert.sums(metric)[0]
        rows: dict[str, Any] = {}
        for method, runs in methods.items():
            shares = [
                recovered_share(merged.mean()[metric], f.mean()[metric], expert.mean()[metric])
                for f in runs
            ]
            known = [s for s in shares if s is not None]
            after = np.mean([f.sums(metric)[0] for f in runs], axis=0)
            rows[method] = (
                over_runs(known) | {"interval": ratio_interval(before - after, before - goal)}
                if known
                else None
            )
        result[metric] = rows
    return result


def _mean_split(runs: Sequence[Fidelity]) -> list[dict[str, Any]]:
    per_run = [f.by_entropy() for f in runs]
    mean = [dict(row) for row in per_run[0]]
    for index, row in enumerate(mean):
        for metric in METRICS:
            row[metric] = math.fsum(r[index][metric] for r in per_run) / len(per_run)
    return mean


def _split_of(splits: Mapping[str, Any], metric: str) -> list[dict[str, Any]]:
    """One metric of a split, bin by bin: [{from, to, tokens, base, expert, merged, methods}]."""
    rows: list[dict[str, Any]] = []
    for index, row in enumerate(splits["merged"]):
        entry: dict[str, Any] = {k: row[k] for k in ("from", "to", "tokens")}
        entry |= {name: splits[name][index][metric] for name in ("base", "expert", "merged")}
        entry["methods"] = {m: s[index][metric] for m, s in splits["methods"].items()}
        rows.append(entry)
    return rows


def _bias_after(
    recipe: Recipe, shelf: AdapterShelf, merged: States, expert: States, keys: Sequence[Key]
) -> dict[str, Any]:
    found: dict[str, list[Bias]] = {}
    for key in keys:
        module = shelf.load(*key).float()
        found.setdefault(key[1], []).append(
            measure_bias(merged, expert, module, domain=", ".join(map(str, key)))
        )
    by_position: dict[str, Any] = {}
    for method, runs in found.items():
        rows = [b.by_position(recipe.position_bin) for b in runs]
        by_position[method] = [
            row | {m: math.fsum(r[i][m] for r in rows) / len(rows) for m in MEASURES}
            for i, row in enumerate(rows[0])
        ]
    return {
        "methods": {
            measure: {m: over_runs([b.mean()[measure] for b in runs]) for m, runs in found.items()}
            for measure in MEASURES
        },
        "by_position": by_position,
    }
