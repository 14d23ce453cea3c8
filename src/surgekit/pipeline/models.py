"""First stages: every model as a folder on disk, and the merge of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surgekit.files import folder_written_whole
from surgekit.merging import merge, read_merge_config
from surgekit.merging.config import resolve_models
from surgekit.models.fingerprint import digest_json
from surgekit.models.loading import is_plain_folder, materialize
from surgekit.models.source import ModelSource, gguf_path, resolve_folder, split_lora_folder
from surgekit.pipeline.run_directory import RunDirectory
from surgekit.recipe import Recipe

_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.json", "*.model", "*.jinja", "*.txt")


@dataclass(frozen=True)
class ModelFolders:
    """Where the models lie, and what identifies their content.

    Attributes:
        folders: by name: ``base``, ``merged``, and each domain for its expert.
        identities: a digest each, of content and of how it was made.
        merge: what the merge stage reports (None for a merge the user brought).
    """

    folders: Mapping[str, Path]
    identities: Mapping[str, str]
    merge: dict[str, Any] | None


def prepare_models(run: RunDirectory, recipe: Recipe, *, trust_remote_code: bool) -> ModelFolders:
    """Write out what is no plain folder yet (GGUF, LoRA), then merge."""
    folders: dict[str, Path] = {}
    identities: dict[str, str] = {}
    sources = {"base": recipe.base} | {
        name: domain.expert.over(recipe.base) for name, domain in recipe.domains.items()
    }
    for name, source in sources.items():
        source = split_lora_folder(source)
        inputs = {
            "source": source.model_dump(exclude_none=True),
            "content": run.content_of(source_files(source)),
            "dtype": recipe.dtype,
        }
        if is_plain_folder(source):
            folders[name] = resolve_folder(str(source.model), source.revision)
            identities[name] = inputs["content"]
            continue
        folder = run.path("models", name)

        def write_out(source: ModelSource = source, folder: Path = folder) -> None:
            with folder_written_whole(folder) as beside:
                materialize(source, beside, dtype=recipe.dtype, trust_remote_code=trust_remote_code)

        run.stage(f"models/{name}", inputs, [folder], write_out)
        folders[name], identities[name] = folder, digest_json(inputs)
    return _merge(run, recipe, folders, identities, trust_remote_code)


def merged_models(recipe: Recipe, folders: Mapping[str, Path]) -> dict[str, str]:
    """Folder → name of every model that the recipe's merge asks for; of ``folders`` or its own.

    Raises:
        InputError: the configuration is none, or names a model that is neither.
    """
    root = Path(recipe.merge).parent if isinstance(recipe.merge, str) else Path.cwd()
    return resolve_models(read_merge_config(recipe.merge), folders, root)


def source_files(source: ModelSource) -> list[Path]:
    """The files a source's content lies in."""
    files: list[Path] = []
    gguf = gguf_path(source)
    if gguf is not None:
        files.append(gguf)
    elif source.model is not None:
        files += _weight_files(resolve_folder(source.model, source.revision))
    if source.lora is not None:
        files += _weight_files(Path(source.lora))
    return files


def _merge(
    run: RunDirectory,
    recipe: Recipe,
    folders: dict[str, Path],
    identities: dict[str, str],
    trust_remote_code: bool,
) -> ModelFolders:
    brought = recipe.merged_folder
    if brought is not None:
        folder = resolve_folder(brought)
        identity = run.content_of(_weight_files(folder))
        return ModelFolders(folders | {"merged": folder}, identities | {"merged": identity}, None)
    folder = run.path("merged")
    config = read_merge_config(recipe.merge)
    seed = recipe.seeds[0]
    inputs: dict[str, Any] = {"config": config, "models": identities, "seed": seed}
    for other, name in merged_models(recipe, folders).items():
        if other not in map(str, folders.values()):
            inputs["models"] = inputs["models"] | {name: run.content_of(_weight_files(Path(other)))}

    def work() -> dict[str, Any]:
        if folder.exists():
            _remove_folder(folder)
        result = merge(
            recipe.merge,
            folder,
            models=folders,
            base=folders["base"],
            seed=seed,
            trust_remote_code=trust_remote_code,
        )
        return {
            "config": result.config,
            "effective_weights": result.effective_weights,
            "seed": seed,
            "mergekit": result.mergekit,
        }

    report = run.stage("merge", inputs, [folder], work)
    return ModelFolders(
        folders | {"merged": folder}, identities | {"merged": digest_json(inputs)}, report
    )


def _weight_files(folder: Path) -> list[Path]:
    return [p for pattern in _WEIGHT_PATTERNS for p in folder.glob(pattern) if p.is_file()]


def _remove_folder(folder: Path) -> None:
    """Remove an outdated merge of this run; mergekit needs an empty place."""
    import shutil

    shutil.rmtree(folder)
