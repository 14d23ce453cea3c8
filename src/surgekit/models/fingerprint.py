"""Fingerprints by content: the same weights give the same text, wherever they are stored."""

from __future__ import annotations

import hashlib
import json
from typing import Any, cast

import torch
from torch import Tensor, nn

from surgekit.models.offload import values_of

FINGERPRINT_VERSION = 1
_CHUNK_ELEMENTS = 1 << 24


def fingerprint(model: nn.Module) -> str:
    """A sha256 over all parameters: name, shape, and values rounded to bfloat16.

    Rounding first makes a model and its float32 copy agree, so an adapter fits the merged model
    whether it is loaded in bfloat16 or float32. A float16 copy has lost the smallest values and is
    another model here. Tied parameters count once; buffers do not count, nor does what PEFT has put
    around layers. Weights that accelerate keeps on disk are read one at a time.

    Returns:
        ``"sf1-"`` and 64 hex digits. The form is frozen: a change needs a new version number.
    """
    digest = hashlib.sha256()
    for name, place in sorted(_parameters(model)):
        values = cast(Tensor, values_of(model, place))
        digest.update(f"{name}:{tuple(values.shape)}\n".encode())
        flat = values.reshape(-1)
        for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
            part = flat[start : start + _CHUNK_ELEMENTS]
            if part.is_floating_point():
                part = part.to(torch.bfloat16)
            digest.update(part.cpu().contiguous().view(torch.uint8).numpy().data)
    return f"sf{FINGERPRINT_VERSION}-{digest.hexdigest()}"


def digest_json(value: Any) -> str:
    """A sha256 of a JSON-able value in canonical form: the identity of settings."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _parameters(model: nn.Module) -> list[tuple[str, str]]:
    """Names in the bare model and in this one, of every parameter of its own, tied ones once."""
    # Offloading parts tied parameters; transformers knows which they were.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    wrapped = _wrapped(model)
    found: list[tuple[str, str]] = []
    for name, parameter in model.named_parameters():
        own = _own_name(name, wrapped)
        if own is None or (parameter.is_meta and own in tied):
            continue
        found.append((own, name))
    return found


def _wrapped(model: nn.Module) -> dict[str, str]:
    """Layers that PEFT has put others around: name → the child that is the model's own."""
    return {
        name: child
        for name, module in model.named_modules()
        for child in ("base_layer", "original_module")
        if isinstance(getattr(module, child, None), nn.Module)
    }


def _own_name(name: str, wrapped: dict[str, str]) -> str | None:
    """A parameter's name in the bare model; None for one that PEFT has added."""
    parts: list[str] = []
    place = ""  # as the wrapped model calls it
    inside = ""  # the one child of a wrapped layer that counts
    for part in name.split("."):
        if inside and part != inside:
            return None
        if not inside and part != "_orig_mod":  # torch.compile's wrapper of a module
            parts.append(part)
        place = f"{place}.{part}" if place else part
        inside = wrapped.get(place, "")
    return ".".join(parts)
