"""The sizes of a model that its cost follows from, from its files' headers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surgekit.errors import InputError
from surgekit.models.checkpoint import read_checkpoint
from surgekit.models.gguf_header import read_gguf
from surgekit.models.source import ModelSource, gguf_path, resolve_folder, split_lora_folder


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a model.

    Attributes:
        parameters: number of weights.
        hidden: width d of its states.
        vocabulary: rows of its head.
        positions: how long a sequence it was made for, or None where it does not say.
        kind: its architecture's name.
        packed: it is a GGUF file, which is slow to unpack.
    """

    parameters: int
    hidden: int
    vocabulary: int
    positions: int | None
    kind: str
    packed: bool = False


def model_facts(source: ModelSource) -> ModelFacts:
    """The facts of a model; those of a LoRA are those of what it lies on.

    Raises:
        InputError: files that are missing, or that do not say it.
    """
    source = split_lora_folder(source)
    gguf = gguf_path(source)
    if gguf is not None:
        return _of_gguf(gguf)
    return _of_folder(resolve_folder(str(source.model), source.revision))


def _of_folder(folder: Path) -> ModelFacts:
    checkpoint = read_checkpoint(folder)
    parameters = sum(math.prod(t.shape) for t in checkpoint.tensors.values())
    if checkpoint.unverified:  # the old form of .bin, which is float16 as a rule
        parameters = sum(f.stat().st_size for f in checkpoint.files) // 2
    config = checkpoint.config
    return ModelFacts(
        parameters,
        _size_of(folder, config, "hidden_size", "n_embd", "d_model"),
        _size_of(folder, config, "vocab_size"),
        _first(config, "max_position_embeddings", "n_positions", "max_seq_len"),
        checkpoint.model_type,
    )


def _of_gguf(path: Path) -> ModelFacts:
    header = read_gguf(path)
    kind = str(header.fields.get("general.architecture"))
    fields = header.fields
    return ModelFacts(
        sum(math.prod(t.shape) for t in header.tensors.values()),
        _size_of(path, fields, f"{kind}.embedding_length"),
        _first(fields, f"{kind}.vocab_size") or len(header.tokens),
        _first(fields, f"{kind}.context_length"),
        kind,
        packed=True,
    )


def _size_of(path: Path, settings: Mapping[str, Any], *names: str) -> int:
    found = _first(settings, *names)
    if found is None:
        raise InputError(f"{path}: does not say its {names[0]}")
    return found


def _first(settings: Mapping[str, Any], *names: str) -> int | None:
    values = (settings.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and v > 0), None)
