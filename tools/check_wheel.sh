#!/usr/bin/env bash
# Install a wheel, with each extra, into an environment of its own and use it far from the checkout.
#   tools/check_wheel.sh WHEEL WORKDIR
set -euo pipefail
wheel=$(realpath "$1") work=$2
constraints=$(realpath "$(dirname "$0")/../constraints.txt")
python3 -m venv "$work/wheel"
python=$work/wheel/bin/python
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install --upgrade "pip>=25.1"
pip install --constraint "$constraints" torch==2.13.0
mkdir -p "$work/elsewhere"
cd "$work/elsewhere"
for extra in "" "[lora]" "[gguf]" "[plot]" "[quantized]"; do
  pip install --constraint "$constraints" "$wheel$extra"
  "$work/wheel/bin/surgekit" --version
done
"$work/wheel/bin/surgekit" run --help > /dev/null
"$python" - <<'PY'
import pathlib
import torch
import surgekit

assert "site-packages" in surgekit.__file__, surgekit.__file__
assert (pathlib.Path(surgekit.__file__).parent / "py.typed").is_file()
from surgekit.pipeline.preflight.benchmarks import load_sketches

assert len(load_sketches().whole) > 3000
module = surgekit.SurgeryModule(surgekit.SurgeryConfig(module="darts", hidden_size=8, rank=2))
surgekit.save_adapter(module, "adapter")
assert torch.equal(surgekit.load_adapter("adapter")[0].down, module.down)
for name in surgekit.__all__:
    getattr(surgekit, name)
PY
"$work/wheel/bin/surgekit" inspect adapter > /dev/null
