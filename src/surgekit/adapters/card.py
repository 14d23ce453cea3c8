"""The card of an adapter: what it is, what it belongs to, how to use it."""

from __future__ import annotations

from typing import Any

from surgekit._version import __version__
from surgekit.surgery.modules import SurgeryModule

_CARD = """\
---
library_name: surgekit
tags: [surgekit, representation-surgery, model-merging]
---
# Surgery adapter{of_domain}

Corrects the last hidden states of one merged language model toward those of its {domain} expert,
between the final norm and the head. It belongs to that merged model alone (fingerprint
`{merged}`).

```python
import surgekit

model = surgekit.load_model("PATH/TO/MERGED")
with surgekit.attach(model, "PATH/TO/THIS/FOLDER"):
    model.generate(...)
```

| | |
|---|---|
{rows}

Made with surgekit {version}. The method follows DARTS (Sharma et al., EMNLP 2026,
https://aclanthology.org/2026.emnlp-main.2510/) and Representation Surgery (Yang et al., 2024).
"""


def adapter_card(module: SurgeryModule, domain: str, method: str, figures: dict[str, Any]) -> str:
    """The card as Markdown; ``figures`` are further rows of its table."""
    record, config = module.record, module.config
    calibration = record.get("calibration") or {}
    facts: dict[str, Any] = {
        "method": method or config.module,
        "module": config.module,
        "rank": config.rank,
        "positions in the table": config.max_positions,
        "hidden size": config.hidden_size,
        "parameters": f"{module.parameter_count():,}",
        "loss": record.get("loss"),
        "text calibrated on": calibration.get("text"),
        "prompts": record.get("prompts"),
        "tokens": record.get("tokens"),
        "seed": calibration.get("seed"),
        "expert": record.get("expert_fingerprint"),
    }
    facts |= figures
    rows = "\n".join(
        f"| {_cell(k)} | {_cell(v)} |" for k, v in facts.items() if v not in (None, "")
    )
    called = " ".join(domain.split())
    return _CARD.format(
        of_domain=f": {called}" if called else "",
        domain=called or "domain",
        merged=record.get("merged_fingerprint") or "not recorded",
        rows=rows,
        version=__version__,
    )


def _cell(value: Any) -> str:
    """A value as it may stand in a table: one line, its bars escaped."""
    return " ".join(str(value).split()).replace("|", "\\|")
