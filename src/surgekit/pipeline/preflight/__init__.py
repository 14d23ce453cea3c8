"""Pre-flight: what can be wrong with a recipe, found before any work."""

from __future__ import annotations

from surgekit.errors import InputError
from surgekit.findings import LEVELS, Finding, attempt
from surgekit.pipeline.preflight.cost import check_cost
from surgekit.pipeline.preflight.merge import check_merge
from surgekit.pipeline.preflight.models import check_models
from surgekit.pipeline.preflight.prompts import check_domain
from surgekit.pipeline.prompts import DomainPrompts, read_plain
from surgekit.recipe import Recipe

__all__ = ["Finding", "preflight"]


def preflight(recipe: Recipe) -> list[Finding]:
    """Everything that can be found without loading weights, the errors first."""
    findings: list[Finding] = []
    domains: dict[str, DomainPrompts] = {}
    for name in recipe.domains:
        prompts, found = check_domain(recipe, name)
        findings += found
        if prompts is not None:
            domains[name] = prompts
    attempt(findings, lambda: read_plain(recipe))
    findings += check_models(recipe)
    findings += check_merge(recipe)
    attempt(findings, lambda: _device(recipe.device))
    if not any(f.level == "error" for f in findings):
        findings += check_cost(recipe, domains)
    return sorted(findings, key=lambda f: LEVELS.index(f.level))


def _device(name: str) -> None:
    import torch

    try:
        if name != "auto":
            torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).splitlines()[0]
        raise InputError(f"device {name!r}: expected cpu, cuda, cuda:N or auto ({said})") from error
