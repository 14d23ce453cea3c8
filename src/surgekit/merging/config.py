"""mergekit's YAML: read, with every model resolved to a folder, and with the base filled in."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from surgekit.errors import InputError
from surgekit.files import user_path
from surgekit.models.source import resolve_folder
from surgekit.models.untrusted import refuse_url
from surgekit.parsing import YAML_BYTES, line_at, read_text, read_yaml, refuse_secret

if TYPE_CHECKING:
    from mergekit.config import MergeConfiguration
    from mergekit.merge_methods import MergeMethod

_KEYS = {
    "": (
        *("merge_method", "base_model", "models", "slices", "modules", "parameters", "dtype"),
        *("out_dtype", "tokenizer", "tokenizer_source", "chat_template"),
    ),
    "models": ("model", "parameters"),
    "slices": ("sources", "base_model", "residual_weight", "parameters"),
    "sources": ("model", "layer_range", "parameters"),
    "modules": ("models", "slices", "parameters"),
    "tokenizer": ("source", "tokens", "pad_to_multiple_of"),
}
"""The keys that mergekit knows, by the list or mapping that they stand in."""

_Place = tuple[dict[str, Any], str]


def read_merge_config(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """A mergekit configuration as a plain mapping, from a file, from YAML text, or from a mapping.

    Raises:
        InputError: no such file, broken YAML (with the line), no mapping, or no merge_method.
    """
    tree = None
    if isinstance(config, Mapping):
        where, value = "merge configuration", _plain(config)
        refuse_secret(str(value), where)
    else:
        file = config_file(config)
        where = str(file) if file else "merge configuration"
        text = read_text(file, "merge configuration", limit=YAML_BYTES) if file else str(config)
        value, tree = read_yaml(text, where)
    if not isinstance(value, dict):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise InputError(f"{where}: expected a mapping with merge_method and models, found {found}")
    expect_keys(value, where, tree)
    if not isinstance(value.get("merge_method"), str):
        raise InputError(
            f"{where}: merge_method is missing; name one, such as merge_method: task_arithmetic"
        )
    return value


def expect_keys(config: dict[str, Any], where: str, tree: yaml.Node | None) -> None:
    """Refuse misspelt keys, and values of another shape than mergekit's.

    Args:
        config: a configuration.
        where: names it in messages.
        tree: its syntax tree, which tells lines; None where there is none.

    Raises:
        InputError: names the key, with the nearest right one, and its line.
    """
    _refuse_misspelt(config, where, tree)
    _expect_shapes(config, where, tree)


def _refuse_misspelt(config: dict[str, Any], where: str, tree: yaml.Node | None) -> None:
    """Refuse a key that is nearly one of mergekit's; mergekit would pass it over in silence.

    Keys that are near to none are left alone: ``merge`` names them as it does its work.
    """
    for path, holder in _sections(config):
        known = _KEYS[_kind(path)]
        for key in holder:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.75)
            if near and str(key) not in known and near[0] not in holder:
                line = line_at(tree, (*path, str(key)))
                at = f"{where}, line {line}" if line else where
                full = ".".join(map(str, (*path, key)))
                raise InputError(f"{at}: unknown key {full!r}; did you mean {near[0]!r}?")


def _expect_shapes(config: dict[str, Any], where: str, tree: yaml.Node | None) -> None:
    """Refuse lists that are none, and models that are neither text nor a mapping."""

    def refuse(path: tuple[str | int, ...], expected: str, found: Any) -> None:
        line = line_at(tree, path)
        at = f"{where}, line {line}" if line else where
        raise InputError(
            f"{at}: {'.'.join(map(str, path))}: expected {expected}, found {repr(found)[:60]}"
        )

    for path, holder in _sections(config):
        for key in ("models", "slices", "sources"):
            entries = holder.get(key)
            if entries is None:
                continue
            if not isinstance(entries, list):
                refuse((*path, key), "a list", entries)
            for i, entry in enumerate(entries):
                if not isinstance(entry, dict):
                    refuse((*path, key, i), "a mapping such as {model: FOLDER}", entry)
        for key in ("model", "base_model"):
            if not isinstance(holder.get(key), (str, dict, type(None))):
                refuse((*path, key), "a folder or a hub id", holder[key])


def _kind(path: tuple[str | int, ...]) -> str:
    """Which keys belong at a path: those of ``models`` for ``models.0``."""
    if len(path) == 2 and path[0] == "modules":
        return "modules"
    return next((p for p in reversed(path) if isinstance(p, str)), "")


def _sections(config: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Every mapping whose keys are mergekit's own, with its path; the outermost first."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), config)]
    while waiting:
        path, holder = waiting.pop(0)
        if not isinstance(holder, dict):
            continue
        yield path, holder
        for key in ("models", "slices", "sources"):
            entries = holder.get(key)
            if isinstance(entries, list):
                waiting += [((*path, key, i), entry) for i, entry in enumerate(entries)]
        modules = holder.get("modules") if not path else None
        if isinstance(modules, dict):
            waiting += [(("modules", str(name)), m) for name, m in modules.items()]
        if not path:
            waiting.append((("tokenizer",), holder.get("tokenizer")))


def config_file(config: str | Path) -> Path | None:
    """The file that ``config`` names; None where it is YAML text."""
    if isinstance(config, str) and ("\n" in config or ": " in config or config.startswith("{")):
        return None
    return user_path(config)


def _plain(value: Any) -> Any:
    """A copy made of what YAML knows."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else copy.deepcopy(value)


def model_folder(ref: str, known: Mapping[str, Path], root: Path) -> Path:
    """The absolute folder of a model: a known name's, a folder, or a hub id's in the cache.

    Raises:
        InputError: none of these, or a LoRA; lists the known names.
    """
    if ref in known:
        return known[ref]
    refuse_url(ref)
    path = root / user_path(ref)
    if not path.exists() and "+" in ref:
        _refuse_lora(ref)
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        _refuse_lora(str(path))
    try:
        if path.exists() or ref.startswith((".", "/", "~")) or ref.count("/") > 1:
            return resolve_folder(str(path)).resolve()
        hub_id, _, revision = ref.partition("@")
        return resolve_folder(hub_id, revision or None).resolve()
    except InputError as error:
        if not known or path.exists():
            raise
        raise InputError(f"{error}; known names: {', '.join(sorted(known))}") from error


def _refuse_lora(ref: str) -> None:
    raise InputError(
        f"{ref}: expected a whole model, found a LoRA; list it as an expert of the recipe, "
        "{lora: FOLDER}, which lays it over the base first"
    )


def resolve_models(config: dict[str, Any], known: Mapping[str, Path], root: Path) -> dict[str, str]:
    """Put absolute folders wherever ``config`` names models; returns folder → name for people."""
    names: dict[str, str] = {}
    for holder, key in _places(config):
        ref = holder.get(key)
        # mergekit's own words; as a model's name they would change the meaning of its YAML.
        if key in ("source", "tokenizer_source") and ref in ("base", "union"):
            continue
        given: dict[str, Any] = ref if isinstance(ref, dict) else {"model": ref}
        path = given.get("model")
        if isinstance(path, dict):
            path = "@".join(str(path[k]) for k in ("path", "revision") if path.get(k))
        if not isinstance(path, str):
            continue  # missing, or no model at all: mergekit says what it expected
        if given.get("lora"):
            _refuse_lora(f"{path}+{given['lora']}")
        folder = str(model_folder(path, known, root))
        names.setdefault(folder, next((n for n, f in known.items() if str(f) == folder), path))
        holder[key] = _reference(folder, given.get("override_architecture"))
    return names


def renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A copy of what ``resolve_models`` left, with each folder in ``names`` under its name."""
    copied = _plain(config)
    for holder, key in _places(copied):
        ref = holder.get(key)
        if isinstance(ref, dict):
            path = ref.get("model")
            if isinstance(path, dict) and path.get("path") in names:
                path["path"] = names[path["path"]]
        elif isinstance(ref, str) and ref in names:
            holder[key] = names[ref]
    return copied


def absolute_paths(
    config: Mapping[str, Any], folder: Path, names: Collection[str]
) -> dict[str, Any]:
    """A copy in which relative paths of models are taken from ``folder``.

    What is in ``names``, and what is neither a path in form nor exists (hub ids), is left alone.
    """
    copied = _plain(config)
    for holder, key in _places(copied):
        ref = holder.get(key)
        if not isinstance(ref, str) or ref in (*names, "base", "union"):
            continue
        path = folder / user_path(ref)
        if path.exists() or ref.startswith((".", "/", "~")):
            holder[key] = str(path.resolve())
    return copied


def references(config: dict[str, Any]) -> list[Any]:
    """All references to models that take part in the merge, in order, the base first."""
    places = [(config, "base_model"), *_listed(config)]
    return [holder[key] for holder, key in places if holder.get(key) is not None]


def folder_of(reference: Any) -> str:
    """The folder in a reference that ``resolve_models`` wrote."""
    return reference if isinstance(reference, str) else reference["model"]["path"]


def parameters_given(config: dict[str, Any]) -> dict[str, Any]:
    """Folder → the parameters that the configuration gives this model, in each place it is listed.

    One mapping per model, or a list of them where slices list it more than once; what stands at
    the top holds for all.
    """
    everywhere = config.get("parameters") or {}
    found: dict[str, list[Any]] = {}
    for holder, key in _listed(config):
        if key == "model" and holder.get(key) is not None:
            own = {**everywhere, **(holder.get("parameters") or {})}
            found.setdefault(folder_of(holder[key]), []).append(own)
    return {k: v[0] if all(p == v[0] for p in v) else v for k, v in found.items()}


def list_experts(config: dict[str, Any], method: MergeMethod, known: Mapping[str, Path]) -> None:
    """Fill in ``models`` where the configuration says nothing of what to merge."""
    experts = [name for name in known if name != "base"]
    if any(config.get(key) for key in ("models", "slices", "modules")):
        return
    if not experts:
        raise InputError("the merge configuration lists no models; add models: [{model: …}, …]")
    everywhere = config.get("parameters")
    given = isinstance(everywhere, dict) and "weight" in everywhere
    weighted = any(p.name == "weight" for p in method.spec.input_parameters)
    own = {"parameters": {"weight": 1.0}} if weighted and not given else {}
    config["models"] = [{"model": name, **copy.deepcopy(own)} for name in experts]


def fill_base(config: dict[str, Any], method: MergeMethod, known: Mapping[str, Path]) -> None:
    """Fill in ``base_model`` where the method needs one, or where it only settles the donor.

    Raises:
        InputError: the method needs a base and none is known, or it cannot take this one.
    """
    from mergekit.merge_methods import BasePolicy

    listed = [holder[key] for holder, key in _listed(config) if key == "model" and holder.get(key)]
    sliced = any(key == "base_model" and holder.get(key) for holder, key in _listed(config))
    if config.get("base_model") or sliced:
        return
    contract = method.spec.contract
    if contract.base == BasePolicy.REQUIRED:
        if "base" not in known:
            raise InputError(f"{method.spec.name} needs a base model; add base_model: …")
        filled = _reference(str(known["base"]))
        if contract.max_inputs and len(listed) >= contract.max_inputs and filled not in listed:
            raise InputError(
                f"{method.spec.name} takes {contract.max_inputs} models with the base among them, "
                "and the base is none of those listed; name one of them as base_model"
            )
        config["base_model"] = filled
    elif contract.base == BasePolicy.IGNORED and listed and not _settles_more(config):
        # The method never looks at it, but mergekit takes config.json and the like from it, not
        # from a member of a set.
        config["base_model"] = copy.deepcopy(listed[0])


def _settles_more(config: dict[str, Any]) -> bool:
    """True where a base changes the result of a method that ignores it.

    A tokenizer of its own takes missing embeddings from the base; each of ``modules`` gets it as
    one more input.
    """
    return any(config.get(key) for key in ("modules", "tokenizer", "tokenizer_source"))


def in_order(config: dict[str, Any]) -> MergeConfiguration:
    """The configuration as mergekit's object, with the models in the order written.

    mergekit lists them out of a set, so that which one gives the config, the tokenizer and, in a
    union of vocabularies, the order of tokens depends on PYTHONHASHSEED.
    """
    from mergekit.common import ModelReference
    from mergekit.config import MergeConfiguration

    order = [ModelReference.model_validate(ref) for ref in references(config)]

    class Ordered(MergeConfiguration):
        def referenced_models(self) -> list[ModelReference]:
            return sorted(super().referenced_models(), key=order.index)

    return Ordered.model_validate(copy.deepcopy(config))


def _reference(folder: str, architecture: Any = None) -> str | dict[str, Any]:
    """A folder in a form in which mergekit reads no LoRA and no revision into its name."""
    if architecture is None and not set("+@") & set(folder):
        return folder
    reference: dict[str, Any] = {"model": {"path": folder}}
    return reference | ({"override_architecture": architecture} if architecture else {})


def _places(config: dict[str, Any]) -> Iterator[_Place]:
    """Wherever a configuration names a model, as (mapping, key): the base, then as listed."""
    yield config, "base_model"
    yield from _listed(config)
    yield config, "tokenizer_source"
    tokenizer = config.get("tokenizer")
    if isinstance(tokenizer, dict):
        yield tokenizer, "source"
        for token in _mappings(tokenizer.get("tokens")):
            source = token.get("source")
            # The long form is an embedding of its own kind instead of a model.
            if isinstance(source, dict) and "kind" in source:
                yield source, "model"
            else:
                yield token, "source"


def _listed(config: dict[str, Any]) -> Iterator[_Place]:
    for section in [config, *_mappings(config.get("modules"))]:
        for entry in _mappings(section.get("models")):
            yield entry, "model"
        for piece in _mappings(section.get("slices")):
            for source in _mappings(piece.get("sources")):
                yield source, "model"
            yield piece, "base_model"


def _mappings(value: Any) -> list[dict[str, Any]]:
    """The mappings in a list, or among a mapping's values; anything else is left to mergekit."""
    entries = list(value.values()) if isinstance(value, dict) else value
    return [v for v in entries if isinstance(v, dict)] if isinstance(entries, list) else []
