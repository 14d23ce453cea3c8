"""Recipes for the tests of recipes."""

from __future__ import annotations

from pathlib import Path

from surgekit.recipe import Recipe, parse_recipe

SMALL = """\
base: ./base
domains:
  math:
    expert: ./math
    calibration: cal.jsonl
    test: test.jsonl
merge: {merge_method: linear}
"""

FULL = """\
base: {model: org/base, revision: v1}
domains:
  math:
    expert: {lora: experts/math}
    format: plain
    calibration: {file: data/cal.jsonl, items: 50}
    validation: {file: data/val.jsonl}
    test: {file: /abs/test.jsonl, items: 7}
    tasks: [gsm8k, demo]
  code-2:
    expert: {gguf: code.gguf}
    format: "User: {{ prompt }}"
    calibration: data/c.jsonl
    test: data/t.jsonl
merge:
  merge_method: task_arithmetic
  parameters: {lambda: 0.5}
surgery:
  - {module: standard, loss: l1, text: [prompt, response], rank: [4, 8]}
  - {module: darts, iterations: 10, learning_rate: 0.01, batch_size: 4, max_positions: 64}
  - {module: linear, text: both, ridge: gcv, weights: entropy, name: best}
  - {module: darts, entropy_mean: sequence, name: second}
seeds: [3, 1]
plain_text: data/plain.jsonl
max_length: 300
batch_size: 2
dtype: float32
device: auto
position_bin: 16
body: model
head: lm_head
"""


def parsed(text: str, folder: str = "/r") -> Recipe:
    return parse_recipe(text, Path(folder), "R.yaml")


def edited(old: str, new: str) -> str:
    assert SMALL.count(old) == 1
    return SMALL.replace(old, new)


def added(text: str) -> str:
    return f"{SMALL}{text}\n"
