"""How the pipeline tells what it is doing; the command line shows it, a library user need not."""

from __future__ import annotations


class Reporter:
    """Silent by default; a subclass shows what it is told."""

    def stage(self, name: str, *, reused: bool) -> None:
        """A stage begins, or is found finished."""

    def start(self, label: str, total: int) -> None:
        """A countable piece of work of ``total`` steps begins."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of it are done."""

    def finish(self) -> None:
        """It has ended."""

    def note(self, text: str) -> None:
        """Something worth telling."""
