"""What a checkpoint says of itself: configuration, and names, shapes and dtypes of its weights.

Headers alone are read, no weight is, and nothing that lies in the folder is run. What the headers
promise is held against the size of the files, so that a truncated one is found here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from surgekit.errors import InputError
from surgekit.files import read_json_object
from surgekit.models.untrusted import refusal

_SINGLE = ("model.safetensors", "pytorch_model.bin")
_MOST_LAYERS = 1000
_LFS = b"version https://git-lfs"
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""As safetensors names them."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor by its header.

    Attributes:
        dtype: as safetensors names it (``BF16``, ``F32``, …).
        shape: its sizes.
        file: where its values lie.
    """

    dtype: str
    shape: tuple[int, ...]
    file: Path


@dataclass(frozen=True)
class Checkpoint:
    """A whole model by its headers.

    Attributes:
        name: what to call it in messages (``base``, ``domains.math.expert``, a path).
        folder: where it lies (the file's folder for GGUF).
        config: of the language model; the text part where a model has several.
        tensors: by name, as transformers names them.
        files: those that hold the weights, in order.
        remarks: what is odd about the files, one line each.
        unverified: what could not be read, and why, one line each.
        virtual: it is still to be written (of a GGUF file or a LoRA): headers it will have.
        aliases: other names the model goes by: paths, hub ids.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    files: tuple[Path, ...] = ()
    remarks: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    virtual: bool = False
    aliases: tuple[str, ...] = field(default=(), compare=False)

    @property
    def model_type(self) -> str:
        """As in config.json; empty where it says none."""
        return str(self.config.get("model_type") or "")


def read_checkpoint(folder: Path, name: str | None = None) -> Checkpoint:
    """Read the headers of a checkpoint folder (safetensors or ``.bin``, whole or in shards).

    Args:
        folder: with ``config.json`` and weights.
        name: what to call it; the folder by default.

    Raises:
        InputError: no configuration, no weights, shards that are missing, or files that are
            truncated, damaged, or contradict their index.
    """
    config = read_config(folder)
    remarks: list[str] = []
    unverified: list[str] = []
    files, index = _weight_files(folder)
    found: dict[str, TensorInfo] = {}
    for file in files:
        header = read_header(file)
        if header is None:
            unverified.append(
                f"the weights in {file.name} (a .bin of the old form, which shows its names only "
                "when it is loaded); a safetensors version of the model can be checked"
            )
            continue
        twice = sorted(found.keys() & header.keys())
        if twice:
            raise InputError(
                f"{folder}: {twice[0]} lies in {found[twice[0]].file.name} and in {file.name}; "
                "expected each weight once"
            )
        found |= header
    if index is not None and not unverified:
        remarks += _hold_against_index(folder, found, index)
    return Checkpoint(
        name or str(folder),
        folder,
        language_config(config),
        found,
        files,
        tuple(remarks),
        tuple(unverified),
        aliases=tuple(str(v) for v in (folder, config.get("_name_or_path")) if v),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a folder; raises InputError where it is none."""
    return read_json_object(folder / "config.json", "model config")


def language_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part that describes the language model, whatever else a model has."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return dict(config)
    kept = ("architectures", "tie_word_embeddings", "quantization_config", "auto_map", "dtype")
    return {k: config[k] for k in kept if k in config} | text


def read_header(file: Path) -> dict[str, TensorInfo] | None:
    """Names, dtypes and shapes in one file of weights; None where they cannot be had safely.

    Raises:
        InputError: missing, truncated, damaged, or no file of tensors.
    """
    if not file.is_file():
        link = "; it is a link to nothing" if file.is_symlink() else ""
        raise InputError(f"file of weights not found: {file}{link}")
    with file.open("rb") as handle:
        head = handle.read(len(_LFS))
    if head == _LFS:
        raise InputError(f"{file}: a pointer of Git LFS, not the weights; run git lfs pull")
    if file.suffix == ".safetensors":
        return _safetensors_header(file)
    return _bin_header(file)


def _safetensors_header(file: Path) -> dict[str, TensorInfo]:
    try:
        with safe_open(str(file), framework="pt") as tensors:
            parts = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {
                name: TensorInfo(part.get_dtype(), tuple(part.get_shape()), file)
                for name, part in parts.items()
            }
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{file}: truncated or damaged, not a whole safetensors file ({error}); fetch it again"
        ) from error


def _bin_header(file: Path) -> dict[str, TensorInfo] | None:
    loaded = open_bin(file)
    if loaded is None:
        return None
    return {
        name: TensorInfo(
            DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape), file
        )
        for name, tensor in loaded.items()
    }


def open_bin(file: Path) -> dict[str, torch.Tensor] | None:
    """The tensors of a ``.bin`` file, mapped and not read; None for the form before 2020.

    Raises:
        InputError: truncated, damaged, or more in it than tensors; nothing of it is run.
    """
    with file.open("rb") as handle:
        if handle.read(2) != b"PK":
            if file.stat().st_size == 0:
                raise InputError(f"{file}: empty, not a file of weights")
            return None
    try:
        loaded = torch.load(str(file), map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        refused = refusal(error)
        if refused is not None:
            raise InputError(f"{file}: {refused}") from error
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{file}: truncated or damaged ({said[:300]})") from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict):
        raise InputError(f"{file}: expected tensors by name, found a {type(loaded).__name__}")
    return {str(k): v for k, v in loaded.items() if isinstance(v, torch.Tensor)}


def _weight_files(folder: Path) -> tuple[tuple[Path, ...], dict[str, str] | None]:
    """(the files of weights, the index that lists them or None)."""
    for single in _SINGLE:
        whole, index = folder / single, folder / f"{single}.index.json"
        if whole.is_file() and not index.is_file():
            return (whole,), None
        if not index.is_file():
            continue
        shards = read_json_object(index, "an index of weights").get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise InputError(f"{index}: expected a weight_map from weights to files")
        named = sorted({str(s) for s in shards.values()})
        if whole.is_file() and named != [single]:
            raise InputError(
                f"{folder}: expected one set of weights, found {single} and an index of "
                f"{len(named)} other files; transformers would read the one, mergekit the other: "
                "remove what is old"
            )
        missing = [s for s in named if not (folder / s).is_file()]
        if missing:
            raise InputError(
                f"{folder}: {len(missing)} of {len(named)} files of weights are missing, e.g. "
                f"{missing[0]}; fetch the checkpoint again"
            )
        return tuple(folder / s for s in named), {str(k): str(v) for k, v in shards.items()}
    others = sorted(p.name for end in ("safetensors", "bin") for p in folder.glob(f"*.{end}"))
    found = f"found {', '.join(others[:3])} and no index of them" if others else "found none"
    raise InputError(
        f"{folder}: expected weights, model.safetensors or pytorch_model.bin or an index of shards "
        f"(model.safetensors.index.json), {found}"
    )


def _hold_against_index(
    folder: Path, found: Mapping[str, TensorInfo], index: Mapping[str, str]
) -> list[str]:
    absent = sorted(name for name in index if name not in found)
    if absent:
        raise InputError(
            f"{folder}: {len(absent)} weights of the index are in no file, e.g. {absent[0]}; "
            "fetch the checkpoint again"
        )
    elsewhere = sorted(n for n, file in index.items() if found[n].file.name != file)
    if elsewhere:
        first = elsewhere[0]
        raise InputError(
            f"{folder}: by the index {first} lies in {index[first]}, and it lies in "
            f"{found[first].file.name}; index and files do not belong together"
        )
    remarks = []
    unlisted = sorted(found.keys() - index.keys())
    if unlisted:
        remarks.append(
            f"{len(unlisted)} weights in the files are not in the index and are not read, e.g. "
            f"{unlisted[0]}"
        )
    ending = Path(next(iter(index.values()))).suffix
    used = set(index.values())
    old = sorted(p.name for p in folder.glob(f"model-*-of-*{ending}") if p.name not in used)
    if old:
        remarks.append(f"{old[0]} is not in the index and is not read; is it of an older version?")
    return remarks


def expected_tensors(
    config: Mapping[str, Any],
) -> dict[tuple[str, ...], tuple[int, ...]] | None:
    """Names → shape of every weight that a model of this configuration has; no memory is taken.

    Returns:
        Several names for a weight that is tied: one of them is enough. None where transformers
        has no such model, where its code comes with the checkpoint, or where it renames weights
        while it loads them.
    """
    if config.get("auto_map") or config.get("quantization_config"):
        return None
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    settings = {k: v for k, v in config.items() if k != "architectures"}
    # Parts are made one by one, if only their outlines; a damaged number would take hours.
    if any("layer" in k and isinstance(v, int) and v > _MOST_LAYERS for k, v in config.items()):
        return None
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            if get_checkpoint_conversion_mapping(str(config.get("model_type"))) is not None:
                return None
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    except Exception:  # noqa: BLE001 - any configuration may be given; loading it says what is wrong
        return None
    names: dict[int, list[str]] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        shapes[id(parameter)] = tuple(parameter.shape)
    return {tuple(n): shapes[key] for key, n in names.items()}
