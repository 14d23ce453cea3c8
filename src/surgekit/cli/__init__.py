"""The command line: data on stdout, talk on stderr, no heavy import before a verb runs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from surgekit.cli.signals import open_standard_streams, signals_unwind, stopped_by
from surgekit.errors import InputError, SurgekitError, printable, without_secrets

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    with signals_unwind():
        open_standard_streams()
        status = run(sys.argv[1:] if arguments is None else list(arguments))
    if stopped_by() is not None:
        # Where the interruption went through code that was being executed from a text, Python
        # remembers it and would kill itself by SIGINT at its end, whatever the status.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit status.

    0 done, 1 a failure in the work, 2 wrong input, 130 interrupted, 143 terminated,
    129 hung up (128 + the number of the signal).
    """
    show = "--traceback" in arguments
    arguments = [a for a in arguments if a != "--traceback"]
    verb = next((a for a in arguments if not a.startswith("-")), "")
    try:
        from surgekit.cli.app import app

        status = int(app(arguments, standalone_mode=False) or DONE)
        sys.stdout.flush()  # a reader that has gone is met here, not at the interpreter's end
        return _interrupted(verb, show) if status == INTERRUPTED else status  # typer swallows it
    except KeyboardInterrupt:
        return _interrupted(verb, show)
    except InputError as error:
        return _end(str(error), WRONG_INPUT, show)
    except SurgekitError as error:
        return _end(str(error), FAILED, show)
    except BrokenPipeError:
        _forget_stdout()
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last place that can say it in one line
        if stopped_by() is not None:  # what a library made of the interruption
            return _interrupted(verb, show)
        # Typer and click raise their own kinds for wrong usage, and they know how to say it.
        said = getattr(error, "format_message", None)
        if type(error).__name__ == "NoArgsIsHelpError" and said is not None:
            print(said(), file=sys.stderr)  # the help itself
            return WRONG_INPUT
        if hasattr(error, "exit_code") and said is not None:
            return _end(_usage(said(), verb), WRONG_INPUT, show)
        if type(error).__name__ == "Abort":
            return _interrupted(verb, show)
        if isinstance(error, OSError):
            _forget_stdout()
            where = f"{error.filename}: " if error.filename else ""
            return _end(f"{where}{error.strerror or error}", WRONG_INPUT, show)
        first = str(error).splitlines()[0][:300] if str(error) else ""
        if _is_out_of_memory(error):
            return _end(
                f"out of memory ({first}); use a smaller batch size, or a machine with more",
                FAILED,
                show,
            )
        hint = "" if show else " (this is a defect of surgekit; --traceback shows where)"
        return _end(f"{type(error).__name__}: {first}{hint}", FAILED, show)


def _interrupted(verb: str, show: bool) -> int:
    number = stopped_by() or signal.SIGINT
    said = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    kept = "finished stages are kept" if verb == "run" else "nothing is half-written"
    return _end(f"{said}; {kept}", 128 + number, show)


def _usage(said: str, verb: str) -> str:
    from surgekit.cli.app import app
    from surgekit.parsing import in_plain_words

    verbs = [c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands]
    said = " ".join(said.split()).rstrip(".")
    if said.startswith("No such command"):
        return f"{said}; the verbs are {', '.join(verbs)}"
    where, found, rest = said.partition(": ")
    said = f"{where}: {in_plain_words(rest)}" if found else said
    return f"{said}; see surgekit {verb + ' ' if verb in verbs else ''}--help"


def _is_out_of_memory(error: Exception) -> bool:
    said = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in said
    )


def _forget_stdout() -> None:
    """Let the interpreter's last flush of stdout go nowhere; it would fail once more."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):  # a stdout that is no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: str, status: int, show: bool) -> int:
    if show:
        print(printable(without_secrets(traceback.format_exc())), file=sys.stderr, end="")
    with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more
        print(f"surgekit: {printable(without_secrets(message))}", file=sys.stderr)
        sys.stderr.flush()
    return status
