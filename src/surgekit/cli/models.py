"""Verbs on models: merge, bias, calibrate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from surgekit.adapters.files import check_room, load_adapter, save_adapter
from surgekit.bias import MEASURES, Bias, measure_bias
from surgekit.cli.display import TerminalReporter, print_json, stdout, tell_findings
from surgekit.cli.options import UNNAMED, named, option_error, text_part
from surgekit.errors import InputError, MismatchError
from surgekit.files import expect_writable, user_path
from surgekit.merging import merge as merge_models
from surgekit.models.anatomy import Head, find_anatomy
from surgekit.models.devices import check_device
from surgekit.models.loading import has_tokenizer, load_model, load_tokenizer, parse_dtype
from surgekit.models.source import ModelSource, is_lora_folder
from surgekit.parsing import nearest
from surgekit.pipeline.preflight.models import check_apart
from surgekit.states.capture import capture
from surgekit.states.prompts import TokenizedPrompts, read_prompts, tokenize_prompts
from surgekit.states.rendering import check_format, check_same_tokenizer
from surgekit.states.states import States
from surgekit.surgery.config import CalibrationConfig, SurgeryConfig, ignored
from surgekit.surgery.fit import calibrate as calibrate_module
from surgekit.surgery.fit import grown_loss
from surgekit.surgery.modules import SurgeryModule

_OPTIONS = {"batch_size": "prompts-per-step"}
"""Options of calibrate whose names are not their setting's."""


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

    def tokens(self, experts: dict[str, str], files: dict[str, str]) -> dict[str, TokenizedPrompts]:
        """Prompt files as the merged model sees them; each expert must see the same."""
        check_device(self.device)
        parse_dtype(self.dtype)
        try:
            check_format(self.format)
        except InputError as error:
            raise InputError(f"--format: {error}") from error
        prompts = {name: read_prompts(file)[: self.limit] for name, file in files.items()}
        self._check(experts)
        tokenizer = self._tokenizer(self.merged)
        found: dict[str, TokenizedPrompts] = {}
        for name, file in files.items():
            try:
                found[name] = tokenize_prompts(
                    prompts[name], tokenizer, format=self.format, max_length=self.max_length
                )
            except InputError as error:
                raise type(error)(f"{file}: {error}") from error
            if has_tokenizer(**self._placed(experts[name])):
                check_same_tokenizer(
                    prompts[name],
                    tokenizer,
                    self._tokenizer(experts[name]),
                    format=self.format,
                    whose=experts[name],
                )
            if found[name].cut:
                TerminalReporter(quiet=self.quiet).note(
                    f"{file}: {found[name].cut} sequences were cut at max_length"
                )
        return found

    def _check(self, experts: dict[str, str]) -> None:
        """Refuse models that cannot be compared, before any of them is loaded."""
        reporter = TerminalReporter(quiet=self.quiet)
        named = {f"--expert {name}": self._source(model) for name, model in experts.items()}
        tell_findings(check_apart(self._source(self.merged), named), reporter, "warning")

    def _source(self, source: str) -> ModelSource:
        placed = self._placed(source)
        parsed = ModelSource.parse(placed["source"])
        return parsed if placed["base"] is None else parsed.over(ModelSource.parse(placed["base"]))

    def _tokenizer(self, source: str) -> PreTrainedTokenizerBase:
        return load_tokenizer(**self._placed(source), trust_remote_code=self.trust_remote_code)

    def _placed(self, source: str) -> dict[str, Any]:
        """A source, and the base of the user's where it is a LoRA alone."""
        base = self.base if _is_bare_lora(source) else None
        return {"source": {"lora": source} if base else source, "base": base}

    def states(
        self, source: str, wanted: dict[str, TokenizedPrompts], *, expert: bool
    ) -> tuple[dict[str, States], Head]:
        """States of one model on several token sets, and its head."""
        reporter = TerminalReporter(quiet=self.quiet)
        model = load_model(
            **self._placed(source),
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
        return found, find_anatomy(model, body=self.body, head=self.head)[1]


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
        config,
        out,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
        warn=not quiet,
    )
    if as_json:
        print_json(
            {
                "folder": str(result.folder),
                "effective_weights": result.effective_weights,
                "seed": result.seed,
                "mergekit": result.mergekit,
                "findings": [f.as_dict() for f in result.findings],
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
    modules = {}
    for name, folder in adapters.items():
        modules[name], info = load_adapter(folder)
        if info.domain != name and UNNAMED not in (info.domain, name) and info.domain:
            TerminalReporter(quiet=session.quiet).note(
                f"adapter {folder} was calibrated for the domain {info.domain!r}, not {name!r}"
            )
    part = text_part(text)
    if plot is not None:
        if plot.suffix not in (".html", ".htm"):
            raise InputError(f"--plot: expected a file that ends in .html, found {str(plot)!r}")
        if plot.is_dir():
            raise InputError(f"--plot: expected a file, found a folder: {plot}")
        expect_writable(plot)
    tokens = session.tokens(experts, prompts)
    merged, _ = session.states(session.merged, tokens, expert=False)
    for name, module in modules.items():
        _expect_same_model(module, merged[name], adapters[name])
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
    if label not in (UNNAMED, name):
        raise InputError(f"--prompts is for {label!r}, --expert for {name!r}")
    calibration = _calibration(fitting)
    try:
        # Whatever the width; what hinges on it is found when the states are there.
        module_name = SurgeryConfig(hidden_size=1 << 30, **surgery).module
        loss = calibration.loss_for(module_name)
        for key in calibration.unread_by(module_name):
            option = f"--{_OPTIONS.get(key, key).replace('_', '-')}"
            raise InputError(ignored(option, module_name, loss))
    except ValueError as error:
        raise option_error(error, surgery) from error
    check_room(out)
    tokens = session.tokens({name: source}, {name: file})
    merged, head = session.states(session.merged, tokens, expert=False)
    try:
        config = SurgeryConfig(hidden_size=merged[name].hidden_size, **surgery)
    except ValidationError as error:
        raise option_error(error, surgery) from error
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
    grown = grown_loss(module.record)
    if grown is not None:
        TerminalReporter(quiet=False).note(f"warning: {out}: {grown}")
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
            hint = nearest(ridge, ("loo", "gcv"))
            raise InputError(
                f"--ridge: expected loo, gcv or a number, found {ridge!r}{hint}"
            ) from error
    given = fitting | {"ridge": ridge}
    try:
        return CalibrationConfig.model_validate(given)
    except ValidationError as error:
        called = {key: f"--{option}" for key, option in _OPTIONS.items()}
        raise option_error(error, given, called) from error


def _is_bare_lora(source: str) -> bool:
    """A PEFT folder, which lies on --base where that is given, else on what it names itself."""
    parsed = ModelSource.parse(source)
    return parsed.model is not None and is_lora_folder(user_path(parsed.model))


def _expect_same_model(module: SurgeryModule, merged: States, folder: str) -> None:
    """An adapter says something about the merged model it was made for, and about no other."""
    wanted = module.record.get("merged_fingerprint")
    if wanted and wanted != merged.model:
        raise MismatchError(
            f"adapter {folder} was made for the model {str(wanted)[:16]}…, --merged is "
            f"{merged.model[:16]}…; give the merged model it belongs to, or calibrate anew"
        )


def _same_names(experts: dict[str, str], prompts: dict[str, str], option: str) -> None:
    if set(experts) != set(prompts):
        raise InputError(
            f"--expert names {', '.join(experts)}, {option} names {', '.join(prompts)}; "
            "give one of each a domain"
        )


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
