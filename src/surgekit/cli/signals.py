"""Signals that end a command: Ctrl-C and SIGTERM unwind it once, so that it cleans up."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

CLEAN_UP_SECONDS = 10.0
"""How long a further signal is passed over, so that it does not break off the cleaning up."""

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_told: list[tuple[int, float]] = []


@contextlib.contextmanager
def signals_unwind() -> Iterator[None]:
    """Within, the first ending signal raises KeyboardInterrupt; impatient ones after it do not."""

    def handle(number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if _told and now - _told[-1][1] < CLEAN_UP_SECONDS:
            return
        _told.append((number, now))
        raise KeyboardInterrupt

    before = {}
    # Python lets the main thread alone set handlers; elsewhere the caller's own stay.
    main = threading.current_thread() is threading.main_thread()
    for number in _ENDING if main else ():
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a shell's background job
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            # From here on there is nothing left to clean up, nor anything to say.
            signal.signal(number, signal.SIG_IGN if _told else handler)


def stopped_by() -> int | None:
    """The signal that ended the command, or None where none did."""
    return _told[0][0] if _told else None


def open_standard_streams() -> None:
    """Put nothing where stdin, stdout or stderr is closed, and let any text through the others.

    Else the next file that is opened would get the number of the closed one, and what a library
    prints would be written into that file. A stream whose encoding lacks a character shows a
    question mark, and the work goes on.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            stream = os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        # Python itself gives stderr another way that loses nothing.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")
