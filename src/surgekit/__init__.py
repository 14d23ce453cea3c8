"""surgekit: find out what a model merge broke, repair it, prove the repair.

    import surgekit

    model = surgekit.load_model("merged")
    with surgekit.attach(model, "run/adapters/math/linear@both"):
        model.generate(...)

Every step of ``surgekit run`` is a plain function here. Names are loaded when they are first
used, so importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from surgekit._version import __version__
from surgekit.errors import InputError, MismatchError, NotFiniteError, SurgekitError

_WHERE = {
    "load_model": "surgekit.models.loading",
    "load_tokenizer": "surgekit.models.loading",
    "merge": "surgekit.merging",
    "read_prompts": "surgekit.states.prompts",
    "tokenize_prompts": "surgekit.states.prompts",
    "capture": "surgekit.states.capture",
    "find_head": "surgekit.models.anatomy",
    "measure_bias": "surgekit.bias",
    "measure_fidelity": "surgekit.fidelity",
    "SurgeryConfig": "surgekit.surgery.config",
    "CalibrationConfig": "surgekit.surgery.config",
    "SurgeryModule": "surgekit.surgery.modules",
    "calibrate": "surgekit.surgery.fit",
    "attach": "surgekit.adapters.attach",
    "SurgeryHandle": "surgekit.adapters.attach",
    "save_adapter": "surgekit.adapters.files",
    "load_adapter": "surgekit.adapters.files",
}

__all__ = [
    "CalibrationConfig",
    "InputError",
    "MismatchError",
    "NotFiniteError",
    "SurgekitError",
    "SurgeryConfig",
    "SurgeryHandle",
    "SurgeryModule",
    "__version__",
    "attach",
    "calibrate",
    "capture",
    "find_head",
    "load_adapter",
    "load_model",
    "load_tokenizer",
    "measure_bias",
    "measure_fidelity",
    "merge",
    "read_prompts",
    "save_adapter",
    "tokenize_prompts",
]

if TYPE_CHECKING:
    from surgekit.adapters.attach import SurgeryHandle, attach
    from surgekit.adapters.files import load_adapter, save_adapter
    from surgekit.bias import measure_bias
    from surgekit.fidelity import measure_fidelity
    from surgekit.merging import merge
    from surgekit.models.anatomy import find_head
    from surgekit.models.loading import load_model, load_tokenizer
    from surgekit.states.capture import capture
    from surgekit.states.prompts import read_prompts, tokenize_prompts
    from surgekit.surgery.config import CalibrationConfig, SurgeryConfig
    from surgekit.surgery.fit import calibrate
    from surgekit.surgery.modules import SurgeryModule


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'surgekit' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
