"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from surgekit.errors import InputError

LEFTOVER = re.compile(r"\..+\.(part|old)-\d+")
"""Names of what is written beside its place, and stays there when the process is killed."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write a file to; it takes its place on success, else vanishes.

    Raises:
        InputError: the file system refuses (full disk, no rights), said in one line.
    """
    beside = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        with beside.open("rb+") as handle:
            os.fsync(handle.fileno())
        beside.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """The same for a folder: an old folder of that name is replaced only when all is written.

    Raises:
        InputError: the file system refuses, or the working directory would be replaced.
    """
    folder = folder.resolve()  # what a link points to is replaced, never the link
    if folder in (here := Path.cwd(), *here.parents):
        raise InputError(f"cannot write {folder} as a whole from inside it; name another folder")
    beside = folder.with_name(f".{folder.name}.part-{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        yield beside
        if folder.exists():
            old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
            folder.rename(old)
            try:
                beside.rename(folder)
            except BaseException:
                old.rename(folder)
                raise
            shutil.rmtree(old)
        else:
            beside.rename(folder)
    except SafetensorError as error:  # of a library that writes into the folder: a full disk
        raise InputError(f"cannot write {folder}: {error}") from error
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document with a final newline, whole or not at all. NaN is refused."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all."""
    with written_whole(path) as beside:
        beside.write_text(text, encoding="utf-8")


def read_json(path: Path, what: str) -> Any:
    """Read a JSON document; ``what`` names it in the message when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{what} not found: {path}") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: expected {what} as JSON ({error})") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all."""
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    with written_whole(path) as beside:
        beside.touch()
        rights = beside.stat().st_mode
        try:
            save_file(plain, str(beside), metadata=dict(metadata))
        except SafetensorError as error:
            raise InputError(f"cannot write {path}: {error}") from error
        beside.chmod(rights)  # safetensors would keep the file from all other users


def read_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: (tensors, metadata).

    Raises:
        InputError: missing, truncated, or no safetensors file.
    """
    if not path.is_file():
        raise InputError(f"{what} not found: {path}")
    try:
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{path}: expected {what}, a whole safetensors file ({error})") from error


def expect_tensor(
    tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, dims: int, path: Path
) -> Tensor:
    """Take a tensor out of a file's tensors, sure of its type and number of dimensions."""
    if name not in tensors:
        raise InputError(f"{path}: tensor {name!r} is missing; found {', '.join(sorted(tensors))}")
    tensor = tensors[name]
    if tensor.dtype != dtype or tensor.dim() != dims:
        raise InputError(
            f"{path}: tensor {name!r} should be {dtype} with {dims} dimensions, "
            f"found {tensor.dtype} {tuple(tensor.shape)}"
        )
    return tensor
