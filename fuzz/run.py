"""Fuzz one reader, guided by coverage: ``python fuzz/run.py NAME [SECONDS] [libFuzzer options]``.

Names: adapter, states, recipe, prompts, merge, gguf, checkpoint, lora. What is checked of every
input is in ``tests/invariants.py``. A failing input is written to ``fuzz/found/NAME``, with its
traceback on the screen; once mended, move it to ``fuzz/regressions/NAME``, and the test suite
replays it.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import atheris as _atheris

atheris: Any = _atheris

HERE = Path(__file__).resolve().parent
NAMES = ("adapter", "states", "recipe", "prompts", "merge", "gguf", "checkpoint", "lora")
INPUT_SECONDS = 10
LONGEST = 1 << 14


def main() -> None:
    """Read the command line and fuzz; never returns."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        sys.exit(f"usage: python fuzz/run.py {'|'.join(NAMES)} [SECONDS] [libFuzzer options]")
    name, rest = sys.argv[1], sys.argv[2:]
    seconds = rest.pop(0) if rest and rest[0].isdigit() else "10"
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "src")]
    with atheris.instrument_imports(include=["yaml"]):
        importlib.import_module("yaml")
    # Libraries that are not instrumented come next: their code would drown surgekit's.
    importlib.import_module("mergekit.merge_methods")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with atheris.instrument_imports(include=["surgekit"]):
        from tests.invariants import CHECKS

    check = CHECKS[name]
    check(b"")  # what is made once is made now
    grown, found = (HERE / folder / name for folder in ("grown", "found"))
    for folder in (grown, found):
        folder.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_SECONDS}",
        f"-max_len={LONGEST}",
        "-rss_limit_mb=4096",
        f"-artifact_prefix={found}/",
        f"-dict={HERE / 'dictionaries' / name}.txt",
    ]
    folders = [grown, HERE / "corpus" / name, HERE / "regressions" / name]
    alone = any(Path(argument).is_file() for argument in rest)  # only these inputs, once each
    inputs = [] if alone else [str(f) for f in folders if f.is_dir()]
    atheris.Setup([sys.argv[0], *options, *rest, *inputs], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
