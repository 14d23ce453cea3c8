#!/usr/bin/env python3
"""Ask an advisory database about every pinned version (constraints.txt), with pip-audit.

    tools/audit.py [--pip-audit PROGRAM] [--service pypi|osv] [--constraints FILE]

Exit status: 0 every version was looked up and none has a known vulnerability that is not explained
here; 1 some have, they are listed; 2 wrong use (no pip-audit, no such file); 3 not all versions
could be looked up, so nothing is known of the rest. pip-audit itself calls that "no known
vulnerabilities found" and ends with 0.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLEAN, VULNERABLE, WRONG_USE, NOT_ASKED = 0, 1, 2, 3
ROOT = Path(__file__).resolve().parent.parent

CANARY = "jinja2==2.10"
"""A version with published vulnerabilities: a database that knows none of it answers nothing."""

EXPLAINED: Mapping[str, str] = {}
"""Vulnerability id → why it does not matter here, or what is done about it."""


@dataclass(frozen=True)
class Finding:
    """A known vulnerability of a pinned version."""

    package: str
    version: str
    id: str
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        fixed = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "not fixed"
        why = EXPLAINED.get(self.id)
        return f"{self.package} {self.version}: {self.id}, {fixed}" + (f" ({why})" if why else "")


def read_report(text: str, asked: Mapping[str, str]) -> tuple[list[Finding], list[str]]:
    """(findings, packages that were not looked up) of pip-audit's JSON report.

    Args:
        text: what it printed.
        asked: canonical name → version. What the report leaves out was not looked up either.
    """
    try:
        entries: list[dict[str, Any]] = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return [], sorted(asked)
    findings: list[Finding] = []
    answered: set[str] = set()
    for entry in entries:
        name = canonical(entry["name"])
        if "skip_reason" in entry or "vulns" not in entry:
            continue
        if entry.get("version") == asked.get(name):
            answered.add(name)
        findings += [
            Finding(name, entry["version"], v["id"], tuple(v.get("fix_versions", ())))
            for v in entry["vulns"]
        ]
    return findings, sorted(asked.keys() - answered)


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """Canonical name → version of each pin in a constraints file; ValueError on anything else."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        line = line.split("#", 1)[0].strip()
        if line:
            name, found, version = line.partition("==")
            if not found or not version.strip():
                raise ValueError(f"expected NAME==VERSION, found {line!r}")
            pins[canonical(name.strip())] = version.split(";")[0].strip()
    return pins


def ask(program: str, service: str, pins: Mapping[str, str]) -> str:
    """What pip-audit prints about these versions; nothing is installed or resolved."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pins.txt"
        file.write_text("".join(f"{n}=={v}\n" for n, v in pins.items()), encoding="utf-8")
        options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
        command = [program, "--requirement", str(file), "--vulnerability-service", service]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    return done.stdout


def judge(report: str, pins: Mapping[str, str]) -> tuple[int, list[str]]:
    """(exit status, lines to print) of a report on ``pins``."""
    findings, unanswered = read_report(report, pins)
    lines = [str(f) for f in findings]
    lines += [f"{name} {pins[name]}: not looked up" for name in unanswered]
    open_ones = [f for f in findings if f.id not in EXPLAINED]
    stale = sorted(EXPLAINED.keys() - {f.id for f in findings}) if not unanswered else []
    lines += [f"{i}: explained in tools/audit.py, and no longer found" for i in stale]
    lines.append(
        f"{len(pins) - len(unanswered)} of {len(pins)} pinned versions looked up, "
        f"{len(findings)} known vulnerabilities, {len(open_ones)} of them unexplained"
    )
    if open_ones:
        return VULNERABLE, lines
    return (NOT_ASKED if unanswered else CLEAN), lines


def main() -> int:
    """Look up all pins and say what is known of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pip-audit", default="pip-audit", help="the program")
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi")
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    chosen = parser.parse_args()
    try:
        pins = read_pins(chosen.constraints.read_text(encoding="utf-8"))
        canary = read_pins(CANARY)
        known, _ = read_report(ask(chosen.pip_audit, chosen.service, canary), canary)
        if not known:
            print(
                f"not audited: the {chosen.service} database knows no vulnerability of {CANARY}, "
                "which has some; it cannot be reached from here, or an index without advisories "
                "stands in its place. Try another network, or --service osv"
            )
            return NOT_ASKED
        status, lines = judge(ask(chosen.pip_audit, chosen.service, pins), pins)
    except FileNotFoundError as error:
        print(f"{error.filename}: not found; pip install pip-audit", file=sys.stderr)
        return WRONG_USE
    except (OSError, ValueError) as error:
        print(f"{chosen.constraints}: {error}", file=sys.stderr)
        return WRONG_USE
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
