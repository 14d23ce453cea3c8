"""Processes to kill: a server that has imported everything forks one for each job, in no time.

Run as ``python -m tests.killing``. A child tells what it is about to do, line by line, into a log:
what a run reports, and each file it opens to write, syncs, renames or removes. It can kill itself
(SIGKILL, so nothing is tidied up) at the n-th of these, or at the n-th that matches a pattern; or
the server kills it after some time, wherever it is, in native code too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import surgekit

ROOT = Path(__file__).parents[1]
SOURCE = Path(surgekit.__file__).parents[1]
_IMPORTED = (
    *("peft", "mergekit.merge", "plotly.graph_objects", "surgekit.pipeline.run", "tests.runs"),
    *(f"surgekit.cli.{verbs}" for verbs in ("app", "models", "recipes", "inspecting")),
)
_FILE_EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
_WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True)
class Outcome:
    """How a child ended.

    Attributes:
        status: its exit status, or minus the signal that ended it.
        events: what it was about to do, in order; the last one was not done if it was killed.
        done, reused, notes: as ``Watch`` has them.
        said: what it wrote to stdout and stderr.
        seconds: from the fork to the end.
    """

    status: int
    events: list[str]
    said: str
    seconds: float
    done: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    @property
    def stage(self) -> str:
        """The stage at work when it ended, without the domain's name and the like."""
        names = [e.removeprefix("stage ") for e in self.events if e.startswith("stage ")]
        if not names:
            return "before the first stage"
        if any("results.json" in e for e in self.events):
            return "results.json"
        parts = names[-1].split("/")
        return "/".join(parts[:2]) if parts[:2] == ["capture", "heads"] else parts[0]


class Server:
    """The forking process, and jobs for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs = 0
        variables = {
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(p for p in (str(SOURCE), *sys.path) if p),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.killing"],
            cwd=ROOT,
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def recipe(self, root: Path, out: Path, changes: dict[str, Any]) -> dict[str, Any]:
        """The job of running the small world's recipe."""
        return {"root": str(root), "out": str(out), "changes": changes}

    def command(self, *arguments: str | Path) -> dict[str, Any]:
        """The job of one call of the command line."""
        return {"arguments": [str(a) for a in arguments]}

    def run(self, *jobs: dict[str, Any]) -> list[Outcome]:
        """Run jobs side by side, each in a process of its own."""
        for job in jobs:
            self._jobs += 1
            job["log"] = str(self._folder / f"{self._jobs}.log")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(jobs) + "\n")
        self._process.stdin.flush()
        ended = json.loads(self._process.stdout.readline())
        return [_outcome(job, *end) for job, end in zip(jobs, ended, strict=True)]

    def close(self) -> None:
        """Let the server end."""
        self._process.communicate(timeout=30)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.close()


def _outcome(job: dict[str, Any], status: int, seconds: float) -> Outcome:
    log = Path(job["log"])
    told = log.with_suffix(".json")
    return Outcome(
        status,
        log.read_text(encoding="utf-8").splitlines() if log.exists() else [],
        log.with_suffix(".said").read_text(encoding="utf-8"),
        seconds,
        **(json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}),
    )


# --- the server and its children ----------------------------------------------------------------


def _serve() -> None:
    for name in _IMPORTED:
        with contextlib.suppress(ImportError):  # plotly is an extra
            importlib.import_module(name)
    for line in sys.stdin:
        started = time.monotonic()
        children = {_fork(job): (number, job) for number, job in enumerate(json.loads(line))}
        ended: dict[int, tuple[int, float]] = {}
        while children:
            for pid, (number, job) in list(children.items()):
                spent = time.monotonic() - started
                if "after" in job and spent >= job["after"]:
                    os.kill(pid, signal.SIGKILL)
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    ended[number] = (os.waitstatus_to_exitcode(status), spent)
                    del children[pid]
            time.sleep(0.001)
        print(json.dumps([ended[n] for n in range(len(ended))]), flush=True)


def _fork(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 99
    try:
        said = os.open(Path(job["log"]).with_suffix(".said"), os.O_CREAT | os.O_WRONLY)
        os.dup2(said, 1)
        os.dup2(said, 2)
        status = _work(job)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - this process ends here
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _work(job: dict[str, Any]) -> int:
    tell = _teller(job)
    while time.time() < job.get("start_at", 0):
        pass
    if "arguments" in job:
        from surgekit.cli import run

        return run(job["arguments"])
    from surgekit.pipeline.run import run_recipe

    from .runs import Watch, recipe

    class Telling(Watch):
        def stage(self, name: str, *, reused: bool) -> None:
            tell(f"{'reused' if reused else 'stage'} {name}")
            super().stage(name, reused=reused)

        def start(self, label: str, total: int) -> None:
            tell(f"start {label}")

        def advance(self, steps: int = 1) -> None:
            tell("advance")

        def finish(self) -> None:
            tell("finish")

    watch = Telling()
    run_recipe(recipe(Path(job["root"]), **job["changes"]), job["out"], reporter=watch)
    told = {"done": watch.done, "reused": watch.reused, "notes": watch.notes}
    Path(job["log"]).with_suffix(".json").write_text(json.dumps(told), encoding="utf-8")
    return 0


def _teller(job: dict[str, Any]) -> Any:
    """A function that is told each step, and the hooks that tell it of files."""
    log = os.open(job["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    pattern, left = re.compile(job.get("at", "")), [job.get("nth", 1) if "at" in job else -1]

    def tell(step: str) -> None:
        os.write(log, f"{step}\n".encode())
        if pattern.search(step):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def shown(path: Any) -> str:
        name = os.path.basename(os.fsdecode(path))
        return re.sub(r"\.(part|old)-\d+(-[0-9a-f]+)?", r".\1", name)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FILE_EVENTS:
            paths = arguments[:2] if event == "os.rename" else arguments[:1]
            tell(" ".join([event.removeprefix("os."), *map(shown, paths)]))
        elif event == "open" and arguments[2] & _WRITING and ".part" in str(arguments[0]):
            tell(f"write {shown(arguments[0])}")  # logs, locks and devices are none of these

    sync = os.fsync

    def fsync(handle: int) -> None:
        tell("sync")
        sync(handle)

    os.fsync = fsync
    sys.addaudithook(hook)
    return tell


if __name__ == "__main__":
    _serve()
