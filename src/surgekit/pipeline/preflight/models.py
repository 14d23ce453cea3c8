"""Pre-flight of the models: sources, sizes, vocabularies."""

from __future__ import annotations

import json
from pathlib import Path

from surgekit.errors import InputError
from surgekit.findings import Finding, attempt
from surgekit.models.source import resolve_folder, split_lora_folder
from surgekit.pipeline.models import source_files
from surgekit.pipeline.surgery import module_config
from surgekit.recipe import Recipe


def check_models(recipe: Recipe) -> list[Finding]:
    """What the models' files and configurations say without their weights being read."""
    findings: list[Finding] = []
    sizes: dict[str, tuple[int | None, int | None]] = {}
    sources = {"base": recipe.base} | {
        f"domains.{n}.expert": d.expert.over(recipe.base) for n, d in recipe.domains.items()
    }
    for where, source in sources.items():
        try:
            source_files(source)
            plain = split_lora_folder(source)
            if plain.lora and not (Path(plain.lora) / "adapter_config.json").is_file():
                raise InputError(
                    f"{plain.lora}: expected a PEFT adapter folder, found no adapter_config.json"
                )
            if plain.model is not None:
                sizes[where] = _sizes(resolve_folder(plain.model, plain.revision))
        except InputError as error:
            findings.append(Finding("error", f"{where}: {error}"))
    if recipe.merged_folder is not None:
        try:
            sizes["merge"] = _sizes(resolve_folder(recipe.merged_folder))
        except InputError as error:
            findings.append(Finding("error", f"merge: {error}"))
    widths = {where: size[0] for where, size in sizes.items() if size[0] is not None}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{where} {width}" for where, width in widths.items())
        findings.append(Finding("error", f"models of one hidden size are needed, found {found}"))
    for method in recipe.methods():
        for width in set(widths.values()):
            attempt(findings, lambda m=method, w=width: module_config(m, w))
    rows = {where: size[1] for where, size in sizes.items() if size[1] is not None}
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{where} {count}" for where, count in rows.items())
        findings.append(
            Finding(
                "warning",
                f"vocabularies differ ({found}); fidelity is measured on the common part",
            )
        )
    return findings


def _sizes(folder: Path) -> tuple[int | None, int | None]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}/config.json: not readable as JSON ({error})") from error
    text = config.get("text_config") or config
    return text.get("hidden_size") or text.get("n_embd"), text.get("vocab_size")
