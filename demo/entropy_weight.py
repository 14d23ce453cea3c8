"""Where the entropy weight of EWL1 lies, on the calibration prompts of a run.

python demo/entropy_weight.py runs/full
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from surgekit.states.states import load_states


def main() -> None:
    """Print a line for each domain."""
    parser = argparse.ArgumentParser(description="Where the entropy weight lies.")
    parser.add_argument("run", type=Path)
    for folder in sorted((parser.parse_args().run / "states").glob("*/calibration")):
        domain = folder.parent.name
        states = load_states(folder / f"{domain}.safetensors")
        assert states.entropies is not None
        weights, response = states.entropies.double(), states.mask("response")
        heavy = weights[response].sort(descending=True).values
        few = float((heavy.cumsum(0) < 0.9 * heavy.sum()).double().mean())
        print(
            f"{domain}: responses hold {100 * response.double().mean():.0f} % of all tokens and "
            f"{100 * weights[response].sum() / weights.sum():.0f} % of the weight; on responses "
            f"90 % of the weight lies on {100 * few:.0f} % of the tokens"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
