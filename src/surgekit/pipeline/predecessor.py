"""What is in a run directory from an earlier recipe: said, and left as it is."""

from __future__ import annotations

import json
from typing import Any

import yaml

from surgekit.adapters.files import is_adapter
from surgekit.errors import InputError
from surgekit.parsing import read_text
from surgekit.pipeline.run_directory import RunDirectory
from surgekit.recipe import Recipe

RECIPE_FILE = "recipe.yaml"
_SHOWN = 4


def tell_of_another_recipe(run: RunDirectory, recipe: Recipe, resolved: dict[str, Any]) -> None:
    """Note where another recipe was run in the directory, and which adapters of it stay there.

    Args:
        run: the directory, before its recipe is overwritten.
        recipe: the one that is to be run.
        resolved: the same as it will be written.
    """
    file = run.path(RECIPE_FILE)
    if not file.is_file():
        return
    try:
        before = yaml.safe_load(read_text(file, "recipe"))
    except (InputError, yaml.YAMLError, ValueError, RecursionError):
        before = None
    if _without_order(before) != _without_order(resolved):
        run.reporter.note(
            f"{run.root} was made by another recipe or with other options; its stages are made "
            "again where they differ"
        )
    methods = {m.id for m in recipe.methods()}
    strange = [
        folder.relative_to(run.root).as_posix()
        for folder in sorted(run.path("adapters").glob("*/*"))
        if is_adapter(folder)
        and not (folder.parent.name in recipe.domains and folder.name in methods)
    ]
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        run.reporter.note(
            f"{', '.join(strange[:_SHOWN])}{more}: of methods that are not in this recipe; delete "
            "them if not wanted"
        )


def _without_order(value: Any) -> str:
    """A value as text in which the order of keys and of entries does not show."""
    if isinstance(value, dict):
        return json.dumps({str(k): _without_order(v) for k, v in value.items()}, sort_keys=True)
    if isinstance(value, list):
        return json.dumps(sorted(_without_order(v) for v in value))
    return json.dumps(value, default=str)
