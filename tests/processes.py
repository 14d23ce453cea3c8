"""The command in a process of its own: with other rights, under limits, and for signals.

A fork of the test process, so that nothing has to be imported anew.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from surgekit.cli import main

NOBODY = 65534
NOT_BEGUN = 99
"""The status of a process that was stopped before it came to the command."""


class Ended(NamedTuple):
    """How a process ended: its exit status (negative: the signal), and what it said."""

    status: int
    out: str
    err: str


class Process:
    """A call of the command (or of a function), at work in a fork."""

    def __init__(
        self,
        call: list[str] | Callable[[], None],
        folder: Path,
        notes: Path,
        *,
        nobody: bool = False,
    ) -> None:
        self._notes = notes
        notes.mkdir(parents=True, exist_ok=True)
        self.out, self.err = notes / "out", notes / "err"
        with warnings.catch_warnings():  # of Python 3.12 on: a fork of a process with threads
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            self._work(call, folder, nobody)

    def _work(self, call: list[str] | Callable[[], None], folder: Path, nobody: bool) -> None:
        status = NOT_BEGUN
        try:
            for number, file in ((1, self.out), (2, self.err)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8")
            sys.stderr = os.fdopen(2, "w", encoding="utf-8")
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            torch.set_num_threads(1)  # a pool of threads does not survive a fork
            os.chdir(folder)
            if nobody:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            main(call) if isinstance(call, list) else call()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(status)

    def says(self, text: str, seconds: float = 60) -> None:
        """Wait until it has said something on stderr."""
        end = time.monotonic() + seconds
        while not self.err.exists() or text not in self.err.read_text():
            assert os.waitpid(self.pid, os.WNOHANG) == (0, 0), self.err.read_text()
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"never said {text!r}: {self.err.read_text()}")
            time.sleep(0.002)

    def kill(self) -> None:
        """End it for good, so that no test leaves a process at work."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def signal(self, number: int) -> None:
        """Send a signal, as the terminal or another process would."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def ended(self, seconds: float = 60) -> Ended:
        """Wait for the end."""
        limit = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > limit:
                self.kill()
                raise AssertionError(f"still at work: {self.err.read_text()}")
            time.sleep(0.005)
        said = [f.read_text() if f.exists() else "" for f in (self.out, self.err)]
        return Ended(os.waitstatus_to_exitcode(status), *said)


def without_rights(call: list[str], folder: Path, notes: Path) -> Ended:
    """A call by a user who owns nothing: nobody, or the one at work where that is not root."""
    return Process(call, folder, notes, nobody=os.geteuid() == 0).ended()


@contextlib.contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """No file can grow beyond ``size`` bytes meanwhile: a full disk that needs no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def open_to_all(root: Path) -> Path:
    """Let every user read what is below a folder, and reach it."""
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return root


def shut(path: Path, mode: int) -> Callable[[], None]:
    """Take rights away; returns what gives them back."""
    before = path.stat().st_mode
    path.chmod(mode)
    return lambda: path.chmod(before)
