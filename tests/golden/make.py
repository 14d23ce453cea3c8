"""Writes ``adapter-v1``: one adapter of every form, and what it must do to fixed states.

Run once, for format 1, as ``PYTHONPATH=src:. python tests/golden/make.py``. The folder is never
made anew: adapters of that format must load for ever. All numbers are small multiples of powers
of two, so every sum and product is exact in float32 and the outcome is the same on any machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.oracle import correct

from surgekit.adapters.files import save_adapter
from surgekit.surgery.config import SurgeryConfig
from surgekit.surgery.modules import SurgeryModule

FOLDER = Path(__file__).parent / "adapter-v1"
HIDDEN, RANK, TABLE = 4, 2, 3
FORMS: dict[str, dict[str, Any]] = {
    "standard": {"module": "standard", "rank": RANK},
    "darts": {"module": "darts", "rank": RANK, "max_positions": TABLE},
    "add": {"module": "add", "rank": RANK, "max_positions": TABLE},
    "parallel": {"module": "parallel", "rank": RANK, "max_positions": TABLE},
    "mean-shift": {"module": "mean-shift"},
    "table": {"module": "table", "max_positions": TABLE},
    "linear": {"module": "linear"},
    "linear-cut": {"module": "linear", "rank": RANK},
}


def main() -> None:
    """Write the adapters and ``expected.json``."""
    rng = np.random.default_rng(1)
    hidden = rng.integers(-16, 17, (5, HIDDEN)) / 8
    positions = np.array([0, 2, 1, 3, -1])  # the last two lie outside the table
    corrected = {}
    for number, (form, settings) in enumerate(FORMS.items()):
        module = SurgeryModule(SurgeryConfig(hidden_size=HIDDEN, **settings))
        values = {n: rng.integers(-8, 9, p.shape) / 16 for n, p in module.named_parameters()}
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(torch.from_numpy(values[name]))
        module.record = {"merged_fingerprint": f"sf1-{'0' * 64}", "tokens": 5, "losses": [1.5]}
        stored = torch.float32 if form == "linear" else torch.bfloat16
        save_adapter(module.to(stored), FOLDER / form, domain="math", method=f"m{number}")
        if "left" in values:
            values["weight"] = values.pop("left") @ values.pop("right")
        corrected[form] = correct(settings["module"], values, hidden, positions).tolist()
    outcome = {"hidden": hidden.tolist(), "positions": positions.tolist(), "corrected": corrected}
    (FOLDER / "expected.json").write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
