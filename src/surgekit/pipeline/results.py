"""results.json: its format, and reading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from surgekit._version import __version__
from surgekit.errors import InputError
from surgekit.files import read_json_object

RESULTS_FORMAT = 1
RESULTS_FILE = "results.json"


def read_results(run: str | Path) -> dict[str, Any] | None:
    """The results of a run directory (format: docs/results.md); None where it has none yet.

    Raises:
        InputError: they are no JSON object, or of a format that this version does not read.
    """
    path = Path(run) / RESULTS_FILE
    if not path.exists():
        return None
    results = read_json_object(path, "a run's results")
    found = results.get("format")
    if found != RESULTS_FORMAT or isinstance(found, bool):
        raise InputError(
            f"{path}: this surgekit ({__version__}) reads results of format {RESULTS_FORMAT}, "
            f"found {found!r}; use the version that wrote them, or run the recipe again"
        )
    return results
