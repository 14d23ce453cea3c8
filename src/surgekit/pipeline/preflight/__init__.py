"""Pre-flight: what can be wrong with a recipe, found before any work."""

from __future__ import annotations

from pathlib import Path

from surgekit.errors import InputError
from surgekit.findings import LEVELS, Finding, attempt, has_error
from surgekit.models.devices import check_device
from surgekit.pipeline.preflight.cost import check_cost
from surgekit.pipeline.preflight.experts import check_experts
from surgekit.pipeline.preflight.facts import ModelFacts, model_facts
from surgekit.pipeline.preflight.lengths import check_lengths, count_tokens
from surgekit.pipeline.preflight.merge import check_merge
from surgekit.pipeline.preflight.models import check_models
from surgekit.pipeline.preflight.overlap import check_benchmarks, check_overlap
from surgekit.pipeline.preflight.prompts import check_domain
from surgekit.pipeline.prompts import DomainPrompts, read_plain
from surgekit.pipeline.run_directory import expect_free
from surgekit.recipe import Recipe

__all__ = ["Finding", "preflight"]


def preflight(
    recipe: Recipe,
    *,
    out: Path | None = None,
    deep: bool = False,
    beginning: bool = False,
    trust_remote_code: bool = False,
) -> list[Finding]:
    """Everything that can be found before a run, the errors first.

    Args:
        recipe: from ``load_recipe``.
        out: the run directory, for the disk it is on and for what is in it; where it is None, the
            working directory's disk counts.
        deep: load models too, for what only they can tell.
        beginning: a run begins right after. What the cache of the hub lacks is fetched, and what
            the run looks at itself, by loading the models, is not listed as unverified.
        trust_remote_code: run Python code that comes with checkpoints (tokenizers among them).
    """
    findings: list[Finding] = []
    domains: dict[str, DomainPrompts] = {}
    for name in recipe.domains:
        prompts, found = check_domain(recipe, name)
        findings += found
        if prompts is not None:
            domains[name] = prompts
    attempt(findings, lambda: read_plain(recipe))
    findings += check_overlap(domains)
    findings += check_benchmarks(recipe, domains)
    models, of_models = check_models(recipe, fetch=beginning)
    of_models += check_merge(
        recipe, models, deep=deep, beginning=beginning, trust_remote_code=trust_remote_code
    )
    attempt(of_models, lambda: check_device(recipe.device))
    if out is not None:
        attempt(findings, lambda: expect_free(out))
    findings += of_models
    broken = has_error(of_models) or len(domains) < len(recipe.domains)
    if broken or models.to_fetch:
        when = "after the errors are mended" if broken else "after the models are fetched"
        findings.append(
            Finding("unverified", f"lengths of prompts, disk, memory, time and experts ({when})")
        )
    else:
        counted, found = count_tokens(recipe, domains, trust_remote_code=trust_remote_code)
        findings += found
        findings += check_lengths(recipe, counted, _facts(recipe))
        findings += check_cost(recipe, domains, counted, out)
        if not deep and not beginning:
            findings.append(
                Finding(
                    "unverified",
                    "whether each expert is better than the base on its own domain (check --deep "
                    "loads the models and looks; run looks before surgery)",
                )
            )
        elif deep and not has_error(findings):
            findings += check_experts(recipe, trust_remote_code)
    return sorted(findings, key=lambda f: LEVELS.index(f.level))


def _facts(recipe: Recipe) -> ModelFacts | None:
    try:
        return model_facts(recipe.base)
    except InputError:  # check_cost says so
        return None
