"""Merging: mergekit behind one function that is repeatable and whole-or-nothing.

What it adds to mergekit: models by name, cached hub ids offline, the same bytes for the same seed
whatever PYTHONHASHSEED is, tokenizer, template and generation config that survive, a config.json
that says the dtype the tensors have, and how much of each model the merge takes.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from safetensors import safe_open

from surgekit._version import __version__
from surgekit.errors import InputError, SurgekitError
from surgekit.files import folder_written_whole, read_json, write_text
from surgekit.merging.config import (
    config_file,
    fill_base,
    folder_of,
    in_order,
    list_experts,
    model_folder,
    parameters_given,
    read_merge_config,
    references,
    resolve_models,
)
from surgekit.merging.mergekit_guard import mergekit_errors, tamed
from surgekit.merging.weights import effective_weights, plan, unused_settings

if TYPE_CHECKING:
    from mergekit.merge_methods import MergeMethod

__all__ = ["MergeResult", "merge", "read_merge_config"]

_LOG = logging.getLogger("surgekit.merging")

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.json",
)
_COMPANIONS = (
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
_TEMPLATE = "chat_template.jinja"
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


@dataclass(frozen=True)
class MergeResult:
    """What a merge left behind.

    Attributes:
        folder: the merged checkpoint.
        config: mergekit's configuration as run: absolute folders, base_model filled in.
        effective_weights: model → how much of it enters; see ``surgekit.merging.weights``.
        seed: of the random masks of dare_* and della*.
        mergekit: its version.
    """

    folder: Path
    config: dict[str, Any]
    effective_weights: dict[str, Any]
    seed: int
    mergekit: str


def merge(
    config: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    models: Mapping[str, str | Path] | None = None,
    base: str | Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    trust_remote_code: bool = False,
    tokenizer_from: Path | None = None,
    quiet: bool = True,
) -> MergeResult:
    """Merge models as a mergekit configuration says, into a folder that transformers can load.

    Args:
        config: mergekit's own YAML: a file, text, or a mapping. Wherever it names a model it may
            use a name of ``models``, a folder (relative to the file, else to the working
            directory) or a hub id. Without ``models``, ``slices`` and ``modules`` it merges all
            of ``models`` but the base, at weight 1.
        out: the folder to write; must be absent or empty. Written whole or not at all.
        models: name → checkpoint folder or hub id; the name ``base`` is the base model's.
        base: the base model, for methods that need one and a config that names none.
        seed: of random masks. The caller's own random state is left as it was.
        device: where mergekit computes.
        trust_remote_code: run Python code that comes with a checkpoint. Off unless asked for.
        tokenizer_from: a folder whose tokenizer, chat template and (if it has one) generation
            config go along, instead of the base's (else the first model's). What the config
            itself says of the tokenizer (``tokenizer``, ``tokenizer_source``, ``chat_template``)
            comes first.
        quiet: silence mergekit's log and progress bars.

    Raises:
        InputError: anything wrong with the configuration, the models or ``out``.
        SurgekitError: the merge could not be written, or memory ran out.
    """
    settings = read_merge_config(config)
    folder = Path(out).expanduser().absolute()
    _expect_room(folder)
    if tokenizer_from is not None:
        _expect_tokenizer(Path(tokenizer_from))
    file = None if isinstance(config, Mapping) else config_file(config)
    root = file.absolute().parent if file else Path.cwd()
    known = {n: model_folder(str(m), {}, Path.cwd()) for n, m in (models or {}).items()}
    if base is not None:
        known["base"] = model_folder(str(base), known, Path.cwd())

    with tamed(quiet):
        from mergekit.common import ModelReference
        from mergekit.merge import run_merge
        from mergekit.options import MergeOptions

        what = f"{settings['merge_method']} merge"
        method = _method(settings["merge_method"])
        list_experts(settings, method, known)
        names = resolve_models(settings, known, root)
        fill_base(settings, method, known)
        if "base" in known:
            names.setdefault(str(known["base"]), "base")
        with mergekit_errors(what):
            options = MergeOptions(
                device=device,
                random_seed=seed,
                trust_remote_code=trust_remote_code,
                write_model_card=False,
                copy_tokenizer=bool(settings.get("chat_template")),
                quiet=quiet,
            )
            tasks = plan(in_order(settings), options)
            called = {
                ModelReference.model_validate(ref): names[folder_of(ref)]
                for ref in references(settings)
            }
        given = {names[f]: p for f, p in parameters_given(settings).items()}
        weights = effective_weights(tasks, method, called, given)
        ignored = unused_settings(settings, method)
        result = MergeResult(folder, settings, weights, seed, version("mergekit"))
        with folder_written_whole(folder) as beside:
            with mergekit_errors(what):
                run_merge(in_order(settings), str(beside), options)
            _complete(beside, settings, tokenizer_from, trust_remote_code)
            _say_dtype(beside)
            _write_record(beside, result)
    for line in ignored:
        _LOG.warning("mergekit ignores %s", line)
    return result


def check_method(config: Mapping[str, Any]) -> None:
    """Raise InputError where mergekit has no such ``merge_method``; loads mergekit."""
    with tamed(quiet=True):
        _method(config["merge_method"])


def _method(name: str) -> MergeMethod:
    from mergekit import merge_methods

    methods = {m.spec.name: m for m in merge_methods.registered_methods()}
    if name not in methods:
        raise InputError(
            f"unknown merge_method {name!r}; mergekit has {', '.join(sorted(methods))}"
        )
    return methods[name]


def _expect_room(folder: Path) -> None:
    if folder.is_dir():
        found = next(folder.iterdir(), None)
        if found is not None:
            raise InputError(
                f"{folder}: expected no folder or an empty one, found {found.name} in it; "
                "choose another or empty it"
            )
    elif folder.exists() or folder.is_symlink():
        raise InputError(f"{folder}: expected no folder or an empty one, found a file")


def _expect_tokenizer(folder: Path) -> None:
    if not _has_tokenizer(folder):
        raise InputError(
            f"tokenizer_from: expected a folder with a tokenizer, found none: {folder}"
        )


def _complete(
    folder: Path, config: dict[str, Any], tokenizer_from: Path | None, code: bool
) -> None:
    """Add what a checkpoint needs besides weights and config, where mergekit wrote none."""
    first = Path(folder_of(references(config)[0]))
    tokenizer = config.get("tokenizer")
    source = tokenizer.get("source") if isinstance(tokenizer, dict) else None
    source = source or config.get("tokenizer_source")
    named = None if source in (None, "base", "union") else Path(folder_of(source))
    # The ids of special tokens in a generation config go with the tokenizer.
    donor = Path(tokenizer_from) if tokenizer_from is not None else named or first
    if tokenizer or source or config.get("chat_template"):
        if not _has_tokenizer(folder):
            # mergekit only logs this failure.
            raise InputError(
                f"chat_template: expected a tokenizer in {first} and a template that mergekit "
                "knows, 'auto', or a jinja text; mergekit could not write the tokenizer with it"
            )
    else:
        _copy_missing(_TOKENIZER_FILES, donor, folder)
    template = _template(donor)
    if template is not None and _template(folder) is None:
        write_text(folder / _TEMPLATE, template)
    for folder_with_some in (donor, first):
        _copy_missing(_COMPANIONS, folder_with_some, folder)
    if code:
        _copy_missing([f.name for f in sorted(first.glob("*.py"))], first, folder)


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def _copy_missing(names: Iterable[str], donor: Path, folder: Path) -> None:
    for name in names:
        if (donor / name).is_file() and not (folder / name).exists():
            shutil.copyfile(donor / name, folder / name)


def _template(folder: Path) -> str | None:
    """The chat template in a checkpoint folder, wherever it is kept."""
    file = folder / _TEMPLATE
    if file.is_file():
        return file.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    found = read_json(config, "tokenizer config").get("chat_template") if config.is_file() else None
    return found if isinstance(found, str) else None


def _say_dtype(folder: Path) -> None:
    """Make config.json say the dtype of most weights, which is what loading goes by."""
    sizes: Counter[str] = Counter()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                part = tensors.get_slice(name)
                sizes[part.get_dtype()] += math.prod(part.get_shape())
    common = next((_DTYPES[name] for name, _ in sizes.most_common() if name in _DTYPES), None)
    if common is None:
        raise SurgekitError(f"mergekit wrote no weights into {folder}")
    path = folder / "config.json"
    config = read_json(path, "model config")
    for part in [config, *(v for v in config.values() if isinstance(v, dict))]:
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = common
    config["dtype"] = common
    write_text(path, json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _write_record(folder: Path, result: MergeResult) -> None:
    text = yaml.safe_dump(result.config, sort_keys=False, allow_unicode=True)
    write_text(folder / "mergekit_config.yml", text)
    rows = [f"| {name} | {_shown(weight)} |" for name, weight in result.effective_weights.items()]
    card = [
        "---",
        "library_name: transformers",
        "tags: [mergekit, merge, surgekit]",
        "---",
        "# A merged model",
        "",
        f"Merged by `{result.config['merge_method']}` with "
        f"[mergekit](https://github.com/arcee-ai/mergekit) {result.mergekit} through surgekit "
        f"{__version__}, seed {result.seed}. The configuration is in `mergekit_config.yml`.",
        "",
        "| model | effective weight |",
        "|---|---|",
        *rows,
    ]
    write_text(folder / "README.md", "\n".join(card) + "\n")


def _shown(weight: Any) -> str:
    """A model's effective weight in words, for the card."""
    if isinstance(weight, (int, float)):
        return f"{weight:.6g}"
    if not isinstance(weight, dict):
        return str(weight)
    if set(weight) == {"min", "max"}:
        return f"{weight['min']:.6g} to {weight['max']:.6g}"
    return ", ".join(
        value if key == "note" else f"{key} {_shown(value)}" for key, value in weight.items()
    )
