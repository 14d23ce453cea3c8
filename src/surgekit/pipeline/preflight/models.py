"""Pre-flight of the models: sources, headers, sizes, vocabularies; no weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from surgekit.errors import InputError
from surgekit.findings import Finding, attempt
from surgekit.models.checkpoint import DTYPE_NAMES, Checkpoint, read_checkpoint
from surgekit.models.compatibility import compare_models
from surgekit.models.gguf_header import gguf_checkpoint
from surgekit.models.loading import parse_dtype
from surgekit.models.lora_header import check_lora, read_lora
from surgekit.models.source import (
    ModelSource,
    cached_folder,
    gguf_path,
    lora_config,
    resolve_folder,
    split_lora_folder,
)
from surgekit.pipeline.surgery import module_config
from surgekit.recipe import Recipe


@dataclass
class Models:
    """The models of a recipe by their headers.

    Attributes:
        checkpoints: ``base``, and each domain for its expert, as far as they could be read. A
            LoRA is its base as it will be written out, and so is a GGUF file.
        merged: the merge that the user brings.
        fetch: whether the hub is asked for what the cache lacks.
        to_fetch: hub ids that are not in the local cache.
        under: what LoRAs lie on, as read before; by where it comes from.
    """

    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    merged: Checkpoint | None = None
    fetch: bool = False
    to_fetch: list[str] = field(default_factory=list)
    under: dict[ModelSource, Checkpoint | None] = field(default_factory=dict)


def check_models(recipe: Recipe, *, fetch: bool = False) -> tuple[Models, list[Finding]]:
    """What the models' files and configurations say without their weights being read.

    Args:
        recipe: from ``load_recipe``.
        fetch: get from the hub what the cache lacks; else it is left unverified.
    """
    findings: list[Finding] = []
    models = Models(fetch=fetch)
    sources = {"base": recipe.base}
    for name, domain in recipe.domains.items():
        over = attempt(findings, lambda d=domain: d.expert.over(recipe.base))
        if over is not None:
            sources[name] = over
    for name, source in sources.items():
        where = name if name == "base" else f"domains.{name}.expert"
        found = attempt(
            findings, lambda s=source, w=where: _read(s, w, models, recipe.dtype), where
        )
        if found is not None:
            checkpoint, remarks = found
            findings += remarks
            if checkpoint is not None:
                models.checkpoints[name] = checkpoint
    if recipe.merged_folder is not None:
        folder = recipe.merged_folder
        models.merged = attempt(findings, lambda: _read_folder(folder, "merge", models), "merge")
    findings += _check_sizes(recipe, models)
    findings += [
        Finding(
            "unverified",
            f"{name}: not in the local cache of the hub; a run fetches it, and checks it then",
        )
        for name in dict.fromkeys(models.to_fetch)
    ]
    return models, findings


def check_apart(merged: ModelSource, experts: Mapping[str, ModelSource]) -> list[Finding]:
    """What a merged model and experts at hand say of each other, before any is loaded.

    Args:
        merged: the merged model.
        experts: by what to call them.
    """
    models, findings = Models(fetch=True), list[Finding]()
    for name, source in {"the merged model": merged, **experts}.items():
        found = attempt(findings, lambda s=source, n=name: _read(s, n, models, None), name)
        if found is not None and found[0] is not None:
            models.checkpoints[name] = found[0]
            findings += found[1]
    one = models.checkpoints.pop("the merged model", None)
    if one is None:
        return findings
    for name, other in models.checkpoints.items():
        widths = [c.config.get("hidden_size") or c.config.get("n_embd") for c in (one, other)]
        if None not in widths and widths[0] != widths[1]:
            said = (
                f"{name}: hidden sizes differ ({widths[0]} and {widths[1]}) from the merged model"
            )
            findings.append(Finding("error", said))
            continue
        findings += compare_models(one, other, averaged=False)
    return findings


def _read(
    source: ModelSource, where: str, models: Models, dtype: str | None
) -> tuple[Checkpoint | None, list[Finding]]:
    """A model's headers as the merge will find them, and what its LoRA has to say."""
    plain = split_lora_folder(source)
    if plain.lora is not None:
        lora_config(Path(plain.lora).expanduser())
    whole, gguf = plain.model_copy(update={"lora": None}), gguf_path(plain)
    if whole not in models.under:
        if gguf is not None:
            models.under[whole] = gguf_checkpoint(gguf, where)
        else:
            models.under[whole] = _read_folder(str(plain.model), where, models, plain.revision)
    under = models.under[whole]
    if under is None:
        return None, []
    under = replace(
        under, name=where, aliases=tuple(a for a in (plain.package, *under.aliases) if a)
    )
    remarks: list[Finding] = []
    if plain.lora is not None:
        lora = read_lora(Path(plain.lora).expanduser())
        if lora is None:
            remarks.append(
                Finding(
                    "unverified",
                    f"{where}: whether the LoRA fits (a .bin of the old form shows its names only "
                    "when it is loaded)",
                )
            )
        else:
            remarks += check_lora(lora, under, where)
    if gguf is not None or plain.lora is not None:
        wanted = parse_dtype(dtype)
        written = None if wanted is None else DTYPE_NAMES[wanted]
        tensors = {n: replace(i, dtype=written or i.dtype) for n, i in under.tensors.items()}
        return replace(under, tensors=tensors, virtual=True), remarks
    return under, remarks


def _read_folder(
    model: str, where: str, models: Models, revision: str | None = None
) -> Checkpoint | None:
    folder = (resolve_folder if models.fetch else cached_folder)(model, revision)
    if folder is None:
        models.to_fetch.append(model)
        return None
    try:
        found = read_checkpoint(folder, where)
    except InputError:
        if models.fetch or Path(model).expanduser().is_dir():
            raise
        models.to_fetch.append(model)  # half of it is cached; a run fetches the rest
        return None
    return replace(found, aliases=tuple(dict.fromkeys((model, *found.aliases))))


def _check_sizes(recipe: Recipe, models: Models) -> list[Finding]:
    findings: list[Finding] = []
    shown = {
        name if name == "base" else f"domains.{name}.expert": checkpoint.config
        for name, checkpoint in models.checkpoints.items()
    }
    if models.merged is not None:
        shown["merge"] = models.merged.config
    widths = {w: c.get("hidden_size") or c.get("n_embd") for w, c in shown.items()}
    widths = {w: width for w, width in widths.items() if width is not None}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{where} {width}" for where, width in widths.items())
        findings.append(Finding("error", f"models of one hidden size are needed, found {found}"))
    for method in recipe.methods():
        for width in set(widths.values()):
            attempt(findings, lambda m=method, w=width: module_config(m, w))
    rows = {w: c["vocab_size"] for w, c in shown.items() if c.get("vocab_size") is not None}
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{where} {count}" for where, count in rows.items())
        findings.append(
            Finding(
                "warning",
                f"vocabularies differ ({found}); fidelity is measured on the common part",
            )
        )
    return findings
