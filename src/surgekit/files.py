"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from surgekit.errors import InputError
from surgekit.parsing import read_text

_MARK = re.compile(r"\.(part|old)-(\d+)(?:-([0-9a-f]+))?")
LEFTOVER = re.compile(rf"\..+{_MARK.pattern}")
"""Names of what is written beside its place, and stays there when the process is killed: what it
is (``part``: to come, ``old``: moved aside), the process, and the machine it ran on."""

CHECKSUM = "sha256"
"""The entry of a tensor file's metadata that holds ``tensor_checksum`` of all the rest."""


_turns: WeakValueDictionary[str, Any] = WeakValueDictionary()
_turns_guard = threading.Lock()


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Threads of this process that write to one place do so one after the other.

    What they write beside it has the process's number in its name, so they would share it.
    """
    with _turns_guard:
        lock = _turns.setdefault(str(path), threading.RLock())
    with lock:
        yield


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write a file to; it takes its place on success, else vanishes.

    Raises:
        InputError: the file system refuses (full disk, no rights), said in one line.
    """
    if path.is_symlink():  # what it points to is replaced, never the link
        path = Path(os.path.realpath(path))
    beside = _beside(path, "part")
    with _turn(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            clear_leftovers(path)
            yield beside
            with beside.open("rb+") as handle:
                os.fsync(handle.fileno())
            beside.replace(path)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        finally:
            beside.unlink(missing_ok=True)


def expect_writable(path: Path) -> None:
    """Raise InputError where a file or folder can be seen not to be writable; before any work."""
    try:
        above = Path(os.path.realpath(path)).parent
        while not above.exists() and above != above.parent:
            above = above.parent
        if not above.is_dir():
            raise InputError(f"cannot write {path}: {above} is not a folder (Not a directory)")
        if os.access(above, os.W_OK | os.X_OK):
            return
        frozen = os.statvfs(above).f_flag & os.ST_RDONLY if hasattr(os, "ST_RDONLY") else False
    except (OSError, ValueError) as error:  # above it all is hidden; a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write {path}: {reason}") from error
    reason = os.strerror(errno.EROFS if frozen else errno.EACCES)
    raise InputError(f"cannot write {path}: {reason} in {above}; name another place")


@contextmanager
def folder_written_whole(folder: Path, *, replace: bool = True) -> Iterator[Path]:
    """The same for a folder: an old folder of that name is replaced only when all is written.

    Args:
        folder: its place. Of several processes that write there, the last one's stays, whole.
        replace: False where only an empty folder, or none, may be replaced.

    Raises:
        InputError: the file system refuses, the working directory would be replaced, or there is
            a folder and it may not be.
    """
    folder = folder.resolve()  # what a link points to is replaced, never the link
    if folder in (here := Path.cwd(), *here.parents):
        raise InputError(f"cannot write {folder} as a whole from inside it; name another folder")
    beside = _beside(folder, "part")
    with _turn(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            clear_leftovers(folder)
            beside.mkdir()
            yield beside
            _put_in_place(beside, folder, replace)
        except SafetensorError as error:  # of a library that writes into the folder: a full disk
            raise InputError(f"cannot write {folder}: {error}") from error
        except OSError as error:
            raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _put_in_place(beside: Path, folder: Path, replace: bool) -> None:
    old = _beside(folder, "old")
    try:
        while True:
            try:
                beside.rename(folder)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if not replace:
                    raise InputError(
                        f"{folder}: another process has written it meanwhile; name another folder"
                    ) from error
            shutil.rmtree(old, ignore_errors=True)
            with suppress(FileNotFoundError):  # another process moved it aside first
                folder.rename(old)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


def clear_leftovers(path: Path) -> None:
    """Remove what processes that were killed have left beside ``path``.

    What one had moved aside comes back where nothing has taken its place. What a living process
    writes is left alone, and so is what another machine, or container, has written: who knows.
    """
    for place, kind, pid in sorted(_leftovers(path)):  # "old" comes before "part"
        if _alive(pid, place):
            continue
        if kind == "old" and not path.exists():
            place.rename(path)
        elif place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)


def writer_at_work(path: Path) -> int | None:
    """The living process of this machine that is writing ``path`` now, if there is one."""
    found = [pid for place, kind, pid in _leftovers(path) if kind == "part" and _alive(pid, place)]
    return found[0] if found else None


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}-{os.getpid()}-{_machine()}")


def _leftovers(path: Path) -> list[tuple[Path, str, int]]:
    """(what lies beside ``path``, its kind, the process that made it) of this machine."""
    form = re.compile(rf"\.{re.escape(path.name)}{_MARK.pattern}")
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    matches = [m for m in map(form.fullmatch, names) if m and m[3] in (None, _machine())]
    return [(path.with_name(m[0]), m[1], int(m[2])) for m in matches]


def _alive(pid: int, place: Path) -> bool:
    """Whether the process ``pid`` can be the one, other than this, that writes ``place``."""
    import psutil

    if pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        # A number is given again: to one that has started since, give or take a minute.
        later = process.create_time() > place.lstat().st_ctime + 60
        return not later and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    except psutil.AccessDenied:
        return True


@functools.cache
def _machine() -> str:
    """Tells apart machines, and containers, that write into one shared folder."""
    try:
        processes = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        processes = 0
    return hashlib.sha256(f"{socket.gethostname()} {processes}".encode()).hexdigest()[:8]


def user_path(text: str | Path) -> Path:
    """A path as a user wrote it, with ``~`` expanded.

    Raises:
        InputError: it can be no path here: a NUL in it, half of a character, too long a name, the
            home of nobody.
    """
    try:
        path = Path(text).expanduser()
        path.exists()  # False for a NUL
        if b"\0" in os.fsencode(path):
            raise ValueError("embedded null byte")
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shown = str(text) if len(str(text)) <= 80 else f"{str(text)[:76]} ..."
        raise InputError(f"{shown!r} cannot be a path here ({reason})") from error
    return path


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
        return json.loads(read_text(path, what))
    except (ValueError, RecursionError) as error:  # ValueError: a number of 5,000 digits too
        raise InputError(f"{path}: expected {what} as JSON ({error})") from error


def read_json_object(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON document that must be an object."""
    value = read_json(path, what)
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected {what}, a JSON object, found a {type(value).__name__}")
    return value


def tensor_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """A sha256 (hex) over metadata, and over name, type, shape and bytes of every tensor.

    Tensors are taken as they lie in memory, so they must be contiguous and on the CPU.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        about = [name, str(tensor.dtype), list(tensor.shape)]
        digest.update(json.dumps(about).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_checksum(path: Path) -> str:
    """The sha256 (hex) of a file's bytes, as ``sha256sum`` gives it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    checksum: bool = True,
) -> None:
    """Write a safetensors file, whole or not at all.

    Args:
        path: the file.
        tensors: by name, on any device.
        metadata: kept beside them.
        checksum: add a checksum of both to the metadata; ``read_tensors`` verifies it.
    """
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    if checksum:
        metadata = {**metadata, CHECKSUM: tensor_checksum(plain, metadata)}
    with written_whole(path) as beside:
        beside.touch()
        rights = beside.stat().st_mode
        try:
            save_file(plain, str(beside), metadata=dict(metadata))
        except SafetensorError as error:
            raise InputError(f"cannot write {path}: {error}") from error
        beside.chmod(rights)  # safetensors would keep the file from all other users


def read_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: (tensors, metadata without its checksum).

    Raises:
        InputError: missing, truncated, no safetensors file, or changed since it was written
            (where it carries a checksum).
    """
    if not path.is_file():
        raise InputError(f"{what} not found: {path}")
    try:
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
            metadata = dict(file.metadata() or {})
        written = metadata.pop(CHECKSUM, None)
        found = None if written is None else tensor_checksum(tensors, metadata)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{path}: expected {what}, a whole safetensors file ({error})") from error
    if found != written:
        raise InputError(f"{path}: damaged: {what} in it are not those that were written")
    return tensors, metadata


def expect_metadata(metadata: Mapping[str, str], names: Collection[str], path: Path) -> None:
    """Raise InputError where metadata holds a name of no meaning: a damaged one, maybe."""
    unknown = sorted(metadata.keys() - set(names))
    if unknown:
        raise InputError(f"{path}: unknown entry {unknown[0]!r} in its metadata; is it damaged?")


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
