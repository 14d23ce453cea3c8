"""The run directory: what a recipe produced, stage by stage, and what need not be done again.

A stage is done when its marker in ``stages/`` carries the digest of its present inputs and its
outputs are as the marker says. Markers are written last, so a stage that was interrupted has none.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from surgekit._version import __version__
from surgekit.errors import InputError, SurgekitError
from surgekit.files import LEFTOVER, read_json_object, write_json
from surgekit.models.fingerprint import digest_json
from surgekit.pipeline.contents import Contents, read_sealed, sealed
from surgekit.pipeline.progress import Reporter

RUN_FORMAT = 1
RUN_FILE = "run.json"
_STAGES = "stages"
_PATIENCE = 0.3
"""Seconds to wait for the lock: those that only look whether it is free hold it for a moment."""
_AT_WORK = "another run is at work in {}; wait, or use --out"
_MADE = {_STAGES, "models", "merged", "states", "adapters", "recipe.yaml", "results.json"}


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
        self._contents = Contents(root)

    @classmethod
    @contextmanager
    def open(cls, root: Path, reporter: Reporter) -> Iterator[RunDirectory]:
        """Hold the folder for one run, making it where it is missing.

        Raises:
            InputError: another run is at work in it, it is some other folder, or a run of a
                format that this version does not go on with.
        """
        expect_place(root)
        try:
            (root / _STAGES).mkdir(parents=True, exist_ok=True)
            lock = FileLock(root / ".lock")
            lock.acquire(timeout=_PATIENCE, poll_interval=_PATIENCE / 10)
        except Timeout as error:
            raise InputError(_AT_WORK.format(root)) from error
        except OSError as error:
            raise InputError(f"cannot write {root}: {error.strerror or error}") from error
        try:
            if not (root / RUN_FILE).exists():
                write_json(root / RUN_FILE, {"format": RUN_FORMAT, "surgekit": __version__})
            _remove_leftovers(root)
            run = cls(root, reporter)
            yield run
            run._contents.save()
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
        *,
        holds: Callable[[Any], bool] = lambda result: True,
    ) -> Any:
        """Do a stage's work, or take its result from last time if its inputs are the same.

        Args:
            name: ``stages/NAME.json`` is its marker (slashes make folders).
            inputs: everything the outcome depends on, JSON-able; contents, never places.
            outputs: files or folders it leaves; they must be as it left them for it to count as
                done. Of a folder those files count that a program reads, see ``contents``.
            work: returns a JSON-able result, kept in the marker.
            holds: says of an old result whether it is still the one that is wanted, where that
                shows only in the result.

        Returns:
            The result.
        """
        marker = self.path(_STAGES, f"{name}.json")
        key = digest_json({"surgekit": __version__, "inputs": inputs})
        done = self._finished(name, marker, key, outputs)
        if done is not None and holds(done["result"]):
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
        document = {
            "format": RUN_FORMAT,
            "key": key,
            "inputs": inputs,
            "outputs": self._contents.record(outputs),
            "result": result,
            "seconds": seconds,
            "peak_memory_bytes": peak,
        }
        document = json.loads(json.dumps(document))  # as it will be read: no tuples, keys of text
        write_json(marker, sealed(document))
        self.timing[name], self.peak_memory[name] = seconds, peak
        return document["result"]

    def _finished(
        self, name: str, marker: Path, key: str, outputs: Sequence[Path]
    ) -> dict[str, Any] | None:
        """The marker of a stage that need not run again; tells where one was tampered with."""
        if not marker.is_file():
            return None
        document = read_sealed(marker)
        if document is None:
            self.reporter.note(f"{name} runs again: its marker {marker} was changed")
            return None
        if document["key"] != key:
            return None
        differs = self._contents.differs(outputs, document["outputs"])
        if differs is not None:
            self.reporter.note(f"{name} runs again: {differs}")
            return None
        return document

    def content_of(self, paths: Sequence[Path]) -> str:
        """Digest of files' names and contents; read again only when their stamps changed."""
        found = digest_json([[p.name, self._contents.digest(p)] for p in sorted(paths)])
        self._contents.save()
        return found


def is_run(root: Path) -> bool:
    """Whether a folder is a run's. One of the user's may have a ``stages`` or a recipe too."""
    if not (root / _STAGES).is_dir():
        return False
    marks = (RUN_FILE, ".lock")
    return any((root / m).is_file() for m in marks) or _MADE.issuperset(os.listdir(root))


def check_run_format(root: Path) -> None:
    """Raise InputError where a run directory is of a format that this version does not know."""
    path = root / RUN_FILE
    found = RUN_FORMAT
    if path.exists():
        try:
            found = read_json_object(path, "the format of a run directory").get("format")
        except InputError as error:
            raise InputError(
                f"{error}; delete the file to go on with the run, or name another directory "
                "with --out"
            ) from error
    if found != RUN_FORMAT or isinstance(found, bool):
        raise InputError(
            f"{root}: this surgekit ({__version__}) knows run directories of format {RUN_FORMAT}, "
            f"found {found!r}; use the version that made it, or name another with --out"
        )


def finished_stages(root: Path) -> list[str]:
    """The stages of a run directory that have a sound marker, in order of name."""
    folder = root / _STAGES
    markers = [p for p in folder.rglob("*.json") if p != folder / "hashes.json"]
    done = [p for p in sorted(markers) if read_sealed(p) is not None]
    return [p.relative_to(folder).with_suffix("").as_posix() for p in done]


def expect_place(root: Path) -> None:
    """Raise InputError where a folder is in use by something else than a run of this format."""
    if root.exists() and not root.is_dir():
        raise InputError(f"{root}: expected a folder for the run, found a file")
    if root.is_dir() and any(root.iterdir()) and not is_run(root):
        raise InputError(f"{root} holds other things than a run; name another with --out")
    check_run_format(root)


def expect_free(root: Path) -> None:
    """The same, and where another run is at work in it; nothing is written to find that out."""
    expect_place(root)
    if not (root / ".lock").is_file():
        return
    try:
        import fcntl
    except ImportError:  # no POSIX system; the run itself will find it
        return
    with suppress(PermissionError), (root / ".lock").open("rb") as lock:
        try:  # shared, so that two that look do not find each other
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(_AT_WORK.format(root)) from error
        except OSError:  # a file system without locks; the run itself will find it
            return


def _remove_leftovers(root: Path) -> None:
    """Remove what a killed run was writing; the lock is held, so it is nobody's work."""
    for path in list(root.rglob(".*")):
        if LEFTOVER.fullmatch(path.name) and path.exists():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


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
