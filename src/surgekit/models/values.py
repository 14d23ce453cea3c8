"""What the values of weights say: NaN, infinity, and how far an expert stands from its base.

Values are streamed in pieces of fixed size, so memory does not grow with the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from surgekit.models.checkpoint import Checkpoint, TensorInfo, open_bin
from surgekit.models.gguf_header import GgufHeader, read_gguf

CHEAP_BYTES = 2 << 30
"""What may be read of values without having been asked to: some seconds' worth."""
_PIECE = 1 << 22
"""Elements that are held at a time."""
_SAMPLED_TENSORS = 8
_SAMPLED_ELEMENTS = 1 << 18
_COMPUTED = ("F64", "F32", "F16", "BF16")
FACTORS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Of each kind of GGML block, where its half-precision factors stand, in bytes. What is finite in
them is finite when it is unpacked, for all else in a block is small integers."""
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_WHOLE = ("I8", "I16", "I32", "I64")


@dataclass(frozen=True)
class Scan:
    """What reading all values of a checkpoint found.

    Attributes:
        bad: names of the weights with NaN or infinity in them.
        unread: what could not be read, one line each.
    """

    bad: tuple[str, ...]
    unread: tuple[str, ...] = ()

    @property
    def damage(self) -> str:
        """What to say of the weights in ``bad``."""
        first, *rest = self.bad
        more = f" (and {len(rest)} more)" if rest else ""
        return f"weight {first} holds NaN or infinity{more}; the checkpoint is damaged"


@dataclass(frozen=True)
class Distance:
    """How far a model's weights stand from a base's, on a sample of their matrices.

    Attributes:
        relative: ‖θ − θ_0‖ / ‖θ_0‖ over the sample. Two models that have nothing in common stand
            at √(1 + s²), s being the ratio of their norms, which is 1 or more whatever the scale;
            √2 at equal norms. A fine-tune stands far below 1.
        tensors: how many were sampled.
        equal: every value in the sample is the same.
    """

    relative: float
    tensors: int
    equal: bool


def scan_values(checkpoint: Checkpoint) -> Scan:
    """Look for NaN and infinity in all weights of a checkpoint.

    Memory stays within a few pieces of ``4 Mi`` elements; weights of 8 bits and integers are
    passed over, for they hold no infinity.
    """
    bad: list[str] = []
    unread: list[str] = list(checkpoint.unverified)
    for file in checkpoint.files:
        if file.suffix == ".gguf":
            found, unknown = _scan_gguf(read_gguf(file))
            bad += found
            unread += unknown
            continue
        names = {n: i for n, i in checkpoint.tensors.items() if i.file == file}
        for name, piece in _pieces(file, names):
            if (not bad or bad[-1] != name) and not _finite(piece):
                bad.append(name)
    return Scan(tuple(bad), tuple(unread))


def size_of_values(checkpoint: Checkpoint) -> int:
    """Bytes that ``scan_values`` reads."""
    return sum(file.stat().st_size for file in checkpoint.files)


def distance(base: Checkpoint, other: Checkpoint) -> Distance | None:
    """The distance of ``other`` from ``base`` on matrices that lie at equal steps through them.

    Of each at most 256 Ki elements are read. None where there is no matrix in common to read.
    """
    common = sorted(
        name
        for name, info in base.tensors.items()
        if len(info.shape) == 2
        and info.dtype in _COMPUTED
        and name in other.tensors
        and other.tensors[name].dtype in _COMPUTED
        and other.tensors[name].shape[1:] == info.shape[1:]
        and min(info.shape) > 0
        and min(other.tensors[name].shape) > 0
    )
    if not common:
        return None
    steps = max(1, len(common) // _SAMPLED_TENSORS)
    chosen = common[::steps][:_SAMPLED_TENSORS]
    difference = norm = 0.0
    equal = True
    for name in chosen:
        one, two = base.tensors[name], other.tensors[name]
        rows = min(one.shape[0], two.shape[0], max(1, _SAMPLED_ELEMENTS // one.shape[1]))
        a, b = _rows(one, name, rows), _rows(two, name, rows)
        if a is None or b is None:
            return None
        equal = equal and one.shape == two.shape and bool(torch.equal(a.to(b.dtype), b))
        a, b = a.double(), b.double()
        difference += float((b - a).square().sum())
        norm += float(a.square().sum())
    if not np.isfinite(difference) or not np.isfinite(norm) or norm == 0:
        return None
    return Distance((difference / norm) ** 0.5, len(chosen), equal)


def same_values(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether two checkpoints hold the same weights throughout; reads up to the first difference.

    A dtype that differs is a difference; so is a weight that only one of them has.
    """
    if one.tensors.keys() != other.tensors.keys() or any(
        (i.dtype, i.shape) != (other.tensors[n].dtype, other.tensors[n].shape)
        for n, i in one.tensors.items()
    ):
        return False
    for name, info in one.tensors.items():
        rows = info.shape[0] if info.shape else 0
        step = _rows_a_piece(info)
        for start in range(0, max(rows, 1), step):
            a = _rows(info, name, min(rows, start + step), start)
            b = _rows(other.tensors[name], name, min(rows, start + step), start)
            if a is None or b is None or not torch.equal(a, b):
                return False
    return True


def _rows_a_piece(info: TensorInfo) -> int:
    return max(1, _PIECE // max(1, math.prod(info.shape[1:])))


def _rows(info: TensorInfo, name: str, stop: int, start: int = 0) -> torch.Tensor | None:
    if info.file.suffix == ".safetensors":
        with safe_open(str(info.file), framework="pt") as tensors:
            return tensors.get_slice(name)[start:stop] if info.shape else tensors.get_tensor(name)
    loaded = open_bin(info.file) if info.file.suffix == ".bin" else None
    if loaded is None:
        return None
    return loaded[name][start:stop].clone() if info.shape else loaded[name].clone()


def _pieces(file: Path, names: Mapping[str, TensorInfo]) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, some rows of it) of every weight in a file that can hold NaN."""
    wanted = {n: i for n, i in names.items() if i.dtype in _COMPUTED and 0 not in i.shape}
    if not wanted:
        return
    if file.suffix == ".safetensors":
        with safe_open(str(file), framework="pt") as tensors:
            for name, info in wanted.items():
                if not info.shape:
                    yield name, tensors.get_tensor(name)
                    continue
                part = tensors.get_slice(name)
                step = _rows_a_piece(info)
                for start in range(0, info.shape[0], step):
                    yield name, part[start : start + step]
        return
    loaded = open_bin(file) or {}
    for name in wanted:
        flat = loaded[name].reshape(-1)
        for start in range(0, flat.numel(), _PIECE):
            yield name, flat[start : start + _PIECE]


def _finite(piece: torch.Tensor) -> bool:
    low, high = torch.aminmax(piece)
    return bool(low.isfinite()) and bool(high.isfinite())


def _scan_gguf(header: GgufHeader) -> tuple[list[str], list[str]]:
    """(weights with a factor that is not finite, what could not be read)."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    bad: list[str] = []
    unknown: set[str] = set()
    data = np.memmap(header.path, dtype=np.uint8, mode="r")
    for name, tensor in header.tensors.items():
        if tensor.type in _WHOLE or not tensor.size:
            continue
        places = FACTORS.get(tensor.type)
        if tensor.type not in _PLAIN and places is None:
            unknown.add(tensor.type)
            continue
        block = GGML_QUANT_SIZES[GGMLQuantizationType[tensor.type]][1]
        step = _PIECE * block
        for start in range(tensor.start, tensor.start + tensor.size, step):
            raw = data[start : min(start + step, tensor.start + tensor.size)]
            if places is None:
                sound = _finite(torch.from_numpy(raw.copy()).view(_PLAIN[tensor.type]))
            else:
                parts = [raw.reshape(-1, block)[:, at : at + 2] for at in places]
                factors = np.ascontiguousarray(np.concatenate(parts)).view(np.float16)
                sound = bool(np.isfinite(factors).all())
            if not sound:
                bad.append(name)
                break
    lines = [
        f"the values of {header.path.name} in blocks of {kind}; a run looks at them when it has "
        "unpacked them"
        for kind in sorted(unknown)
    ]
    return bad, lines
