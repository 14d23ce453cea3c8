"""The run directory: what a recipe produced, stage by stage, and what need not be done again.

A stage is done when its marker in ``stages/`` carries the digest of its present inputs and its
outputs exist. Markers are written last, so a stage that was interrupted has none.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from surgekit._version import __version__
from surgekit.errors import InputError, SurgekitError
from surgekit.files import LEFTOVER, read_json, write_json
from surgekit.models.fingerprint import digest_json
from surgekit.pipeline.progress import Reporter

_BLOCK = 1 << 22


class RunDirectory:
    """A folder with stage markers, held by one run at a time.

    Attributes:
        root: the folder.
        timing: seconds each stage took, when it was run.
        peak_memory: bytes each stage needed at most, when it was run.
        reused: names of the stages that were found finished.
    """

    def __init__(self, root: Path, reporter: Reporter) -> None:
        self.root = root
        self.reporter = reporter
        self.timing: dict[str, float] = {}
        self.peak_memory: dict[str, int] = {}
        self.reused: list[str] = []

    @classmethod
    @contextmanager
    def open(cls, root: Path, reporter: Reporter) -> Iterator[RunDirectory]:
        """Hold the folder for one run, making it where it is missing.

        Raises:
            InputError: another run is at work in it, or it is some other folder.
        """
        if root.exists() and not root.is_dir():
            raise InputError(f"{root}: expected a folder for the run, found a file")
        # Not recipe.yaml: a folder of the user's has one too, and a run writes its own there.
        if root.is_dir() and any(root.iterdir()) and not (root / "stages").is_dir():
            raise InputError(f"{root} holds other things than a run; name another with --out")
        try:
            (root / "stages").mkdir(parents=True, exist_ok=True)
            lock = FileLock(root / ".lock")
            lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError(f"another run is at work in {root}; wait, or use --out") from error
        except OSError as error:
            raise InputError(f"cannot write {root}: {error.strerror or error}") from error
        try:
            _remove_leftovers(root)
            yield cls(root, reporter)
        finally:
            lock.release()

    def path(self, *parts: str) -> Path:
        """A path inside the run directory."""
        return self.root.joinpath(*parts)

    def stage(
        self,
        name: str,
        inputs: dict[str, Any],
        outputs: Sequence[Path],
        work: Callable[[], Any],
    ) -> Any:
        """Do a stage's work, or take its result from last time if its inputs are the same.

        Args:
            name: ``stages/NAME.json`` is its marker (slashes make folders).
            inputs: everything the outcome depends on, JSON-able.
            outputs: files or folders it leaves; all must exist for it to count as done.
            work: returns a JSON-able result, kept in the marker.

        Returns:
            The result.
        """
        marker = self.path("stages", f"{name}.json")
        key = digest_json({"surgekit": __version__, "inputs": inputs})
        done = self._finished(marker, key, outputs)
        if done is not None:
            self.reused.append(name)
            self.timing[name] = done["seconds"]
            self.peak_memory[name] = done["peak_memory_bytes"]
            self.reporter.stage(name, reused=True)
            return done["result"]
        self.reporter.stage(name, reused=False)
        marker.unlink(missing_ok=True)
        _reset_peak_memory()
        started = time.perf_counter()
        result = work()
        seconds = round(time.perf_counter() - started, 3)
        peak = _peak_memory()
        missing = [p for p in outputs if not p.exists()]
        if missing:
            raise SurgekitError(f"stage {name} left no {missing[0]}")
        write_json(
            marker,
            {
                "key": key,
                "inputs": inputs,
                "result": result,
                "seconds": seconds,
                "peak_memory_bytes": peak,
            },
        )
        self.timing[name], self.peak_memory[name] = seconds, peak
        return result

    def _finished(self, marker: Path, key: str, outputs: Sequence[Path]) -> Any:
        if not marker.is_file():
            return None
        try:
            document = read_json(marker, "a stage marker")
        except InputError:
            return None
        fits = isinstance(document, dict) and document.get("key") == key
        return document if fits and all(p.exists() for p in outputs) else None

    def content_of(self, paths: Sequence[Path]) -> str:
        """Digest of files' contents; hashed again only when size or time stamp changed."""
        cache_file = self.path("stages", "hashes.json")
        try:
            cache: dict[str, Any] = read_json(cache_file, "hashes") if cache_file.exists() else {}
        except InputError:
            cache = {}
        digests: list[list[str]] = []
        changed = False
        for path in sorted(paths):
            stat = path.stat()
            stamp = [stat.st_size, stat.st_mtime_ns]
            entry = cache.get(str(path))
            if not entry or entry["stamp"] != stamp:
                entry = {"stamp": stamp, "sha256": _sha256(path)}
                cache[str(path)] = entry
                changed = True
            digests.append([path.name, entry["sha256"]])
        if changed:
            write_json(cache_file, cache)
        return digest_json(digests)


def _remove_leftovers(root: Path) -> None:
    """Remove what a killed run was writing; the lock is held, so it is nobody's work."""
    for path in list(root.rglob(".*")):
        if LEFTOVER.fullmatch(path.name) and path.exists():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _reset_peak_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if sys.platform == "linux":
        try:  # 5 resets the resident set's high-water mark
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return


def _peak_memory() -> int:
    """High-water mark in bytes since the last reset (since the start, where none can be made)."""
    gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 + gpu
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit + gpu


def environment() -> dict[str, Any]:
    """What the figures were made with: versions, threads, processor."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, str] = {}
    for package in ("torch", "transformers", "mergekit", "safetensors", "peft", "numpy", "scipy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": versions,
    }
