"""What the command line shows: progress on stderr, tables on stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from surgekit.errors import InputError, printable
from surgekit.findings import Finding, Level
from surgekit.pipeline.progress import Reporter


def print_json(document: Any) -> None:
    """One JSON document on stdout, escaped where the stream's encoding lacks a character of it."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=1, allow_nan=False)
    sys.stdout.write(text + "\n")


def stdout() -> Console:
    """The console for data; wide where it is no terminal, so that no figure is cut."""
    return _PlainConsole(width=None if sys.stdout.isatty() else 120, highlight=False)


_IN_ASCII = str.maketrans({"█": "#", "←": "<-", "…": "..."})


class _PlainConsole(Console):
    """Shows text as it is: names in files from elsewhere are no markup and steer no terminal.

    Where the stream takes no UTF-8, rich draws tables in ASCII; so are the signs in them.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        plain: dict[str, Any] = options | {"markup": False, "emoji": False}
        if self.options.ascii_only:
            text = text.translate(_IN_ASCII)
        return super().render_str(printable(text), **plain)


def tell_findings(findings: Iterable[Finding], reporter: Reporter, *levels: Level) -> None:
    """Note the findings of these levels; raise InputError at the first error."""
    for finding in findings:
        if finding.level == "error":
            raise InputError(finding.message)
        if finding.level in levels:
            reporter.note(str(finding))


class TerminalReporter(Reporter):
    """Lines for stages and notes; a bar for countable work where stderr is a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = _PlainConsole(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task: Any = None
        self._reused = 0
        self._started = time.perf_counter()

    def stage(self, name: str, *, reused: bool) -> None:
        """Say that a stage begins; finished ones are only counted."""
        if reused:
            self._reused += 1
        elif not name.startswith("surgery/"):
            self._say(f"{self._clock()} {name}")

    def start(self, label: str, total: int) -> None:
        """Begin a bar."""
        if self._quiet or not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(label, total=total)

    def advance(self, steps: int = 1) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.advance(self._task, steps)

    def finish(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def note(self, text: str) -> None:
        """Say something."""
        self._say(f"{self._clock()} {text}")

    def end(self) -> None:
        """Say how long it took, and what was not run again."""
        kept = f", {self._reused} finished stages reused" if self._reused else ""
        self._say(f"{self._clock()} done{kept}")

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text, markup=False, soft_wrap=True)

    def _clock(self) -> str:
        seconds = int(time.perf_counter() - self._started)
        return f"[{seconds // 60:3d}:{seconds % 60:02d}]"


def results_table(results: dict[str, Any]) -> list[Table]:
    """One table a domain: base, expert, merged, each method, on the test prompts."""
    tables: list[Table] = []
    for name, domain in results["domains"].items():
        items = domain["items"]
        table = Table(
            title=f"{name}: {items['test']} test prompts, calibrated on {items['calibration']}",
            title_justify="left",
        )
        table.add_column("")
        for heading in ("loss", "KL to expert", "agreement", "KL gap closed", "L1 drift"):
            table.add_column(heading, justify="right")
        metrics, bias = domain["metrics"], domain["bias"]
        for row in ("base", "expert", "merged"):
            drift = f"{bias['l1']['merged']:.4f}" if row == "merged" else ""
            table.add_row(row, *(f"{metrics[m][row]:.4f}" for m in _SHOWN), "", drift)
        table.add_section()
        for method in results["methods"]:
            recovered = metrics["recovered"]["kl"][method]
            mark = _mark(domain, method)
            table.add_row(
                method + mark,
                *(f"{metrics[m]['methods'][method]['mean']:.4f}" for m in _SHOWN),
                "" if recovered is None else f"{100 * recovered['mean']:.1f} %",
                f"{bias['l1']['methods'][method]['mean']:.4f}",
            )
        tables.append(table)
    return tables


_SHOWN = ("loss", "kl", "agreement")


def _mark(domain: dict[str, Any], method: str) -> str:
    if domain["recommended"] == method:
        return "  ← recommended"
    if domain["validation"]["methods"][method]["worse"]:
        return "  (worse on validation)"
    return ""
