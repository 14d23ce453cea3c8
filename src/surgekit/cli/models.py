"""Verbs on models: merge, bias, calibrate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from rich.table import Table

from surgekit.adapters.files import check_room, load_adapter, save_adapter
from surgekit.bias import MEASURES, Bias, measure_bias
from surgekit.cli.display import TerminalReporter, print_json, stdout
from surgekit.errors import InputError
from surgekit.merging import merge as merge_models
from surgekit.models.anatomy import Head, find_head
from surgekit.models.loading import load_model, load_tokenizer
from surgekit.models.source import ModelSource, split_lora_folder
from surgekit.states.capture import capture
from surgekit.states.prompts import TextPart, TokenizedPrompts, read_prompts, tokenize_prompts
from surgekit.states.states import States
from surgekit.surgery.config import CalibrationConfig, SurgeryConfig
from surgekit.surgery.fit import calibrate as calibrate_module


@dataclass(frozen=True)
class Session:
    """What bias and calibrate have in common: a merged model and how it is run."""

    merged: str
    base: str | None
    format: str
    max_length: int
    batch_size: int
    limit: int | None
    device: str
    dtype: str
    body: str | None
    head: str | None
    trust_remote_code: bool
    quiet: bool

    def tokens(self, file: str) -> TokenizedPrompts:
        """A prompt file as the merged model sees it."""
        tokenizer = load_tokenizer(
            self.merged, base=self.base, trust_remote_code=self.trust_remote_code
        )
        prompts = read_prompts(file)[: self.limit]
        return tokenize_prompts(prompts, tokenizer, format=self.format, max_length=self.max_length)

    def states(
        self, source: str, wanted: dict[str, TokenizedPrompts], *, expert: bool
    ) -> tuple[dict[str, States], Head]:
        """States of one model on several token sets, and its head."""
        reporter = TerminalReporter(quiet=self.quiet)
        base = self.base if _is_bare_lora(source) else None
        model = load_model(
            {"lora": source} if base else source,
            base=base,
            dtype=self.dtype,
            device=None if self.device == "cpu" else self.device,
            trust_remote_code=self.trust_remote_code,
        )
        found: dict[str, States] = {}
        for name, tokens in wanted.items():
            reporter.note(f"states of {source} on {name}: {len(tokens.ids)} tokens")
            reporter.start(name, len(tokens.ids))
            try:
                found[name] = capture(
                    model,
                    tokens,
                    entropies=expert,
                    batch_size=self.batch_size,
                    dtype=model.dtype,
                    body=self.body,
                    head=self.head,
                    progress=reporter.advance,
                )
            finally:
                reporter.finish()
        return found, find_head(model, self.head)[1]


def named(values: list[str], option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a mapping; a single value without a name is called ``domain``."""
    pairs: dict[str, str] = {}
    for value in values:
        name, found, rest = value.partition("=")
        if not found and len(values) == 1:
            name, rest = "domain", value
        elif not found or not name or not rest:
            raise InputError(f"{option}: expected NAME=VALUE, found {value!r}")
        if name in pairs:
            raise InputError(f"{option}: {name!r} is given twice")
        pairs[name] = rest
    return pairs


def merge(
    config: Path,
    out: Path,
    *,
    seed: int,
    device: str,
    trust_remote_code: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Merge by a mergekit YAML and show the effective weights."""
    result = merge_models(
        config, out, seed=seed, device=device, trust_remote_code=trust_remote_code, quiet=quiet
    )
    if as_json:
        print_json(
            {
                "folder": str(result.folder),
                "effective_weights": result.effective_weights,
                "seed": result.seed,
                "mergekit": result.mergekit,
            }
        )
        return
    table = Table("model", "effective weight", title="merged", title_justify="left")
    for model, weight in result.effective_weights.items():
        table.add_row(model, str(weight))
    stdout().print(table)
    stdout().print(f"Merged model: {result.folder}", markup=False, soft_wrap=True)


def bias(
    session: Session,
    experts: dict[str, str],
    prompts: dict[str, str],
    adapters: dict[str, str],
    *,
    text: str,
    width: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show the drift by position of every domain, corrected too where an adapter is given."""
    _same_names(experts, prompts, "--prompts")
    for name in adapters:
        if name not in experts:
            raise InputError(f"--adapter {name}: no --expert of that name")
    modules = {name: load_adapter(folder)[0] for name, folder in adapters.items()}
    part = _text(text)
    tokens = {name: session.tokens(file) for name, file in prompts.items()}
    merged, _ = session.states(session.merged, tokens, expert=False)
    measured: dict[str, dict[str, Bias]] = {}
    for name, source in experts.items():
        expert = session.states(source, {name: tokens[name]}, expert=False)[0][name]
        rows = {"merged": measure_bias(merged[name], expert, text=part, domain=name)}
        if name in modules:
            rows["corrected"] = measure_bias(
                merged[name], expert, modules[name], text=part, domain=name
            )
        measured[name] = rows
    if plot is not None:
        from surgekit.report.figures import write_bias_plot

        write_bias_plot(measured, width, plot)
    if as_json:
        print_json(
            {
                name: {
                    label: {"mean": b.mean(), "by_position": b.by_position(width)}
                    for label, b in rows.items()
                }
                for name, rows in measured.items()
            }
        )
        return
    for name, rows in measured.items():
        stdout().print(_bias_table(name, rows, width))


def calibrate(
    session: Session,
    expert: str,
    prompts: str,
    out: Path,
    surgery: dict[str, Any],
    fitting: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Capture both models' states, fit one module and write it as an adapter."""
    ((name, source),) = named([expert], "--expert").items()
    ((label, file),) = named([prompts], "--prompts").items()
    if label not in ("domain", name):
        raise InputError(f"--prompts is for {label!r}, --expert for {name!r}")
    calibration = _calibration(fitting)
    try:
        # Whatever the width; what hinges on it is found when the states are there.
        module_name = SurgeryConfig(hidden_size=1 << 30, **surgery).module
        loss = calibration.loss_for(module_name)
    except ValueError as error:
        raise InputError(first_line(error)) from error
    check_room(out)
    tokens = {name: session.tokens(file)}
    merged, head = session.states(session.merged, tokens, expert=False)
    try:
        config = SurgeryConfig(hidden_size=merged[name].hidden_size, **surgery)
    except ValidationError as error:
        raise InputError(first_line(error)) from error
    wanted, _ = session.states(source, tokens, expert=True)
    module = calibrate_module(
        merged[name],
        wanted[name],
        config,
        calibration=calibration,
        head=head,
        domain=name,
        device="cpu" if session.device == "auto" else session.device,
    )
    method = module_name + (f"-{loss}" if loss else "") + f"@{calibration.text}"
    save_adapter(module, out, domain=name, method=method)
    facts = {
        "adapter": str(out),
        "domain": name,
        "method": method,
        "parameters": module.parameter_count(),
        "bytes": module.tensor_bytes(),
        "prompts": module.record["prompts"],
        "tokens": module.record["tokens"],
        "cut": tokens[name].cut,
        "first_loss": module.record.get("first_loss"),
        "last_loss": module.record.get("last_loss"),
    }
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False)
    for key, value in facts.items():
        if value is not None:
            table.add_row(key, str(value))
    stdout().print(table)


def _calibration(fitting: dict[str, Any]) -> CalibrationConfig:
    ridge = fitting["ridge"]
    if ridge not in ("loo", "gcv"):
        try:
            ridge = float(ridge)
        except ValueError as error:
            raise InputError(f"--ridge: expected loo, gcv or a number, found {ridge!r}") from error
    try:
        return CalibrationConfig.model_validate(fitting | {"ridge": ridge})
    except ValidationError as error:
        raise InputError(first_line(error)) from error


def first_line(error: ValueError) -> str:
    """What an error about an option's value says, its name first where it is known."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = f"--{str(first['loc'][0]).replace('_', '-')}: " if first["loc"] else ""
    return f"{where}{first['msg'].removeprefix('Value error, ')}"


def _is_bare_lora(source: str) -> bool:
    """A PEFT folder whose base the user names; without --base its own configuration says it."""
    parsed = ModelSource.parse(source)
    folder = Path(source)
    return (folder / "adapter_config.json").is_file() and (
        parsed.lora is not None or split_lora_folder(parsed).lora is not None
    )


def _same_names(experts: dict[str, str], prompts: dict[str, str], option: str) -> None:
    if set(experts) != set(prompts):
        raise InputError(
            f"--expert names {', '.join(experts)}, {option} names {', '.join(prompts)}; "
            "give one of each a domain"
        )


def _text(text: str) -> TextPart:
    if text not in get_args(TextPart):
        raise InputError(f"--text: expected prompt, response or both, found {text!r}")
    return text  # type: ignore[return-value]


def _bias_table(name: str, rows: dict[str, Bias], width: int) -> Table:
    bins = {label: b.by_position(width) for label, b in rows.items()}
    top = max(row["l1"] for part in bins.values() for row in part)
    table = Table(title=f"{name}: drift from the expert, by position", title_justify="left")
    table.add_column("positions")
    table.add_column("tokens", justify="right")
    for label in bins:
        prefix = "" if len(bins) == 1 else f"{label} "
        for measure in MEASURES:
            table.add_column(prefix + measure, justify="right")
        table.add_column("")
    for index, first in enumerate(bins["merged"]):
        cells = [f"{first['start']}-{first['stop'] - 1}", str(first["tokens"])]
        for part in bins.values():
            cells += [f"{part[index][m]:.4f}" for m in MEASURES]
            cells.append("█" * max(1, round(12 * part[index]["l1"] / top)) if top else "")
        table.add_row(*cells)
    table.add_section()
    cells = ["all", str(len(rows["merged"].positions))]
    for b in rows.values():
        cells += [f"{b.mean()[m]:.4f}" for m in MEASURES] + [""]
    table.add_row(*cells)
    return table
