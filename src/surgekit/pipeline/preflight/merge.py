"""Pre-flight of the merge: its settings, its models, and what they are to the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surgekit.errors import InputError
from surgekit.findings import Finding, attempt, has_error
from surgekit.merging import read_merge_config
from surgekit.merging.config import config_file
from surgekit.merging.examining import examine_merge, examine_settings, takes_task_vectors
from surgekit.merging.record import CONFIG_FILE
from surgekit.models.checkpoint import Checkpoint
from surgekit.models.compatibility import check_model, compare_models
from surgekit.models.values import CHEAP_BYTES, same_values, scan_values, size_of_values
from surgekit.models.vocabulary import compare_ends, compare_vocabularies, vocabulary_of
from surgekit.pipeline.models import merged_models
from surgekit.pipeline.preflight.models import Models
from surgekit.recipe import Recipe


def check_merge(
    recipe: Recipe,
    models: Models,
    *,
    deep: bool = False,
    beginning: bool = False,
    trust_remote_code: bool = False,
) -> list[Finding]:
    """What is wrong with the merge, or with the merge that the user brings.

    Args:
        recipe: from ``load_recipe``.
        models: from ``check_models``.
        deep: read all weights for NaN and infinity, however many there are.
        beginning: a run begins right after, and reads them.
        trust_remote_code: configurations that come with code are read with it.
    """
    try:
        if recipe.merged_folder is not None:
            found, taking_part = _check_brought(recipe, models)
        else:
            found, taking_part = _check_made(recipe, models, trust_remote_code)
    except InputError as error:
        return [Finding("error", str(error))]
    if has_error(found):
        return found
    return found + _check_values(taking_part, deep=deep, beginning=beginning)


def _check_made(
    recipe: Recipe, models: Models, trust_remote_code: bool
) -> tuple[list[Finding], list[Checkpoint]]:
    config = read_merge_config(recipe.merge)
    root = Path.cwd()
    if isinstance(recipe.merge, str) and (file := config_file(recipe.merge)) is not None:
        root = file.absolute().parent
    absent = [n for n in ("base", *recipe.domains) if n not in models.checkpoints]
    if absent:
        # What keeps them from being read has been said; the configuration can be looked at.
        found: list[Finding] = []
        names = {name: Path(name) for name in ("base", *recipe.domains)}
        attempt(found, lambda: merged_models(recipe, names))
        found += attempt(found, lambda: examine_settings(config)) or []
        return found, []
    found, taking_part = examine_merge(
        config, root, models.checkpoints, trust_remote_code=trust_remote_code
    )
    if not taking_part:
        return found, []
    found += _other_base(config, root, models, taking_part)
    used = [m.name for m in taking_part]
    named = {n if n == "base" else f"domains.{n}.expert": n for n in models.checkpoints}
    for where, name in named.items():
        if where not in used and name != "base":
            found.append(
                Finding(
                    "warning",
                    f"domains.{name}: its expert does not take part in the merge; surgery would "
                    "correct towards a model that was not merged",
                )
            )
            found += _compare(models, [name])
    strange = [name for name in used if name not in named]
    if strange:
        found.append(
            Finding(
                "warning",
                f"the merge takes in {', '.join(strange)}, of which no domain is the expert; "
                "nothing measures or repairs what it brings",
            )
        )
    return found, [*taking_part, *(m for m in models.checkpoints.values() if m.name not in used)]


def _other_base(
    config: Mapping[str, Any], root: Path, models: Models, taking_part: list[Checkpoint]
) -> list[Finding]:
    """Whether the merge takes task vectors from another model than the recipe's base."""
    base = models.checkpoints.get("base")
    if base is None or not takes_task_vectors(config["merge_method"]):
        return []
    sections = [config, *(m for m in (config.get("modules") or {}).values())]
    pieces = [p for s in sections if isinstance(s, Mapping) for p in s.get("slices") or []]
    found: dict[str, Finding] = {}
    for holder in (config, *pieces):
        ref = holder.get("base_model") if isinstance(holder, Mapping) else None
        if not isinstance(ref, str) or ref == "base":
            continue
        other = models.checkpoints.get(ref) or next(
            (m for m in taking_part if ref == m.name or m.folder == (root / ref).resolve()), None
        )
        if other is None or other is base or other.files == base.files:
            continue
        if not (other.virtual or base.virtual) and same_values(base, other):
            continue
        found[ref] = Finding(
            "warning",
            f"merge.base_model is {ref}, the recipe's base is {_called(base)}: task vectors are "
            "taken from another base than the one that figures are compared with",
        )
    return list(found.values())


def _called(model: Checkpoint) -> str:
    return str(model.files[0] if model.virtual and model.files else model.folder)


def _check_brought(recipe: Recipe, models: Models) -> tuple[list[Finding], list[Checkpoint]]:
    merged = models.merged
    if merged is None:
        return [], []
    found = check_model(merged, vocabulary_of(merged))
    if "base" in models.checkpoints:
        found += _against(models.checkpoints["base"], merged)
    found += _compare(models, [n for n in recipe.domains if n in models.checkpoints])
    found += _check_record(recipe, merged.folder)
    return found, [merged, *models.checkpoints.values()]


def _compare(models: Models, names: list[str]) -> list[Finding]:
    """Experts that no merge of ours averages, by themselves and against the base."""
    found: list[Finding] = []
    base = models.checkpoints.get("base")
    for name in names:
        expert = models.checkpoints[name]
        if expert.virtual:
            continue
        found += check_model(expert, vocabulary_of(expert))
        if base is not None:
            found += _against(base, expert)
    return found


def _against(base: Checkpoint, other: Checkpoint) -> list[Finding]:
    found = compare_models(base, other, averaged=False)
    one, two = vocabulary_of(base), vocabulary_of(other)
    if one is not None and two is not None:
        found += compare_vocabularies((base.name, other.name), one, two, averaged=False)
    return found + compare_ends(base, other, one, two)


def _check_record(recipe: Recipe, folder: Path) -> list[Finding]:
    """Whether the merge says that it was made of the recipe's experts, where it says anything."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        return []
    try:
        config = read_merge_config(file)
    except InputError as error:
        return [Finding("unverified", f"what the merge was made of ({error})")]
    said = {_last(ref) for ref in _named(config)}
    missing = []
    for name, domain in recipe.domains.items():
        source = domain.expert.over(recipe.base)
        known = (name, source.lora, source.model, source.gguf, source.package)
        if said and not any(_last(k) in said for k in known if k):
            missing.append(name)
    if not missing:
        return []
    return [
        Finding(
            "warning",
            f"by its {CONFIG_FILE} the merge was made of {', '.join(sorted(said))}; the expert of "
            f"{', '.join(missing)} is none of these",
        )
    ]


def _named(config: Mapping[str, Any]) -> list[str]:
    """Every model that a mergekit configuration names, as written."""
    found: list[str] = []
    waiting: list[Any] = [config]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            for key, value in part.items():
                if key in ("model", "base_model", "path", "lora") and isinstance(value, str):
                    found += value.split("+")
                elif key != "parameters":
                    waiting.append(value)
        elif isinstance(part, list):
            waiting += part
    return found


def _last(name: str) -> str:
    return name.split("@")[0].rstrip("/").rsplit("/", 1)[-1].lower()


def _check_values(models: list[Checkpoint], *, deep: bool, beginning: bool) -> list[Finding]:
    """NaN and infinity in weights: read where that is a matter of seconds, or asked for."""
    real = {m.files: m for m in reversed(models)}
    total = sum(size_of_values(m) for m in real.values())
    if not real:
        return []
    if total > CHEAP_BYTES and not deep:
        if beginning:
            return []
        return [
            Finding(
                "unverified",
                f"the values of weights (NaN, infinity): {total / 2**30:.1f} GiB to read; "
                "check --deep does, and a run does before it merges",
            )
        ]
    found: list[Finding] = []
    for model in real.values():
        scan = scan_values(model)
        if scan.bad:
            found.append(Finding("error", f"{model.name}: {scan.damage}"))
        found += [Finding("unverified", f"{model.name}: {line}") for line in scan.unread]
    return found
