"""Run generated Python programs in a resource-limited subprocess.

The limits stop accidents of a language model (endless loops, huge allocations, runaway forks);
they are no defence against a program written to attack the host.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FILE_BYTES = 1 << 20
SPARE_PROCESSES = 64
_REFUSED = (
    "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system",
    "subprocess.Popen", "pty.spawn", "os.kill", "os.killpg", "_thread.start_new_thread",
    "socket.__new__", "ctypes.dlopen",
)  # fmt: skip
# The process limit doesn't bind root, so an audit hook (which can't be taken back) refuses new
# processes too. The program runs in an exec of its own: a leading ``from __future__`` stays legal.
_RUNNER = """\
import sys

def _install(refused):
    def hook(event, args):
        if event in refused:
            raise PermissionError(event)
    sys.addaudithook(hook)

_install(frozenset({refused!r}))
exec(compile({source!r}, "program", "exec"), {{"__name__": "__main__"}})
sys.__stdout__.write({ending!r})
sys.__stdout__.flush()
"""


def _user_tasks() -> int:
    """Count the tasks (threads) of this user, which is what RLIMIT_NPROC counts."""
    total = 0
    for status in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if status.stat().st_uid == os.getuid():
                total += len(os.listdir(status / "task"))
    return total


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def run_asserts(
    program: str, asserts: Sequence[str], seconds: float = 5.0, memory_bytes: int = 512 << 20
) -> bool:
    """Return whether ``program`` followed by ``asserts`` runs to the end within the limits.

    A nonce is printed after the last assert and has to be the last line of the output, so a
    program that leaves early with status 0 doesn't pass. ``seconds`` bounds wall time (and, rounded
    up, CPU time), ``memory_bytes`` the address space. Never raises because of the program.
    """
    nonce = secrets.token_hex(16)
    source = "\n".join([program, *asserts, ""])
    ending = f"\n{nonce}\n"
    # repr escapes lone surrogates, so any string can be written; the compiler then refuses it.
    script_text = _RUNNER.format(refused=_REFUSED, source=source, ending=ending)
    cpu = int(seconds) + 1
    tasks = _user_tasks() + SPARE_PROCESSES

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        script = Path(folder, "program.py")
        script.write_text(script_text, encoding="utf-8")
        out_path = Path(folder, "stdout")
        # Output goes to a file, which FILE_BYTES bounds, so a chatty program can't fill memory.
        with out_path.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={},
                start_new_session=True,
                preexec_fn=limit,
            )
            try:
                status = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                # Children that outlived the program share its group, so they go as well.
                _kill_group(process.pid)
                process.wait()
        if status != 0:
            return False
        try:
            lines = out_path.read_bytes().splitlines()
        except OSError:
            return False
    return bool(lines) and lines[-1] == nonce.encode()
