"""Findings: what a check has to say about an input, before any work is done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from surgekit.errors import InputError, fit_to_show

Level = Literal["error", "warning", "unverified", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "unverified", "note")
"""In the order in which they are told."""

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """One thing worth telling.

    Attributes:
        level: an ``error`` stops a run, a ``warning`` does not; ``unverified`` names what could
            not be checked and why; a ``note`` is information.
        message: what was expected, what was found, the way out; secrets in it are blotted out as
            in the messages of errors.
    """

    level: Level
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", fit_to_show(self.message))

    def __str__(self) -> str:
        return self.message if self.level == "note" else f"{self.level}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def attempt(findings: list[Finding], work: Callable[[], T], where: str = "") -> T | None:
    """The outcome of ``work``; an InputError becomes a finding, and the outcome is None.

    Args:
        findings: what there is to say is added to these.
        work: what may fail.
        where: begins the message, unless it begins so already.
    """
    try:
        return work()
    except InputError as error:
        said = str(error)
        findings.append(Finding("error", said if said.startswith(where) else f"{where}: {said}"))
        return None


def has_error(findings: Iterable[Finding]) -> bool:
    """Whether an error is among the findings."""
    return any(f.level == "error" for f in findings)


def expect_no_error(findings: Iterable[Finding]) -> None:
    """Raise InputError with the first error among findings, if there is one."""
    for finding in findings:
        if finding.level == "error":
            raise InputError(finding.message)
