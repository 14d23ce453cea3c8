"""The verb inspect: what a path of surgekit's holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from surgekit.adapters.files import is_adapter, load_adapter
from surgekit.cli.display import print_json, results_table, stdout
from surgekit.errors import InputError
from surgekit.pipeline.results import RESULTS_FILE, read_results
from surgekit.pipeline.run_directory import check_run_format, finished_stages
from surgekit.states.states import load_states


def inspect(path: Path, *, as_json: bool) -> None:
    """Show an adapter, a run directory or a states file."""
    if not path.exists():
        raise InputError(f"{path}: expected an adapter, a run directory or a states file; nothing")
    if path.is_dir() and is_adapter(path):
        _show_facts(_adapter_facts(path), as_json=as_json)
    elif path.is_dir() and ((path / RESULTS_FILE).is_file() or (path / "stages").is_dir()):
        _show_run(path, as_json=as_json)
    elif path.is_file() and path.suffix == ".safetensors":
        _show_facts(_states_facts(path), as_json=as_json)
    else:
        raise InputError(f"{path}: neither an adapter, nor a run directory, nor a states file")


def _adapter_facts(path: Path) -> dict[str, Any]:
    module, info = load_adapter(path)
    record = dict(info.record)
    counts = record.pop("tokens_per_position", [])
    return {
        "kind": "adapter",
        "format": info.format,
        "written by": f"surgekit {info.surgekit}",
        "domain": info.domain,
        "method": info.method,
        **info.surgery.model_dump(exclude_none=True),
        "parameters": module.parameter_count(),
        "bytes": module.tensor_bytes(),
        "largest weight": max(float(p.double().abs().max()) for p in module.parameters()),
        "checksums": "verified" if info.tensors_sha256 and info.settings_sha256 else "missing",
        **record,
        "positions calibrated": len(counts),
        "tokens at the first and last of them": [counts[0], counts[-1]] if counts else None,
    }


def _states_facts(path: Path) -> dict[str, Any]:
    states = load_states(path)
    lengths = states.tokens.lengths()
    return {
        "kind": "states",
        "model": states.model,
        "prompts": len(states.tokens),
        "tokens": len(states.hidden),
        "hidden_size": states.hidden_size,
        "dtype": str(states.hidden.dtype).removeprefix("torch."),
        "longest": max(lengths, default=0),
        "cut": states.tokens.cut,
        "response tokens": int(states.mask("response").sum()),
        "batch_size": states.batch_size,
        "mean entropy": None
        if states.entropies is None
        else round(float(states.entropies.mean()), 4),
    }


def _show_facts(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False)
    for key, value in facts.items():
        if value not in (None, "", [], {}):
            table.add_row(key, str(value))
    stdout().print(table)


def _show_run(path: Path, *, as_json: bool) -> None:
    check_run_format(path)
    stages = finished_stages(path)
    results = read_results(path)
    if as_json:
        print_json({"kind": "run", "finished stages": stages, "results": results})
        return
    try:
        tables = [] if results is None else results_table(results)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path / 'results.json'}: not the results of a run") from error
    console = stdout()
    console.print(f"run directory, {len(stages)} finished stages", markup=False)
    if results is None:
        console.print("not finished yet: no results.json; run the recipe again to go on")
    for table in tables:
        console.print(table)
