"""Examining a merge before it is made: its settings, its models, and what would come of them.

The same is done before every merge, and for models that are not written out yet (GGUF files,
LoRAs): headers stand in for them, and mergekit plans over those.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surgekit.errors import InputError, NotFiniteError
from surgekit.findings import Finding, has_error
from surgekit.merging.config import (
    fill_base,
    folder_of,
    in_order,
    list_experts,
    parameters_given,
    references,
    resolve_models,
)
from surgekit.merging.effects import check_effects
from surgekit.merging.mergekit_guard import mergekit_errors, tamed
from surgekit.merging.parameter_values import check_listed_once, check_parameter_values
from surgekit.merging.settings import check_input_dtypes, check_settings
from surgekit.merging.slices import check_slice_bounds
from surgekit.merging.weights import effective_weights, plan
from surgekit.models.checkpoint import Checkpoint, read_checkpoint
from surgekit.models.compatibility import (
    check_distance,
    check_model,
    compare_models,
)
from surgekit.models.values import (
    CHEAP_BYTES,
    distance,
    same_values,
    scan_values,
    size_of_values,
)
from surgekit.models.vocabulary import (
    compare_ends,
    compare_templates,
    compare_vocabularies,
    vocabulary_of,
)
from surgekit.parsing import nearest

if TYPE_CHECKING:
    from mergekit.merge_methods import MergeMethod
    from mergekit.options import MergeOptions


@dataclass(frozen=True)
class Prepared:
    """A merge that could begin.

    Attributes:
        method: mergekit's.
        config: with folders for models and the base filled in.
        names: folder → what the user calls that model.
        models: folder → headers, the one that gives the configuration first.
        effective_weights: by those names; see ``surgekit.merging.weights``.
    """

    method: MergeMethod
    config: dict[str, Any]
    names: dict[str, str]
    models: dict[str, Checkpoint]
    effective_weights: dict[str, Any]


def prepare(
    config: dict[str, Any],
    root: Path,
    known: Mapping[str, Path],
    options: MergeOptions,
    findings: list[Finding],
    headers: Mapping[str, Checkpoint] | None = None,
) -> Prepared | None:
    """Do all of a merge that comes before the weights are read; within ``tamed``.

    Args:
        config: from ``read_merge_config``; models in it are resolved in place.
        root: the folder that relative paths in it are taken from.
        known: name → folder.
        options: mergekit's.
        findings: what there is to say is added to these.
        headers: folder → headers, where they have been read already.

    Returns:
        None where an error is among the findings, or where headers do not say enough to plan by.

    Raises:
        InputError: a model that is not there, or a configuration that mergekit refuses.
    """
    from mergekit.common import ModelReference

    method = find_method(config["merge_method"])
    findings += check_settings(config, method)
    findings += check_parameter_values(config, method)
    list_experts(config, method, known)
    names = resolve_models(config, known, root)
    findings += check_listed_once(config, names)
    given = config.get("base_model")
    fill_base(config, method, known)
    if not given and config.get("base_model") and method.spec.contract.base.value == "ignored":
        first = names[folder_of(config["base_model"])]
        findings.append(
            Finding(
                "note",
                f"no base_model is given: configuration, tokenizer and chat template are those of "
                f"the first model, {first} (mergekit by itself takes any one's)",
            )
        )
    if "base" in known:
        names.setdefault(str(known["base"]), "base")
    models = {
        folder: (headers or {}).get(folder) or read_checkpoint(Path(folder), names.get(folder))
        for folder in dict.fromkeys(folder_of(ref) for ref in references(config))
    }
    findings += _judge_models(config, models)
    if has_error(findings):
        return None
    if any(
        m.virtual and not (m.tensors and m.config.get("architectures")) for m in models.values()
    ):
        said = "what the merge comes to (the names of the weights show when they are unpacked)"
        findings.append(Finding("unverified", said))
        return None
    with mergekit_errors(f"{method.spec.name} merge"):
        tasks = plan(in_order(config), options)
        called = {
            ModelReference.model_validate(ref): names[folder_of(ref)] for ref in references(config)
        }
    own = {names[f]: p for f, p in parameters_given(config).items()}
    weights = effective_weights(tasks, method, called, own)
    findings += check_effects(tasks, method, called, weights, config)
    findings += _judge_values(models)
    return Prepared(method, config, names, models, weights)


def examine_merge(
    config: Mapping[str, Any],
    root: Path,
    models: Mapping[str, Checkpoint],
    *,
    trust_remote_code: bool = False,
) -> tuple[list[Finding], list[Checkpoint]]:
    """What is wrong with a merge, or worth knowing, as far as headers and a sample can tell.

    Args:
        config: from ``read_merge_config``; left as it is.
        root: the folder that relative paths in it are taken from.
        models: by the names that the configuration may use, ``base`` among them. Those that are
            no plain folders yet are given by the headers they will have.
        trust_remote_code: configurations that come with code are read with it.

    Returns:
        What was found, and the models that take part; none where an error kept them from being
        told.
    """
    findings: list[Finding] = []
    taking_part: list[Checkpoint] = []
    with tempfile.TemporaryDirectory(prefix="surgekit-check-") as beside:
        known = {name: _standing(model, name, Path(beside)) for name, model in models.items()}
        headers = {str(known[name]): model for name, model in models.items()}
        try:
            with tamed(quiet=True):
                from mergekit.options import MergeOptions

                options = MergeOptions(trust_remote_code=trust_remote_code, quiet=True)
                copied = copy.deepcopy(dict(config))
                ready = prepare(copied, root, known, options, findings, headers)
                taking_part = [] if ready is None else list(ready.models.values())
        except InputError as error:
            said = str(error)
            for name, folder in known.items():
                if folder.is_relative_to(Path(beside).resolve()):
                    said = said.replace(str(folder), name)
            findings.append(Finding("error", said))
    return findings, taking_part


def examine_settings(config: Mapping[str, Any]) -> list[Finding]:
    """What the configuration alone says; for models that cannot be read yet."""
    with tamed(quiet=True):
        method = find_method(config["merge_method"])
        return [*check_settings(config, method), *check_parameter_values(config, method)]


def takes_task_vectors(name: str) -> bool:
    """Whether a method's base is what its models are compared with, and not one of them.

    By mergekit's contract of the method: slerp and its like need a base and take two models in
    all, so one of the two is it; others look at no base.

    Raises:
        InputError: mergekit has no such method.
    """
    with tamed(quiet=True):
        contract = find_method(name).spec.contract
    if contract.base.value == "ignored":
        return False
    return contract.base.value != "required" or contract.max_inputs is None


def find_method(name: str) -> MergeMethod:
    """mergekit's method of that name; raises InputError where it has none; within ``tamed``."""
    from mergekit import merge_methods

    methods = {m.spec.name: m for m in merge_methods.registered_methods()}
    if name not in methods:
        raise InputError(
            f"unknown merge_method {name!r}{nearest(name, methods)}; mergekit has "
            f"{', '.join(sorted(methods))}"
        )
    return methods[name]


def _judge_models(config: Mapping[str, Any], models: Mapping[str, Checkpoint]) -> list[Finding]:
    """The models of a merge by themselves, and against the one that gives the configuration."""
    first, *others = models.values()
    sliced = bool(config.get("slices") or config.get("modules"))
    aligned = bool(config.get("tokenizer") or config.get("tokenizer_source"))
    read = {files: vocabulary_of(m) for files, m in {m.files: m for m in models.values()}.items()}
    vocabularies = {m.name: read[m.files] for m in models.values()}
    found: list[Finding] = []
    for model in models.values():
        if not model.virtual:
            found += check_model(model, vocabularies[model.name])
            found += _one_architecture(model)
    for other in others:
        found += compare_models(first, other, sliced=sliced, aligned=aligned)
        one, two = vocabularies[first.name], vocabularies[other.name]
        if one is not None and two is not None:
            found += compare_vocabularies((first.name, other.name), one, two, aligned=aligned)
        found += compare_ends(first, other, one, two)
    if not aligned and not config.get("chat_template"):
        templates = {n: v.template if v else None for n, v in vocabularies.items()}
        found += compare_templates(templates.pop(first.name), templates)
    found += check_input_dtypes(config, {m.name: _dtype(m) for m in models.values()})
    depths = {folder: m.config.get("num_hidden_layers") for folder, m in models.items()}
    names = {folder: m.name for folder, m in models.items()}
    return found + check_slice_bounds(config, depths, names)


def _one_architecture(model: Checkpoint) -> list[Finding]:
    named = model.config.get("architectures")
    if isinstance(named, list) and len(named) == 1:
        return []
    return [
        Finding(
            "error",
            f"{model.name}: expected one name under architectures in its config.json, by which "
            f"mergekit goes, found {named!r}",
        )
    ]


def _judge_values(models: Mapping[str, Checkpoint]) -> list[Finding]:
    """Experts that are their base, or each other, or are of another base; by a sample."""
    whole = [m for m in models.values() if not m.virtual]
    found: list[Finding] = []
    same: set[str] = set()
    for i, one in enumerate(whole):
        for other in whole[i + 1 :]:
            measured = distance(one, other)
            if measured is None or other.name in same:
                continue
            if measured.equal and _same(one, other):
                same.add(other.name)
                found.append(
                    Finding(
                        "warning",
                        f"{other.name}: the same weights as {one.name}, value by value; is it the "
                        "model that was meant?",
                    )
                )
            elif one is whole[0] and next(iter(models.values())) is one:
                found += check_distance(other.name, one.name, measured)
    return found


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    return size_of_values(one) > CHEAP_BYTES or same_values(one, other)


def _standing(model: Checkpoint, name: str, beside: Path) -> Path:
    """The folder mergekit plans over: the model's own, or one of headers alone."""
    if not model.virtual:
        return model.folder.resolve()
    folder = beside / name
    folder.mkdir()
    kept = {k: v for k, v in model.config.items() if k != "quantization_config"}
    (folder / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    index = {"metadata": {}, "weight_map": dict.fromkeys(model.tensors, "model-1.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder.resolve()


def _dtype(model: Checkpoint) -> str:
    """The dtype of most of a model's tensors, as safetensors names it."""
    counts = Counter(i.dtype for i in model.tensors.values())
    return counts.most_common(1)[0][0] if counts else ""


def expect_finite(ready: Prepared) -> list[Finding]:
    """Read all weights that a merge takes, before any of it is written.

    Returns:
        What could not be read, as ``unverified``.

    Raises:
        NotFiniteError: NaN or infinity in a weight; names the model and the weight.
    """
    found: list[Finding] = []
    for model in ready.models.values():
        scan = scan_values(model)
        if scan.bad:
            raise NotFiniteError(f"model {model.name} ({model.folder}): {scan.damage}")
        found += [Finding("unverified", f"{model.name}: {line}") for line in scan.unread]
    return found
