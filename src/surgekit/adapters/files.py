"""An adapter on disk: ``surgery_config.json`` + ``surgery.safetensors`` + ``README.md``.

The names differ from PEFT's, so that neither library mistakes the other's folder for its own.

The configuration carries two checksums, of the tensors' file and of its own entries, so that a
flipped bit, or one adapter's file among another's, is refused instead of applied.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from surgekit._version import __version__
from surgekit.adapters.card import adapter_card
from surgekit.errors import InputError
from surgekit.files import (
    expect_writable,
    file_checksum,
    folder_written_whole,
    read_json_object,
    read_tensors,
    write_tensors,
    write_text,
)
from surgekit.parsing import first_problem
from surgekit.surgery.config import SurgeryConfig
from surgekit.surgery.modules import SurgeryModule, tensor_shapes

ADAPTER_FORMAT = 1
CONFIG_FILE = "surgery_config.json"
TENSOR_FILE = "surgery.safetensors"
CARD_FILE = "README.md"
_SETTINGS_SUM = "settings_sha256"
# Of a record's entries, those that are read again: to check the model, to show, for the card.
_RECORD_TYPES = {
    "merged_fingerprint": str,
    "expert_fingerprint": str,
    "calibration": dict,
    "tokens_per_position": list,
}
_SHA256 = r"^[0-9a-f]{64}$"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,127}")


class AdapterFile(BaseModel):
    """What ``surgery_config.json`` holds.

    Attributes:
        format: version of the layout.
        surgekit: version that wrote it.
        domain, method: what it corrects, and how it was made (a method id).
        surgery: form and sizes.
        record: how it was calibrated: texts, seed, losses, tokens per position, and the
            fingerprints of the merged model it belongs to and of its expert.
        tensors_sha256: of ``surgery.safetensors``, as ``sha256sum`` gives it.
        settings_sha256: of all other entries here, written as JSON without blanks, keys sorted.
            Both may be missing, as in adapters of surgekit 0.1; then nothing is compared.
    """

    model_config = ConfigDict(extra="forbid")

    format: int
    surgekit: str
    domain: str = ""
    method: str = ""
    surgery: SurgeryConfig
    record: dict[str, Any] = Field(default_factory=dict)
    tensors_sha256: str | None = Field(default=None, pattern=_SHA256)
    settings_sha256: str | None = Field(default=None, pattern=_SHA256)

    @field_validator("record")
    @classmethod
    def _record_of_known_types(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key, kind in _RECORD_TYPES.items():
            if value.get(key) is not None and not isinstance(value[key], kind):
                raise ValueError(f"{key}: expected a {kind.__name__}, found {value[key]!r:.80}")
        return value


def check_adapter_name(name: str) -> str:
    """A name that is safe as a folder and free for an adapter; raises InputError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("__"):
        raise InputError(
            f"adapter name {name!r}: expected at most 128 of a-z, A-Z, 0-9 and . _ @ + = -, "
            "beginning with a letter, a digit or a single underscore"
        )
    return name


def is_adapter(folder: Path) -> bool:
    """True where the folder holds an adapter's configuration."""
    return (folder / CONFIG_FILE).is_file()


def check_room(folder: Path) -> None:
    """Raise InputError where the folder holds something other than an adapter.

    An adapter replaces an adapter, and nothing else that lies there.
    """
    if folder.exists():
        if not folder.is_dir():
            raise InputError(f"{folder}: expected a folder for the adapter, found a file")
        names = _names_in(folder)
        others = sorted(names - {CONFIG_FILE, TENSOR_FILE, CARD_FILE})
        if others:
            raise InputError(
                f"{folder}: expected no folder, or an adapter alone, found {others[0]} in it"
                f"{f' and {len(others) - 1} more' if len(others) > 1 else ''}; name another "
                "folder, or move it away"
            )
        if CARD_FILE in names and CONFIG_FILE not in names:
            raise InputError(f"{folder}: its {CARD_FILE} is not an adapter's; name another folder")
    expect_writable(folder)


def _names_in(folder: Path) -> set[str]:
    """What lies in a folder; of one and the same folder, should another process replace it now."""
    while True:
        try:
            before = folder.stat().st_ino
            names = {p.name for p in folder.iterdir()}
            if folder.stat().st_ino == before:
                return names
        except FileNotFoundError:
            if not folder.exists():
                return set()


def save_adapter(
    module: SurgeryModule,
    folder: str | Path,
    *,
    domain: str = "",
    method: str = "",
    figures: dict[str, Any] | None = None,
) -> None:
    """Write a surgery module as an adapter folder with its checksums, whole or not at all.

    Args:
        module: stored in the type its tensors have (bfloat16 after ``calibrate``).
        domain, method: named in the configuration and on the card.
        figures: lines for the card's table, {label: text}.

    Raises:
        InputError: the folder exists and holds something other than an adapter, or the module or
            its record holds what could not be read again.
    """
    if not isinstance(module, SurgeryModule):
        raise InputError(f"expected a surgery module to save, found {type(module).__name__}")
    check_tensors(dict(module.named_parameters()), module.config, "the module")
    folder = Path(folder)
    check_room(folder)
    with folder_written_whole(folder) as beside:
        tensors = {name: p.detach() for name, p in module.named_parameters()}
        about = {"format": str(ADAPTER_FORMAT)}
        write_tensors(beside / TENSOR_FILE, tensors, about, checksum=False)  # the file's own below
        try:
            info = AdapterFile(
                format=ADAPTER_FORMAT,
                surgekit=__version__,
                domain=domain,
                method=method,
                surgery=module.config,
                record=module.record,
                tensors_sha256=file_checksum(beside / TENSOR_FILE),
            )
            # Of the text, not of the objects: in writing, a tuple becomes a list and NaN null.
            written = json.loads(info.model_dump_json(exclude={_SETTINGS_SUM}))
        except ValidationError as error:
            raise InputError(f"cannot write {folder}: {first_problem(error)}") from error
        except (RecursionError, ValueError) as error:
            raise InputError(
                f"cannot write {folder}: its names or record are not JSON ({error})"
            ) from error
        info.settings_sha256 = _settings_checksum(written)
        write_text(beside / CONFIG_FILE, info.model_dump_json(indent=1) + "\n")
        write_text(beside / CARD_FILE, adapter_card(module, domain, method, figures or {}))


def _settings_checksum(document: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in document.items() if key != _SETTINGS_SUM}
    return hashlib.sha256(
        json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def check_tensors(tensors: Mapping[str, torch.Tensor], config: SurgeryConfig, where: str) -> None:
    """Raise InputError unless these are the finite tensors that a module has; ``where`` names it.

    Looked at before a module is built: a size that is not the tensors' own may be of any magnitude.
    """
    expected = tensor_shapes(config)
    for what, names in (
        ("missing", expected.keys() - tensors.keys()),
        ("surplus", tensors.keys() - expected.keys()),
    ):
        if names:
            raise InputError(
                f"{where}: {what} tensor {sorted(names)[0]!r}; a {config.module} module has "
                f"{', '.join(expected)}; copy or make the adapter again"
            )
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise InputError(
                f"{where}: tensor {name!r} should be floating point {shape}, found "
                f"{tensor.dtype} {tuple(tensor.shape)}; copy or make the adapter again"
            )
        if not bool(tensor.detach().double().isfinite().all()):  # float8 has no isfinite of its own
            raise InputError(
                f"{where}: tensor {name!r} holds NaN or infinity; make the adapter again"
            )


def load_adapter(folder: str | Path) -> tuple[SurgeryModule, AdapterFile]:
    """Read an adapter folder; its checksums are verified where it has them.

    Raises:
        InputError: no adapter, an unknown format, a damaged or changed file, or a tensor that is
            missing, surplus, misshapen or not finite; nothing is ever filled in.
    """
    if not isinstance(folder, (str, Path)) or not str(folder):
        raise InputError(f"expected the folder of an adapter, found {folder!r}")
    folder = Path(folder)
    if not is_adapter(folder):
        raise InputError(
            f"{folder}: expected an adapter, found no {CONFIG_FILE} in it; name the folder that "
            "calibrate or run wrote (RUN/adapters/DOMAIN/METHOD)"
        )
    document = read_json_object(folder / CONFIG_FILE, "an adapter's configuration")
    found = document.get("format")
    if found != ADAPTER_FORMAT or not isinstance(found, int) or isinstance(found, bool):
        raise InputError(
            f"{folder}: this surgekit ({__version__}) reads adapters of format {ADAPTER_FORMAT}, "
            f"found {found!r}; use the version that wrote it, or make the adapter again"
        )
    try:
        info = AdapterFile.model_validate(document)
    except ValidationError as error:
        problem = first_problem(error, document, AdapterFile)
        raise InputError(
            f"{folder / CONFIG_FILE}: {problem}; copy or make the adapter again"
        ) from error
    if info.settings_sha256 not in (None, _settings_checksum(document)):
        raise InputError(
            f"{folder / CONFIG_FILE}: damaged, or changed since it was written; copy the adapter "
            f"again, or, if you changed it yourself, take {_SETTINGS_SUM} out of it"
        )
    tensors, _ = read_tensors(folder / TENSOR_FILE, "an adapter's tensors")
    check_tensors(tensors, info.surgery, str(folder / TENSOR_FILE))
    if info.tensors_sha256 not in (None, file_checksum(folder / TENSOR_FILE)):
        raise InputError(
            f"{folder / TENSOR_FILE}: damaged, or not the file that belongs to the {CONFIG_FILE} "
            "beside it (its checksum differs); copy the adapter again"
        )
    module = SurgeryModule(info.surgery)
    for name, tensor in tensors.items():
        setattr(module, name, torch.nn.Parameter(tensor, requires_grad=False))
    module.record = info.record
    return module, info
