"""Heads on disk, so that figures can be computed from states without loading a model."""

from __future__ import annotations

from pathlib import Path

from surgekit.errors import InputError
from surgekit.files import read_tensors, write_tensors
from surgekit.models.anatomy import Head

_FORMAT = "1"


def save_head(head: Head, path: Path) -> None:
    """Write a head as one safetensors file."""
    tensors = {"weight": head.weight}
    if head.bias is not None:
        tensors["bias"] = head.bias
    softcap = "" if head.softcap is None else repr(head.softcap)
    write_tensors(path, tensors, {"format": _FORMAT, "scale": repr(head.scale), "softcap": softcap})


def load_head(path: Path) -> Head:
    """Read a head back; raises InputError on a damaged file."""
    tensors, metadata = read_tensors(path, "a model's head")
    try:
        if metadata["format"] != _FORMAT:
            raise ValueError(f"format {metadata['format']}")
        softcap = metadata["softcap"]
        return Head(
            tensors["weight"],
            tensors.get("bias"),
            float(metadata["scale"]),
            float(softcap) if softcap else None,
        )
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: not a head that surgekit wrote ({error})") from error
