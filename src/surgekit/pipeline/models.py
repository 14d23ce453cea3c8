"""First stages: every model as a folder on disk, and the merge of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surgekit.files import folder_written_whole
from surgekit.merging import merge, read_merge_config
from surgekit.merging.config import renamed, resolve_models
from surgekit.models.fingerprint import digest_json
from surgekit.models.loading import is_plain_folder, materialize
from surgekit.models.source import ModelSource, gguf_path, resolve_folder, split_lora_folder
from surgekit.pipeline.contents import COUNTED
from surgekit.pipeline.run_directory import RunDirectory
from surgekit.recipe import Recipe


@dataclass(frozen=True)
class ModelFolders:
    """Where the models lie, and what identifies their content.

    Attributes:
        folders: by name: ``base``, ``merged``, and each domain for its expert.
        identities: a digest each, of content and of how it was made; never of where it lies.
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
        content = {part: run.content_of(files) for part, files in _parts(source).items()}
        if is_plain_folder(source):
            folders[name] = resolve_folder(str(source.model), source.revision)
            identities[name] = content["model"]
            continue
        inputs = {"content": content, "dtype": recipe.dtype}
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
    return _resolved_merge(recipe, folders)[1]


def source_files(source: ModelSource) -> list[Path]:
    """The files a source's content lies in."""
    return [file for files in _parts(source).values() for file in files]


def _parts(source: ModelSource) -> dict[str, list[Path]]:
    parts: dict[str, list[Path]] = {}
    gguf = gguf_path(source)
    if gguf is not None:
        parts["gguf"] = [gguf]
    elif source.model is not None:
        parts["model"] = _weight_files(resolve_folder(source.model, source.revision))
    if source.lora is not None:
        parts["lora"] = _weight_files(Path(source.lora))
    return parts


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
    seed = recipe.seeds[0]
    inputs = _merge_inputs(run, recipe, folders, identities)

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
            warn=False,  # the pre-flight has told the same
        )
        return {
            "config": result.config,
            "effective_weights": result.effective_weights,
            "seed": seed if result.randomized else None,
            "mergekit": result.mergekit,
        }

    report = run.stage(
        "merge", inputs, [folder], work, holds=lambda report: report["seed"] in (None, seed)
    )
    identity = digest_json(inputs | {"seed": report["seed"]})
    return ModelFolders(folders | {"merged": folder}, identities | {"merged": identity}, report)


def _merge_inputs(
    run: RunDirectory, recipe: Recipe, folders: dict[str, Path], identities: dict[str, str]
) -> dict[str, Any]:
    """What a merge depends on but for the seed, which only some draw random numbers with."""
    config, names = _resolved_merge(recipe, folders)
    contents = {str(folders[name]): identity for name, identity in identities.items()}
    for other in names:
        if other not in contents:
            contents[other] = run.content_of(_weight_files(Path(other)))
    listed = any(config.get(key) for key in ("models", "slices", "modules"))
    return {
        "config": renamed(config, contents),
        "models": identities,
        "order": None if listed else list(recipe.domains),
    }


def _resolved_merge(
    recipe: Recipe, folders: Mapping[str, Path]
) -> tuple[dict[str, Any], dict[str, str]]:
    """(mergekit's configuration with folders for models, {folder: name})."""
    root = Path(recipe.merge).parent if isinstance(recipe.merge, str) else Path.cwd()
    config = read_merge_config(recipe.merge)
    return config, resolve_models(config, folders, root)


def _weight_files(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.suffix in COUNTED and p.is_file()]


def _remove_folder(folder: Path) -> None:
    """Remove an outdated merge of this run; mergekit needs an empty place."""
    import shutil

    shutil.rmtree(folder)
