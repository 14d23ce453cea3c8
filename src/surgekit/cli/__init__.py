"""The command line: data on stdout, talk on stderr, no heavy import before a verb runs."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

from surgekit.errors import InputError, SurgekitError

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130
_INTERRUPTED = "interrupted; finished stages are kept"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit status.

    0 done, 1 a failure in the work, 2 wrong input, 130 interrupted.
    """
    show = "--traceback" in arguments
    arguments = [a for a in arguments if a != "--traceback"]
    from surgekit.cli.app import app

    try:
        status = int(app(arguments, standalone_mode=False) or DONE)
        sys.stdout.flush()  # a reader that has gone is met here, not at the interpreter's end
        if status != INTERRUPTED:
            return status
        return _end(_INTERRUPTED, INTERRUPTED, show=False)  # typer has swallowed what it was
    except KeyboardInterrupt:
        return _end(_INTERRUPTED, INTERRUPTED, show)
    except InputError as error:
        return _end(str(error), WRONG_INPUT, show)
    except SurgekitError as error:
        return _end(str(error), FAILED, show)
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # a stdout that is no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last place that can say it in one line
        # Typer and click raise their own kinds for wrong usage, and they know how to say it.
        said = getattr(error, "format_message", None)
        if hasattr(error, "exit_code") and said is not None:
            return _end(said(), WRONG_INPUT, show)
        if type(error).__name__ == "Abort":
            return _end(_INTERRUPTED, INTERRUPTED, show)
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            return _end(f"{where}{error.strerror or error}", WRONG_INPUT, show)
        said = str(error).splitlines()[0] if str(error) else ""
        hint = "" if show else " (this is a defect of surgekit; --traceback shows where)"
        return _end(f"{type(error).__name__}: {said}{hint}", FAILED, show)


def _end(message: str, status: int, show: bool) -> int:
    if show:
        traceback.print_exc()
    print(f"surgekit: {message}", file=sys.stderr)
    return status
