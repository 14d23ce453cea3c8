"""The header of a GGUF file: settings, tokens, and where each tensor lies; no weight is read.

The ``gguf`` package reads the same, and takes seconds over the tokens of a vocabulary; this takes
a fraction of one, and says what is wrong with a truncated file. The layout is public
(github.com/ggml-org/ggml, docs/gguf.md); sizes of blocks are the package's.
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surgekit.errors import InputError
from surgekit.models.checkpoint import Checkpoint, TensorInfo, expected_tensors

_SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")
_STRING, _ARRAY = 8, 9
_DAMAGE = (struct.error, ArithmeticError, ValueError, TypeError, LookupError, RecursionError)
_LONGEST = 1 << 32  # elements or bytes that a sound header never exceeds


@dataclass(frozen=True)
class GgufTensor:
    """One tensor by the header.

    Attributes:
        type: GGML's name (``Q4_1``, ``F16``, …).
        shape: its sizes, the slowest first, as transformers writes them.
        start: of its bytes in the file.
        size: in bytes.
    """

    type: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says of itself.

    Attributes:
        path: the file.
        fields: settings by name, arrays as lists.
        tensors: by GGUF's own names.
    """

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def tokens(self) -> dict[str, int]:
        """The vocabulary: piece of text → id."""
        listed = self.fields.get("tokenizer.ggml.tokens")
        return {str(token): i for i, token in enumerate(listed if isinstance(listed, list) else [])}


def read_gguf(path: Path) -> GgufHeader:
    """Read a GGUF file's header.

    Raises:
        InputError: no GGUF file, a version or type that is not known, or fewer bytes than its
            header promises.
    """
    stat = path.stat()
    return _read_file(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _read_file(path: Path, size: int, changed: int) -> GgufHeader:
    """The header of a file as it was then; a vocabulary takes a moment, and is asked for often."""
    del size, changed
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InputError(f"{path}: expected a GGUF file, found something else")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(path, data)
            except _DAMAGE as error:
                raise InputError(
                    f"{path}: truncated or damaged GGUF file ({error}); fetch it again"
                ) from error


def gguf_checkpoint(path: Path, name: str) -> Checkpoint:
    """A GGUF file as the checkpoint that it becomes when it is written out.

    Names and shapes are those that transformers gives such a model.

    Raises:
        InputError: as ``read_gguf``, or a kind of model that transformers reads no GGUF of.
    """
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    header = read_gguf(path)
    kind = str(header.fields.get("general.architecture"))
    mapping = GGUF_CONFIG_MAPPING.get(kind)
    if mapping is None:
        raise InputError(
            f"{path}: a GGUF file of a {kind!r} model, of which transformers reads none; "
            "give the model as a safetensors folder"
        )
    config: dict[str, Any] = {"model_type": kind}
    for theirs, ours in mapping.items():
        value = header.fields.get(f"{kind}.{theirs}")
        if ours is not None and value is not None:
            config[ours] = value
    theta = config.pop("rope_theta", None)
    if theta is not None:
        config["rope_parameters"] = {"rope_theta": theta, "rope_type": "default"}
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape:
        config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    if architecture is not None:
        config["architectures"] = [architecture]
    shapes = expected_tensors(config) or {}
    said = (
        *(
            str(header.fields[k])
            for k in ("general.name", "general.basename")
            if k in header.fields
        ),
        path.stem,
    )
    return Checkpoint(
        name,
        path.parent,
        config,
        {n: TensorInfo("GGUF", shape, path) for names, shape in shapes.items() for n in names},
        (path,),
        aliases=said,
    )


def _read(path: Path, data: mmap.mmap) -> GgufHeader:
    version, count, pairs = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise InputError(f"{path}: GGUF of version {version}; 2 and 3 are read")
    at = 24
    fields: dict[str, Any] = {}
    for _ in range(pairs):
        key, at = _string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        fields[key], at = _value(data, at + 4, kind)
    found: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(count):
        key, at = _string(data, at)
        (dimensions,) = struct.unpack_from("<I", data, at)
        if dimensions > 8:
            raise ValueError(f"{key} has {dimensions} dimensions")
        *sizes, kind, offset = struct.unpack_from(f"<{dimensions}QIQ", data, at + 4)
        at += 4 + 8 * dimensions + 12
        found.append((key, tuple(reversed(sizes)), kind, offset))
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError("its alignment is no number from 1 up")
    start = -(-at // alignment) * alignment
    tensors = {k: _tensor(k, s, kind, start + o) for k, s, kind, o in found}
    for key, tensor in tensors.items():
        if tensor.start + tensor.size > len(data):
            raise ValueError(f"{key} ends at byte {tensor.start + tensor.size:,} of {len(data):,}")
    return GgufHeader(path, fields, tensors)


def _tensor(key: str, shape: tuple[int, ...], kind: int, start: int) -> GgufTensor:
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        raise InputError("GGUF files need gguf: pip install 'surgekit[gguf]'") from error
    try:
        quantization = GGMLQuantizationType(kind)
        entries, size = GGML_QUANT_SIZES[quantization]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{key} is of an unknown type, {kind}") from error
    elements = 1
    for length in shape:
        elements *= length
    return GgufTensor(quantization.name, shape, start, elements // entries * size)


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if length > _LONGEST or end > len(data):
        raise ValueError(f"a text of {length:,} bytes at byte {at:,}")
    return data[at + 8 : end].decode("utf-8", "replace"), end


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind == _ARRAY:
        inner, length = struct.unpack_from("<IQ", data, at)
        at += 12
        if length > _LONGEST:
            raise ValueError(f"a list of {length:,} entries at byte {at:,}")
        if inner in (_STRING, _ARRAY):
            values = []
            for _ in range(length):
                value, at = _value(data, at, inner)
                values.append(value)
            return values, at
        form = f"<{length}{_form(inner)}"
        return list(struct.unpack_from(form, data, at)), at + struct.calcsize(form)
    form = f"<{_form(kind)}"
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def _form(kind: int) -> str:
    form = _SCALARS[kind] if kind < len(_SCALARS) else None
    if form is None:
        raise ValueError(f"a value of an unknown type, {kind}")
    return form
