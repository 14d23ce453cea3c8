"""What parameters of a merge may be, and models that stand twice in a list: by place and name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from surgekit.findings import Finding
from surgekit.merging.config import folder_of
from surgekit.merging.settings import entries_of, parameter_blocks
from surgekit.parsing import first_problem

if TYPE_CHECKING:
    from mergekit.merge_methods import MergeMethod

_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_SHAPES = "expected a number, a list or a list of {value, filter}"


def check_parameter_values(config: Mapping[str, Any], method: MergeMethod) -> Iterator[Finding]:
    """Errors about parameters that mergekit cannot take, each with the place it stands at.

    Args:
        config: as read.
        method: mergekit's, as registered; knows what its parameters may be.
    """
    from pydantic import ValidationError

    specs = {p.name: p for p in method.spec.parameters}
    for where, parameters, _ in parameter_blocks(config):
        for key, setting in parameters.items():
            for place, value in _scalars(f"{where}.{key}", setting):
                if value is None or isinstance(value, (Mapping, list)):
                    found = "nothing" if value is None else repr(value)[:60]
                    yield Finding("error", f"{place}: {_SHAPES}, found {found}")
                elif key in specs:
                    try:
                        specs[key].validate(value)
                    except ValidationError as error:
                        hint = ""
                        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
                            hint = f"; write {value.replace(',', '.')}"
                        yield Finding("error", f"{place}: {first_problem(error).said}{hint}")


def _scalars(place: str, setting: Any) -> Iterator[tuple[str, Any]]:
    """(place, value) of every single value in a setting; what is none is given as it is."""
    conditions = setting if isinstance(setting, list) else [setting]
    if any(isinstance(part, Mapping) for part in conditions):
        for i, part in enumerate(conditions):
            at = f"{place}[{i}]" if isinstance(setting, list) else place
            inside = part.get("value") if isinstance(part, Mapping) else [part]
            yield from ((f"{at}.value", v) for v in _entries(inside))
    else:
        yield from ((place, v) for v in _entries(setting))


def _entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def check_listed_once(config: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Finding]:
    """Errors about models that stand twice in one list, which mergekit cannot merge.

    Args:
        config: with a folder for each model, as ``resolve_models`` leaves it.
        names: folder → what the user calls that model.
    """
    modules = config.get("modules")
    sections: list[tuple[str, Any]] = [("", config)]
    if isinstance(modules, Mapping):
        sections += [(f"modules.{n}.", m) for n, m in modules.items() if isinstance(m, Mapping)]
    for prefix, section in sections:
        lists = [(f"{prefix}models", section.get("models"))]
        for i, piece in entries_of(section.get("slices")):
            lists.append((f"{prefix}slices[{i}].sources", piece.get("sources")))
        for where, entries in lists:
            seen: list[Any] = []
            for _, entry in entries_of(entries):
                model = entry.get("model")
                if model is not None and model in seen:
                    folder = folder_of(model)
                    yield Finding(
                        "error",
                        f"{where}: {names.get(folder, folder)} is listed twice, "
                        "and mergekit takes a folder once; list it once, with its whole weight",
                    )
                seen.append(model)
