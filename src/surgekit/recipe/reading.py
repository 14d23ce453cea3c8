"""Reading a recipe: errors name the key, its line, and the nearest key that exists."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from surgekit.errors import InputError
from surgekit.merging.config import absolute_paths
from surgekit.models.source import ModelSource
from surgekit.recipe.model import Domain, PromptSet, Recipe, SurgerySpec


def load_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe; paths in it become absolute, taken from the recipe's folder.

    Raises:
        InputError: no such file, broken YAML, or a wrong key or value, named with its line.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"recipe not found: {file}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: expected a UTF-8 YAML file ({error})") from error
    return parse_recipe(text, file.resolve().parent, str(file))


def parse_recipe(text: str, folder: Path, name: str = "recipe") -> Recipe:
    """Check a recipe's text; paths are taken from ``folder``."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{name}{where}: not YAML ({problem})") from error
    except (ValueError, RecursionError) as error:  # 2020-13-45; a thousand open brackets
        raise InputError(f"{name}: not YAML that can be read ({error})") from error
    if not isinstance(document, dict):
        raise InputError(f"{name}: expected a mapping with base, domains and merge")
    _refuse_double_keys(root, name)
    try:
        recipe = Recipe.model_validate(document)
    except ValidationError as error:
        raise InputError(_first_problem(error, root, name)) from error
    try:
        return _absolute(recipe, folder)
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
    return str((folder / Path(text).expanduser()).resolve())


def _first_problem(error: ValidationError, root: yaml.Node, name: str) -> str:
    """The first error as one line: key, line, what is wrong, the nearest key."""
    # Of a union pydantic reports every branch; the deepest entry is about what was meant.
    first = max(error.errors(), key=lambda e: (e["type"] == "extra_forbidden", len(e["loc"])))
    path, line = _locate(root, first["loc"])
    where = f"{name}, line {line}: " if line else f"{name}: "
    key = ".".join(str(p) for p in path)
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), _known_keys(path[:-1]), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{where}unknown key {key!r}{hint}"
    if first["type"] == "missing":
        return f"{where}key {key!r} is missing"
    message = str(first["msg"]).removeprefix("Value error, ")
    found = "" if isinstance(first.get("input"), (dict, list)) else f", found {first['input']!r}"
    return f"{where}{key + ': ' if key else ''}{message}{found}"


def _is_branch(part: Any) -> bool:
    """True for the parts pydantic adds to a location to tell a union's branches apart."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "none"))


def _known_keys(path: list[Any]) -> list[str]:
    model: type[BaseModel] = Recipe
    for part in path:
        if model is Recipe and part == "domains":
            model = Domain
        elif model is Domain and part in ("calibration", "validation", "test"):
            model = PromptSet
        elif part in ("base", "expert"):
            model = ModelSource
        elif part == "surgery":
            model = SurgerySpec
        elif part == "plain_text":
            model = PromptSet
    return list(model.model_fields)


def _locate(root: yaml.Node, location: tuple[Any, ...]) -> tuple[list[Any], int | None]:
    """(the parts of pydantic's location that are the user's, line of the deepest in the YAML)."""
    node: yaml.Node | None = root
    line = None
    path: list[Any] = []
    for part in location:
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = next(((v, v) for v in node.value[part : part + 1]), None)
        if found is None and _is_branch(part):
            continue  # a domain may be called "int", so the YAML is asked first
        path.append(part)
        node = None if found is None else found[1]
        line = line if found is None else _line_of(found[0])
    return path, line


def _line_of(node: yaml.Node | None) -> int | None:
    return None if node is None or node.start_mark is None else node.start_mark.line + 1


def _refuse_double_keys(node: yaml.Node, name: str, above: tuple[yaml.Node, ...] = ()) -> None:
    if node in above:
        raise InputError(f"{name}, line {_line_of(node)}: this value contains itself")
    above = (*above, node)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise InputError(
                        f"{name}, line {_line_of(key)}: key {key.value!r} is given twice"
                    )
                seen.add(key.value)
            _refuse_double_keys(value, name, above)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_double_keys(value, name, above)
