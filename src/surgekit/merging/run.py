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

import torch
from safetensors import safe_open

from surgekit.errors import InputError, NotFiniteError, SurgekitError
from surgekit.files import (
    clear_leftovers,
    expect_writable,
    folder_written_whole,
    read_json_object,
    user_path,
    write_text,
    writer_at_work,
)
from surgekit.findings import Finding, expect_no_error
from surgekit.merging.config import (
    config_file,
    folder_of,
    in_order,
    model_folder,
    read_merge_config,
    references,
)
from surgekit.merging.examining import expect_finite, prepare
from surgekit.merging.mergekit_guard import mergekit_errors, random_numbers_drawn, tamed
from surgekit.merging.record import write_record
from surgekit.models.devices import check_device
from surgekit.models.source import TOKENIZER_FILES

if TYPE_CHECKING:
    pass

__all__ = ["MergeResult", "merge", "read_merge_config"]

_LOG = logging.getLogger("surgekit.merging")

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
        seed: of random numbers.
        randomized: whether any were drawn (as dare_* and della* do); if not, any other seed would
            have given the same.
        mergekit: its version.
        findings: what was odd about the configuration or the models, and what could not be
            verified.
    """

    folder: Path
    config: dict[str, Any]
    effective_weights: dict[str, Any]
    seed: int
    randomized: bool
    mergekit: str
    findings: tuple[Finding, ...] = ()


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
    warn: bool = True,
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
        warn: log what is odd about the merge and its models; ``surgekit.pipeline.preflight``
            tells the same of a recipe.

    Raises:
        InputError: anything wrong with the configuration, the models or ``out``.
        NotFiniteError: a merged weight is NaN or infinite; says whose it was.
        SurgekitError: the merge could not be written, or memory ran out.
    """
    settings = read_merge_config(config)
    check_device(device)
    folder = user_path(out).absolute()
    _expect_room(folder)
    if tokenizer_from is not None:
        _expect_tokenizer(Path(tokenizer_from))
    file = None if isinstance(config, Mapping) else config_file(config)
    root = file.absolute().parent if file else Path.cwd()
    known = {n: model_folder(str(m), {}, Path.cwd()) for n, m in (models or {}).items()}
    if base is not None:
        known["base"] = model_folder(str(base), known, Path.cwd())

    what = f"{settings['merge_method']} merge"
    findings: list[Finding] = []
    with tamed(quiet):
        from mergekit.merge import run_merge
        from mergekit.options import MergeOptions

        with mergekit_errors(what):
            options = MergeOptions(
                device=device,
                random_seed=seed,
                trust_remote_code=trust_remote_code,
                write_model_card=False,
                copy_tokenizer=bool(settings.get("chat_template")),
                quiet=quiet,
            )
        ready = prepare(settings, root, known, options, findings)
    expect_no_error(findings)
    assert ready is not None
    names, weights = ready.names, ready.effective_weights
    findings += expect_finite(ready)
    for finding in findings:
        if warn and finding.level == "warning":
            _LOG.warning("%s", finding.message)
    with tamed(quiet), folder_written_whole(folder, replace=False) as beside:
        with mergekit_errors(what):
            run_merge(in_order(settings), str(beside), options)
        drawn = random_numbers_drawn(seed)
        result = MergeResult(
            folder, settings, weights, seed, drawn, version("mergekit"), tuple(findings)
        )
        _complete(beside, settings, tokenizer_from, trust_remote_code)
        _say_dtype(beside)
        _expect_finite(beside, names)
        told = seed if drawn else None
        write_record(beside, settings, names, weights, seed=told, mergekit=result.mergekit)
    return result


def _expect_room(folder: Path) -> None:
    clear_leftovers(folder.resolve())
    writer = writer_at_work(folder.resolve())
    if writer is not None:
        raise InputError(
            f"{folder}: process {writer} is writing it; wait for it, or name another folder"
        )
    if folder.is_dir():
        found = next(folder.iterdir(), None)
        if found is not None:
            raise InputError(
                f"{folder}: expected no folder or an empty one, found {found.name} in it; "
                "choose another or empty it"
            )
    elif folder.exists() or folder.is_symlink():
        raise InputError(f"{folder}: expected no folder or an empty one, found a file")
    expect_writable(folder)


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
        _copy_missing(TOKENIZER_FILES, donor, folder)
    template = _template(donor)
    if template is not None and _template(folder) is None:
        write_text(folder / _TEMPLATE, template)
    for folder_with_some in (donor, first):
        _copy_missing(_COMPANIONS, folder_with_some, folder)
    if code:
        _copy_missing([f.name for f in sorted(first.glob("*.py"))], first, folder)


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


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
    if not config.is_file():
        return None
    found = read_json_object(config, "tokenizer config").get("chat_template")
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
    config = read_json_object(path, "model config")
    for part in [config, *(v for v in config.values() if isinstance(v, dict))]:
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = common
    config["dtype"] = common
    write_text(path, json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _expect_finite(folder: Path, names: Mapping[str, str]) -> None:
    """Refuse a merge with NaN or infinity in it, and say which of the models brought it."""
    key = _not_finite(folder)
    if key is None:
        return
    for source, name in names.items():
        found = _not_finite(Path(source))
        if found is not None:
            raise NotFiniteError(
                f"model {name} ({source}): weight {found} holds NaN or infinity; "
                "the checkpoint is damaged"
            )
    raise NotFiniteError(
        f"the merge gives NaN or infinity in weight {key}; look at the models' weights, or change "
        "its parameters or dtype"
    )


def _not_finite(folder: Path) -> str | None:
    """The first tensor with NaN or infinity in a folder's safetensors files."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                tensor = tensors.get_tensor(name)
                if tensor.is_floating_point() and tensor.numel():
                    extremes = torch.stack([*torch.aminmax(tensor)])
                    if not bool(extremes.isfinite().all()):
                        return name
    return None
