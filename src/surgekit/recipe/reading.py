"""Reading a recipe: errors name the key, its line, and the nearest key that exists."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from surgekit.errors import InputError
from surgekit.files import user_path
from surgekit.merging.config import absolute_paths, expect_keys
from surgekit.parsing import YAML_BYTES, first_problem, line_at, node_at, read_text, read_yaml
from surgekit.recipe.model import PromptSet, Recipe


def load_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe; paths in it become absolute, taken from the recipe's folder.

    Raises:
        InputError: no such file, broken YAML, or a wrong key or value, named with its line.
    """
    file = Path(path)
    text = read_text(file, "recipe", limit=YAML_BYTES)
    return parse_recipe(text, file.resolve().parent, str(file))


def parse_recipe(text: str, folder: Path, name: str = "recipe") -> Recipe:
    """Check a recipe's text; paths are taken from ``folder``."""
    document, root = read_yaml(text, name)
    if not isinstance(document, dict):
        raise InputError(f"{name}: expected a mapping with base, domains and merge")
    try:
        recipe = Recipe.model_validate(document)
    except ValidationError as error:
        problem = first_problem(error, document, Recipe)
        line = line_at(root, problem.path)
        where = f"{name}, line {line}" if line else name
        raise InputError(f"{where}: {problem}") from error
    if isinstance(recipe.merge, dict) and recipe.merged_folder is None:
        expect_keys(recipe.merge, f"{name}, merge", node_at(root, "merge"))
    try:
        return _absolute(recipe, folder)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:  # a NUL; the home of an unknown user
        raise InputError(f"{name}: a path in it is none ({error})") from error


def _absolute(recipe: Recipe, folder: Path) -> Recipe:
    def prompts(value: PromptSet | None) -> PromptSet | None:
        if value is None:
            return None
        return value.model_copy(update={"file": _path(value.file, folder)})

    domains = {
        name: domain.model_copy(
            update={
                "expert": domain.expert.relative_to(folder),
                "calibration": prompts(domain.calibration),
                "validation": prompts(domain.validation),
                "test": prompts(domain.test),
            }
        )
        for name, domain in recipe.domains.items()
    }
    merge = recipe.merge
    if isinstance(merge, str):
        merge = _path(merge, folder)
    elif recipe.merged_folder is not None:
        merge = {"folder": _path(recipe.merged_folder, folder)}
    else:
        merge = absolute_paths(merge, folder, ("base", *recipe.domains))
    return recipe.model_copy(
        update={
            "base": recipe.base.relative_to(folder),
            "domains": domains,
            "merge": merge,
            "plain_text": prompts(recipe.plain_text),
        }
    )


def _path(text: str, folder: Path) -> str:
    return str((folder / user_path(text)).resolve())
