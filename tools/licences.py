#!/usr/bin/env python3
"""Write docs/dependencies.md: what surgekit needs, under which licence, and why.

    tools/licences.py            write it, from the metadata of what is installed here
    tools/licences.py --check    exit 1 where it names other packages or licences than these

Runtime only: pyproject.toml's dependencies and extras, and all that these bring along. A package
that is not installed here keeps its row.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "dependencies.md"
UNKNOWN = "unknown"

WHY = {
    "torch": "models, states, training",
    "transformers": "models and tokenizers",
    "safetensors": "weights, states and adapters on disk",
    "mergekit": "merges models",
    "huggingface-hub": "models by hub id, uploads",
    "accelerate": "models spread over devices; transformers imports it",
    "pydantic": "checks recipes and adapter configurations",
    "pyyaml": "reads recipes and merge configurations",
    "jinja2": "prompt formats",
    "filelock": "one writer at a time in a folder",
    "numpy": "random states, tensors as arrays",
    "scipy": "closed-form corrections",
    "psutil": "memory, before a run",
    "tqdm": "mergekit's progress bars, shown on a terminal only",
    "typer": "the command line",
    "rich": "tables and progress",
    "peft": "experts that are LoRAs",
    "gguf": "base models in GGUF files",
    "sentencepiece": "tokenizers in GGUF files; transformers imports it",
    "protobuf": "tokenizers in GGUF files; transformers imports it",
    "plotly": "plots of the bias",
    "bitsandbytes": "models loaded in 4 and 8 bits; transformers imports it",
}
"""Direct dependencies: what each is for."""

IMPORTED_BY_OTHERS = ("accelerate", "sentencepiece", "protobuf", "bitsandbytes")
"""Declared because transformers imports them for what an extra promises."""

EXPLAINED = {
    "mergekit": "LGPL-3.0, see below",
    "certifi": "MPL-2.0: its own files stay under it; it is a list of certificates",
    "tqdm": "MPL-2.0 in part: its own files stay under it",
}
"""Packages with a copyleft licence, and what it asks for here."""

# What metadata say in words → SPDX.
_SPDX = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "mit license": "MIT",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd license": "BSD",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "python software foundation license": "PSF-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
}
_COPYLEFT = re.compile(r"GPL|MPL|EUPL|SSPL|OSL|CDDL|EPL|CC-BY-(?:SA|NC)|PROPRIETARY", re.I)

_HEAD = """\
# Dependencies

Written by `tools/licences.py` from the packages' own metadata; versions are those CI ran
(`constraints.txt`), on Linux and with a CPU build of torch. CUDA builds bring NVIDIA's own
libraries along, under NVIDIA's licence.

## Direct

| package | version | licence | for | extra |
|---|---|---|---|---|
"""

_INDIRECT = """
## What these bring along

| package | version | licence | comes with |
|---|---|---|---|
"""

_TAIL = """
## Licences that ask for something

{explained}

### mergekit and the LGPL

surgekit is Apache-2.0. It calls mergekit ({mergekit}) through Python's import, unmodified, and
holds no line of it. For those who

- **use** surgekit, the LGPL asks for nothing.
- **pass surgekit on** (a package, an image, a product that installs both): pass mergekit's licence
  texts and notices on with it, say that it is used, and let people put their own version of
  mergekit in its place, which an ordinary Python environment does. Where you pass mergekit itself
  on, offer its source too. Your own code keeps its licence.
- **change mergekit** and pass it on: the changed mergekit is LGPL.
- **publish merged models or adapters**: these are not parts of mergekit, and the LGPL says nothing
  about them. The licences of the models that were merged do.

`surgekit.attach` and everything else about adapters imports no mergekit. This is how the project
reads the licence, not advice of a lawyer.

## Known vulnerabilities

`make audit` asks the Python Packaging Advisory Database about every pinned version. What it finds
is mended by raising the pin, or explained in `tools/audit.py`. It ends with status 3, never with 0,
where the database did not answer.
"""


@dataclass
class Row:
    """One package.

    Attributes:
        name: as its metadata spell it.
        version: installed.
        licence: SPDX where the metadata allow it; ``unknown`` where they say nothing.
        extras: of surgekit's that need it; empty for what everybody gets. Direct ones only.
        parents: packages that need it.
    """

    name: str
    version: str
    licence: str
    extras: set[str] = field(default_factory=set)
    parents: set[str] = field(default_factory=set)


def direct() -> dict[str, set[str]]:
    """Canonical name → extras that ask for it (empty: a dependency of all)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, set[str]] = {}
    for text in project["dependencies"]:
        found[canonicalize_name(Requirement(text).name)] = set()
    for extra, texts in project["optional-dependencies"].items():
        for text in texts:
            found.setdefault(canonicalize_name(Requirement(text).name), set()).add(extra)
    return found


def licence_of(package: Distribution) -> str:
    """A package's licence, from its metadata."""
    meta = package.metadata
    stated = meta.get("License-Expression") or meta.get("License") or ""
    if stated and "\n" not in stated and len(stated) < 200:
        return _SPDX.get(stated.strip().lower(), stated.strip())
    for classifier in meta.get_all("Classifier") or []:
        parts = [p.strip() for p in classifier.split("::")]
        if parts[0] == "License" and parts[-1] not in ("OSI Approved", "DFSG approved"):
            return _SPDX.get(parts[-1].lower(), parts[-1])
    return UNKNOWN


def is_copyleft(licence: str) -> bool:
    """True for licences that ask something of those who pass a work on, strong or weak."""
    return licence == UNKNOWN or bool(_COPYLEFT.search(licence))


def closure() -> tuple[dict[str, Row], dict[str, Row], set[str]]:
    """(direct, indirect, direct ones that are not installed here), rows by canonical name."""
    asked = direct()
    rows: dict[str, Row] = {}
    absent: set[str] = set()
    waiting: list[tuple[str, frozenset[str], str]] = [(n, frozenset(), "") for n in asked]
    seen: set[tuple[str, frozenset[str], str]] = set()
    while waiting:
        entry = waiting.pop()
        if entry in seen:
            continue
        seen.add(entry)
        name, extras, parent = entry
        try:
            package = distribution(name)
        except PackageNotFoundError:
            absent.add(name)
            continue
        version = package.version.split("+")[0]
        row = rows.setdefault(name, Row(package.metadata["Name"], version, licence_of(package)))
        if parent:
            row.parents.add(parent)
        row.extras = asked.get(name, set())
        for needed, wanted in _needs(package, extras):
            waiting.append((needed, wanted, row.name))
    first = {n: r for n, r in rows.items() if n in asked}
    others = {n: r for n, r in rows.items() if n not in asked}
    return first, others, absent & set(asked)


def _needs(package: Distribution, extras: Iterable[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in package.requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras)):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


def page(old: str = "") -> str:
    """The whole page; rows of direct dependencies that are not installed are taken from ``old``."""
    first, others, absent = closure()
    kept = {n: line for line in old.splitlines() if (n := _name_in(line)) in absent}
    lines = {
        n: f"| {r.name} | {r.version} | {r.licence} | {WHY.get(n, '')} | "
        f"{', '.join(sorted(r.extras))} |"
        for n, r in first.items()
    } | kept
    if missing := sorted(absent - kept.keys()):
        raise SystemExit(f"neither installed nor in the page: {', '.join(missing)}")
    # The required ones first, as in pyproject.toml.
    text = _HEAD + "\n".join(lines[n] for n in direct()) + "\n" + _INDIRECT
    for _, row in sorted(others.items()):
        parents = ", ".join(sorted(row.parents, key=str.lower))
        text += f"| {row.name} | {row.version} | {row.licence} | {parents} |\n"
    found = {**first, **others}
    explained = [
        f"- {found[n].name}: {EXPLAINED[n]}."
        for n in sorted(found)
        if n in EXPLAINED and is_copyleft(found[n].licence)
    ]
    return text + _TAIL.format(
        explained="\n".join(explained), mergekit=found["mergekit"].licence if found else ""
    )


def table(text: str) -> dict[str, tuple[str, str]]:
    """Canonical name → (version, licence) of each row in a page."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        name = _name_in(line)
        if name is not None:
            cells = [c.strip() for c in line.strip("|").split("|")]
            found[name] = cells[1], cells[2]
    return found


def _name_in(line: str) -> str | None:
    match = re.match(r"\| ([A-Za-z0-9][\w.-]*) \|", line)
    return None if match is None or match[1] == "package" else canonicalize_name(match[1])


def main() -> int:
    """Write the page, or hold it against what is installed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    new = page(old)
    found = {n: licence for n, (_, licence) in table(new).items()}
    unexplained = sorted(n for n, text in found.items() if is_copyleft(text) and n not in EXPLAINED)
    for name in unexplained:
        print(f"{name}: licence {found[name]}, and no word on it in EXPLAINED", file=sys.stderr)
    if check:
        # Versions move, and what is not installed here brings nothing along here.
        stale = {n: text for n, (_, text) in table(old).items()} != found
        if stale:
            print(f"{PAGE} is not what is installed; run tools/licences.py", file=sys.stderr)
        return int(stale or bool(unexplained))
    PAGE.write_text(new, encoding="utf-8")
    return int(bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())
