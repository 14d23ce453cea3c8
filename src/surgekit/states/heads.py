"""Heads on disk, so that figures can be computed from states without loading a model."""

from __future__ import annotations

import math
from pathlib import Path

from surgekit.errors import InputError
from surgekit.files import expect_metadata, read_tensors, write_tensors
from surgekit.models.anatomy import Head

_FORMAT = "1"


def save_head(head: Head, path: Path) -> None:
    """Write a head as one safetensors file, with a checksum."""
    tensors = {"weight": head.weight}
    if head.bias is not None:
        tensors["bias"] = head.bias
    softcap = "" if head.softcap is None else repr(head.softcap)
    write_tensors(path, tensors, {"format": _FORMAT, "scale": repr(head.scale), "softcap": softcap})


def load_head(path: Path) -> Head:
    """Read a head back.

    Raises:
        InputError: not a head, damaged, or its tensors do not fit each other.
    """
    tensors, metadata = read_tensors(path, "a model's head")
    try:
        if metadata["format"] != _FORMAT:
            raise ValueError(f"format {metadata['format']}")
        weight, bias = tensors["weight"], tensors.get("bias")
        expect_metadata(metadata, ("format", "scale", "softcap"), path)
        surplus = sorted(tensors.keys() - {"weight", "bias"})
        if surplus:
            raise ValueError(f"unknown tensor {surplus[0]!r}")
        if weight.dim() != 2 or not weight.is_floating_point():
            raise ValueError(f"weight is {weight.dtype} {tuple(weight.shape)}")
        if bias is not None and (bias.shape != weight.shape[:1] or not bias.is_floating_point()):
            raise ValueError(f"bias is {bias.dtype} {tuple(bias.shape)}")
        scale = float(metadata["scale"])
        softcap = float(metadata["softcap"]) if metadata["softcap"] else None
        if not math.isfinite(scale) or (softcap is not None and not 0 < softcap < math.inf):
            raise ValueError(f"scale {scale}, soft cap {softcap}")
        return Head(weight, bias, scale, softcap)
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: not a head that surgekit wrote ({error})") from error
