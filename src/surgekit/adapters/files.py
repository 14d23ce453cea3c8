"""An adapter on disk: ``surgery_config.json`` + ``surgery.safetensors`` + ``README.md``.

The names differ from PEFT's, so that neither library mistakes the other's folder for its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surgekit._version import __version__
from surgekit.adapters.card import adapter_card
from surgekit.errors import InputError
from surgekit.files import folder_written_whole, read_json, read_tensors, write_tensors, write_text
from surgekit.surgery.config import SurgeryConfig
from surgekit.surgery.modules import SurgeryModule, tensor_shapes

ADAPTER_FORMAT = 1
CONFIG_FILE = "surgery_config.json"
TENSOR_FILE = "surgery.safetensors"
CARD_FILE = "README.md"
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
    """

    model_config = ConfigDict(extra="forbid")

    format: int
    surgekit: str
    domain: str = ""
    method: str = ""
    surgery: SurgeryConfig
    record: dict[str, Any] = Field(default_factory=dict)


def check_adapter_name(name: str) -> str:
    """A name that is safe as a folder and free for an adapter; raises InputError otherwise."""
    if not _NAME.fullmatch(name) or name.startswith("__"):
        raise InputError(
            f"adapter name {name!r}: expected letters, digits and any of . _ @ + = -, not "
            "beginning with a dot or two underscores"
        )
    return name


def is_adapter(folder: Path) -> bool:
    """True where the folder holds an adapter's configuration."""
    return (folder / CONFIG_FILE).is_file()


def check_room(folder: Path) -> None:
    """Raise InputError where the folder holds something other than an adapter."""
    if folder.exists() and (
        not folder.is_dir() or (any(folder.iterdir()) and not is_adapter(folder))
    ):
        raise InputError(f"{folder} is in use by something that is not an adapter; name another")


def save_adapter(
    module: SurgeryModule,
    folder: str | Path,
    *,
    domain: str = "",
    method: str = "",
    figures: dict[str, Any] | None = None,
) -> None:
    """Write a surgery module as an adapter folder, whole or not at all.

    Args:
        module: stored in the type its tensors have (bfloat16 after ``calibrate``).
        domain, method: named in the configuration and on the card.
        figures: lines for the card's table, {label: text}.

    Raises:
        InputError: the folder exists and holds something other than an adapter.
    """
    folder = Path(folder)
    check_room(folder)
    info = AdapterFile(
        format=ADAPTER_FORMAT,
        surgekit=__version__,
        domain=domain,
        method=method,
        surgery=module.config,
        record=module.record,
    )
    with folder_written_whole(folder) as beside:
        write_text(beside / CONFIG_FILE, info.model_dump_json(indent=1) + "\n")
        tensors = {name: p.detach() for name, p in module.named_parameters()}
        write_tensors(beside / TENSOR_FILE, tensors, {"format": str(ADAPTER_FORMAT)})
        write_text(beside / CARD_FILE, adapter_card(module, domain, method, figures or {}))


def load_adapter(folder: str | Path) -> tuple[SurgeryModule, AdapterFile]:
    """Read an adapter folder.

    Raises:
        InputError: no adapter, an unknown format, a damaged file, or a tensor that is missing,
            surplus, misshapen or not finite; nothing is ever filled in.
    """
    folder = Path(folder)
    if not is_adapter(folder):
        raise InputError(f"{folder}: expected an adapter, found no {CONFIG_FILE} in it")
    document = read_json(folder / CONFIG_FILE, "an adapter's configuration")
    found = document.get("format") if isinstance(document, dict) else None
    if found != ADAPTER_FORMAT:
        raise InputError(
            f"{folder}: this surgekit ({__version__}) reads adapters of format {ADAPTER_FORMAT}, "
            f"found {found!r}; use the version that wrote it, or make the adapter again"
        )
    try:
        info = AdapterFile.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise InputError(f"{folder / CONFIG_FILE}: {where}: {first['msg']}") from error
    tensors, _ = read_tensors(folder / TENSOR_FILE, "an adapter's tensors")
    expected = tensor_shapes(info.surgery)
    for what, names in (
        ("missing", expected.keys() - tensors.keys()),
        ("surplus", tensors.keys() - expected.keys()),
    ):
        if names:
            raise InputError(
                f"{folder / TENSOR_FILE}: {what} tensor {sorted(names)[0]!r}; a "
                f"{info.surgery.module} module has {', '.join(expected)}"
            )
    # Before the module is built: a size that is not the tensors' own may be of any magnitude.
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise InputError(
                f"{folder / TENSOR_FILE}: tensor {name!r} should be floating point {shape}, "
                f"found {tensor.dtype} {tuple(tensor.shape)}"
            )
        if not bool(tensor.double().isfinite().all()):  # float8 has no isfinite of its own
            raise InputError(f"{folder / TENSOR_FILE}: tensor {name!r} holds NaN or infinity")
    module = SurgeryModule(info.surgery)
    for name in expected:
        setattr(module, name, torch.nn.Parameter(tensors[name], requires_grad=False))
    module.record = info.record
    return module, info
