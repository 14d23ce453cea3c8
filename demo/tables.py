"""The figures of a run as Markdown tables, the ones that demo/README.md shows.

python demo/tables.py runs/full
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHOWN_BY_ENTROPY = ("standard-l1@both", "standard-ewl1@both", "darts-ewl1@both", "linear@both")


def main() -> None:
    """Print all tables of a run directory."""
    parser = argparse.ArgumentParser(description="Figures of a run as Markdown.")
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    for domain, entry in results["domains"].items():
        print("\n".join(methods_table(domain, entry, results)), end="\n\n")
    print("\n".join(entropy_table(results)), end="\n\n")
    print("\n".join(position_table(results)), end="\n\n")
    print("\n".join(cross_table(results)), end="\n\n")
    if (run / "accuracy.json").is_file():
        accuracy = json.loads((run / "accuracy.json").read_text(encoding="utf-8"))
        print("\n".join(accuracy_table(accuracy)), end="\n\n")
    print("\n".join(cost_table(results)))


def methods_table(domain: str, entry: dict[str, Any], results: dict[str, Any]) -> Iterator[str]:
    """Every method of a domain: mean ± standard deviation over seeds."""
    metrics, bias = entry["metrics"], entry["bias"]
    items = entry["items"]["test"]
    yield f"**{domain}** ({items} test prompts, recommended: {entry['recommended']})"
    yield ""
    yield "| | loss | KL to expert | agreement | KL gap closed | 95 % interval | L1 drift |"
    yield "|---|---|---|---|---|---|---|"
    for row in ("base", "expert", "merged"):
        drift = f"{bias['l1']['merged']:.3f}" if row == "merged" else ""
        figures = " | ".join(f"{metrics[m][row]:.4f}" for m in ("loss", "kl", "agreement"))
        yield f"| {row} | {figures} | | | {drift} |"
    for method in results["methods"]:
        figures = " | ".join(
            _spread(metrics[m]["methods"][method], 4) for m in ("loss", "kl", "agreement")
        )
        closed = metrics["recovered"]["kl"][method]
        low, high = (100 * x for x in closed["interval"])
        worse = " ✗" if entry["validation"]["methods"][method]["worse"] else ""
        name = f"**{method}**" if method == entry["recommended"] else method
        yield (
            f"| {name}{worse} | {figures} | {_spread(closed, 1, 100)} % | {low:.1f} … {high:.1f} % "
            f"| {bias['l1']['methods'][method]['mean']:.3f} |"
        )
    noise = f"{bias['l1']['noise']:.3f}"
    yield ""
    yield f"Noise floor of the L1 drift (the expert against itself at another batch size): {noise}."


def entropy_table(results: dict[str, Any]) -> Iterator[str]:
    """KL to the expert in bins of the expert's entropy."""
    methods = [m for m in SHOWN_BY_ENTROPY if m in results["methods"]]
    yield "| domain | expert's entropy (nats) | tokens | merged | " + " | ".join(methods) + " |"
    yield "|---|---|---|---|" + "---|" * len(methods)
    for domain, entry in results["domains"].items():
        for row in entry["metrics"]["kl"]["by_entropy"]:
            span = f"{row['from']} – {row['to']}" if row["to"] is not None else f"≥ {row['from']}"
            figures = " | ".join(f"{row['methods'][m]:.4f}" for m in methods)
            yield f"| {domain} | {span} | {row['tokens']} | {row['merged']:.4f} | {figures} |"


def position_table(results: dict[str, Any]) -> Iterator[str]:
    """L1 drift of the merged model by position."""
    bins = sorted({r["start"] for e in _bins(results).values() for r in e})
    yield "| domain | " + " | ".join(f"from {start}" for start in bins) + " |"
    yield "|---|" + "---|" * len(bins)
    for domain, rows in _bins(results).items():
        found = {r["start"]: f"{r['l1']:.3f} ({r['tokens']})" for r in rows}
        yield f"| {domain} | " + " | ".join(found.get(start, "") for start in bins) + " |"


def cross_table(results: dict[str, Any]) -> Iterator[str]:
    """What each domain's best adapter does to each text: loss, change against no correction."""
    texts = [*results["domains"], "plain"]
    yield "| adapter of | method | " + " | ".join(f"{t} text" for t in texts) + " |"
    yield "|---|---|" + "---|" * len(texts)
    for domain, row in results["cross_domain"].items():
        cells = [
            f"{row[t]['loss']['corrected']:.3f} "
            f"({row[t]['loss']['corrected'] - row[t]['loss']['uncorrected']:+.3f})"
            for t in texts
            if t in row
        ]
        yield f"| {domain} | {row['method']} | " + " | ".join(cells) + " |"


def accuracy_table(accuracy: dict[str, Any]) -> Iterator[str]:
    """Share of problems solved, greedy."""
    domains = accuracy["domains"]
    yield "| | " + " | ".join(f"{d} ({e['items']})" for d, e in domains.items()) + " |"
    yield "|---|" + "---|" * len(domains)
    for name in next(iter(domains.values()))["models"]:
        cells = []
        for entry in domains.values():
            row = entry["models"][name]
            seen, unseen = (100 * row[k] for k in ("seen_templates", "unseen_templates"))
            cells.append(f"{100 * row['accuracy']:.1f} % ({seen:.0f} / {unseen:.0f})")
        yield f"| {name} | " + " | ".join(cells) + " |"


def cost_table(results: dict[str, Any]) -> Iterator[str]:
    """Parameters and bytes of each form of module."""
    yield "| method | parameters | bytes |"
    yield "|---|---|---|"
    for name, method in results["methods"].items():
        if name.endswith("@both"):
            yield f"| {name} | {method['parameters']:,} | {method['bytes']:,} |"


def _bins(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {d: e["bias"]["by_position"]["merged"] for d, e in results["domains"].items()}


def _spread(value: dict[str, Any], digits: int, scale: float = 1) -> str:
    mean = f"{scale * value['mean']:.{digits}f}"
    return mean if value["std"] is None else f"{mean} ± {scale * value['std']:.{digits}f}"


if __name__ == "__main__":
    main()
