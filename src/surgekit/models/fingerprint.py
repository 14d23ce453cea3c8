"""Fingerprints by content: the same weights give the same text, wherever they are stored."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import nn

FINGERPRINT_VERSION = 1
_CHUNK_ELEMENTS = 1 << 24


def fingerprint(model: nn.Module) -> str:
    """A sha256 over all parameters: name, shape, and values rounded to bfloat16.

    Rounding first makes a model and its float32 copy agree, so an adapter fits the merged model
    whether it is loaded in bfloat16 or float32. A float16 copy has lost the smallest values and is
    another model here. Tied parameters count once; buffers do not count.

    Returns:
        ``"sf1-"`` and 64 hex digits. The form is frozen: a change needs a new version number.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(_named_parameters(model)):
        digest.update(f"{name}:{tuple(parameter.shape)}\n".encode())
        flat = parameter.detach().reshape(-1)
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


def _named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(n.replace("_orig_mod.", ""), p) for n, p in model.named_parameters()]
