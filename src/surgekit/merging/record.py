"""What a merged checkpoint says of itself: its configuration and its card.

Both are published with the model, so they name models as the user wrote them and never by where
they lie on this machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml

from surgekit._version import __version__
from surgekit.files import write_text
from surgekit.merging.config import renamed

CONFIG_FILE = "mergekit_config.yml"


def write_record(
    folder: Path,
    config: Mapping[str, Any],
    names: Mapping[str, str],
    effective_weights: Mapping[str, Any],
    *,
    seed: int | None,
    mergekit: str,
) -> None:
    """Write ``mergekit_config.yml`` and ``README.md`` into a merged checkpoint.

    Args:
        folder: the checkpoint.
        config: as run, with a folder for each model.
        names: folder → what the user calls that model.
        effective_weights: by those names.
        seed: of random numbers; None where none were drawn.
        mergekit: its version.
    """
    shown = public_names(names)
    text = yaml.safe_dump(renamed(config, shown), sort_keys=False, allow_unicode=True)
    write_text(folder / CONFIG_FILE, text)
    called = {name: shown[place] for place, name in names.items()}
    rows = [
        f"| {called.get(name, name)} | {_shown(weight)} |"
        for name, weight in effective_weights.items()
    ]
    drawn_with = "" if seed is None else f", seed {seed}"
    card = [
        "---",
        "library_name: transformers",
        "tags: [mergekit, merge, surgekit]",
        "---",
        "# A merged model",
        "",
        f"Merged by `{config['merge_method']}` with "
        f"[mergekit](https://github.com/arcee-ai/mergekit) {mergekit} through surgekit "
        f"{__version__}{drawn_with}. The configuration is in `{CONFIG_FILE}`; models in it that "
        "lay on a disk are named as they were called there.",
        "",
        "| model | effective weight |",
        "|---|---|",
        *rows,
    ]
    write_text(folder / "README.md", "\n".join(card) + "\n")


def public_names(names: Mapping[str, str]) -> dict[str, str]:
    """Folder → name that may be published: an absolute path becomes its last part.

    Where two would then be called the same, as many parts stay as tell them apart.
    """
    shown = {place: name for place, name in names.items() if not _is_place(name)}
    places = [place for place, name in names.items() if _is_place(name)]
    parts = {place: PurePath(names[place]).parts for place in places}
    length = dict.fromkeys(places, 1)
    while True:
        short = {p: "/".join(parts[p][-length[p] :]).lstrip("/") for p in places}
        count = Counter([*short.values(), *shown.values()])
        longer = [p for p in places if count[short[p]] > 1 and length[p] < len(parts[p])]
        if not longer:
            return shown | short
        for place in longer:
            length[place] += 1


def _is_place(name: str) -> bool:
    return PurePath(name).is_absolute() or name.startswith("~")


def _shown(weight: Any) -> str:
    """A model's effective weight in words, for the card."""
    if isinstance(weight, (int, float)):
        return f"{weight:.6g}"
    if not isinstance(weight, dict):
        return str(weight)
    if set(weight) == {"min", "max"}:
        return f"{weight['min']:.6g} to {weight['max']:.6g}"
    return ", ".join(
        value if key == "note" else f"{key} {_shown(value)}" for key, value in weight.items()
    )
