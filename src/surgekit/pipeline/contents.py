"""What files hold, as digests, taken again only of files whose size or time stamps changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from surgekit.errors import InputError
from surgekit.files import file_checksum, read_json_object, write_json
from surgekit.models.fingerprint import digest_json

COUNTED = (".safetensors", ".bin", ".json", ".model", ".jinja", ".txt", ".py")
"""Endings of the files of a folder that count: those that a program reads. Cards do not."""

_SEAL = "seal"


class Contents:
    """Digests of files, by their paths, kept in one file.

    Files inside ``root`` are named from there, so the folder can be moved. A digest is good for as
    long as size, time of change and time of the last change of the directory entry stay the same.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._file = root / "stages" / "hashes.json"
        self._kept: dict[str, Any] | None = None
        self._changed = False

    def digest(self, path: Path) -> str:
        """The sha256 of a file."""
        name, stamp = self.name(path), stamp_of(path)  # before reading: what comes later shows
        entry = self._cache().get(name)
        if isinstance(entry, dict) and entry.get("stamp") == stamp:
            return entry["sha256"]
        sha256 = file_checksum(path)
        self._cache()[name] = {"stamp": stamp, "sha256": sha256}
        self._changed = True
        return sha256

    def save(self) -> None:
        """Write what was found since the last time."""
        if self._changed:
            write_json(self._file, sealed(self._cache()))
            self._changed = False

    def record(self, outputs: Iterable[Path]) -> dict[str, Any]:
        """What a stage left: {path within root: {"stamp", "sha256"}} of all that counts."""
        found: dict[str, Any] = {}
        for path in counted(outputs):
            stamp = stamp_of(path)
            found[self.name(path)] = {"stamp": stamp, "sha256": file_checksum(path)}
        return found

    def differs(self, outputs: Sequence[Path], record: Mapping[str, Any]) -> str | None:
        """The first file that is not as recorded, in words; None where all are.

        A file is read only where its stamp is another, as in a copy of the run directory.
        """
        found = {self.name(path): path for path in counted(outputs)}
        absent = [self.name(p) for p in outputs if not p.exists()]
        absent += [n for n in record if n not in found]
        if absent:
            return f"{absent[0]} is gone"
        for name, path in found.items():
            if name not in record:
                return f"{name} has come in"
            known = record[name]
            if known["stamp"] != stamp_of(path) and known["sha256"] != self.digest(path):
                return f"{name} was changed"
        return None

    def name(self, path: Path) -> str:
        """A path as it is named in markers."""
        inside = path.is_relative_to(self.root)
        return path.relative_to(self.root).as_posix() if inside else str(path)

    def _cache(self) -> dict[str, Any]:
        if self._kept is None:
            kept = read_sealed(self._file) if self._file.is_file() else None
            self._kept = kept or {}
        return self._kept


def stamp_of(path: Path) -> list[int]:
    """Size and times of a file, which change when its content does."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def counted(outputs: Iterable[Path]) -> list[Path]:
    """The files given, and those that count in the folders given; hidden ones never do."""
    files: list[Path] = []
    for output in outputs:
        if output.is_file():
            files.append(output)
        elif output.is_dir():
            files += [
                path
                for path in sorted(output.rglob("*"))
                if path.suffix in COUNTED
                and path.is_file()
                and not any(part.startswith(".") for part in path.relative_to(output).parts)
            ]
    return files


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with a digest of itself, by which a change by hand shows."""
    return {**document, _SEAL: digest_json(document)}


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Such a document, without its digest; None where it is damaged or was changed."""
    try:
        document = read_json_object(path, "what surgekit wrote")
        seal = document.pop(_SEAL, None)
        return document if seal == digest_json(document) else None
    except (InputError, ValueError):
        return None
