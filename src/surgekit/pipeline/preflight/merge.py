"""Pre-flight of the merge: its models and its method."""

from __future__ import annotations

from pathlib import Path

from surgekit.findings import Finding, attempt
from surgekit.merging import check_method, read_merge_config
from surgekit.pipeline.models import merged_models
from surgekit.recipe import Recipe


def check_merge(recipe: Recipe) -> list[Finding]:
    """What is wrong with the merge configuration; nothing where the user brings a merge."""
    findings: list[Finding] = []
    if recipe.merged_folder is None:
        names = {name: Path(name) for name in ("base", *recipe.domains)}
        attempt(findings, lambda: merged_models(recipe, names))
        attempt(findings, lambda: check_method(read_merge_config(recipe.merge)))
    return findings
