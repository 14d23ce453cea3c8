"""Makes the demonstration's package importable in its tests."""

from __future__ import annotations

import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "demo"
if str(DEMO) not in sys.path:
    sys.path.insert(0, str(DEMO))
