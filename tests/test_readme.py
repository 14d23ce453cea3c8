"""The README's Python example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .tiny import checkpoint, jsonl, llama, prompts, shifted

README = Path(__file__).resolve().parents[1] / "README.md"


def test_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    merged = llama(0)
    checkpoint(tmp_path / "merged", merged)
    checkpoint(tmp_path / "experts" / "math", shifted(merged, 1))
    jsonl(tmp_path / "data" / "math" / "calibration.jsonl", prompts(6))
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})  # the README is ours
    assert "'l1'" in capsys.readouterr().out
    assert (tmp_path / "adapters" / "math" / "surgery.safetensors").is_file()
