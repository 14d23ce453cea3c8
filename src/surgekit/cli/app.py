"""The verbs: what they take. What they do is imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surgekit._version import __version__

MAX_SEED = 2**32 - 1  # as in surgery.config, which is not to be imported before a verb runs

app = typer.Typer(
    name="surgekit",
    help="mergekit merges; surgekit finds out what the merge broke, repairs it and proves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit status: 0 done, 1 failed, 2 wrong input, 128 + the signal where one ended it: "
    "130 interrupted, 143 terminated, 129 hung up. "
    "--traceback with any verb shows where an error came from.",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:N or auto.")]
Dtype = Annotated[
    str, typer.Option("--dtype", help="bfloat16, float16, float32 or auto (the checkpoint's).")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Prompts a forward pass.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with models.")
]
MaxLength = Annotated[int, typer.Option("--max-length", min=2, help="Cut sequences there.")]
Format = Annotated[
    str, typer.Option("--format", help="chat, plain, or a jinja template with {{ prompt }}.")
]
Merged = Annotated[str, typer.Option("--merged", help="The merged model: folder or hub id.")]
Base = Annotated[
    str | None, typer.Option("--base", help="What a LoRA expert lies on, where it does not say.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Use the first N prompts.")]
Body = Annotated[str | None, typer.Option("--body", help="Name of the decoder body, if not found.")]
Head = Annotated[str | None, typer.Option("--head", help="Name of the head, if not found.")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"surgekit {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def init(
    mergekit_yaml: Annotated[Path, typer.Argument(help="A mergekit configuration.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write.")] = None,
) -> None:
    """Write a recipe to fill in, from a mergekit YAML (on stdout, or to --out)."""
    from surgekit.cli import recipes

    recipes.init(mergekit_yaml, out)


@app.command()
def check(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run directory  [default: runs/RECIPE]")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Load the models too, and look at what they compute.")
    ] = False,
    trust_remote_code: Trust = False,
    json: Json = False,
) -> None:
    """Find what can be wrong before any work: files, shapes, duplicates, disk, memory, time.

    What it finds is its outcome and goes to stdout, errors among it; the exit status is 2 where a
    run would be refused, else 0. Only a recipe that cannot be read at all is reported on stderr;
    with --json that too is a finding of the one document on stdout.
    """
    from surgekit.cli import recipes

    raise typer.Exit(
        recipes.check(recipe, out, deep=deep, trust_remote_code=trust_remote_code, as_json=json)
    )


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run directory  [default: runs/RECIPE]")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="Seeds instead of the recipe's; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Instead of the recipe's.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Instead of the recipe's.")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Instead of the recipe's.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Validate and test on the first N prompts only."),
    ] = None,
    trust_remote_code: Trust = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run all stages of a recipe; finished ones are not run again."""
    from surgekit.cli import recipes

    changes = {"seeds": seed or None, "device": device, "dtype": dtype, "batch_size": batch_size}
    recipes.run(
        recipe,
        out,
        {k: v for k, v in changes.items() if v is not None},
        limit=limit,
        trust_remote_code=trust_remote_code,
        as_json=json,
        quiet=quiet,
    )


@app.command()
def merge(
    config: Annotated[Path, typer.Argument(help="A mergekit configuration.")],
    out: Annotated[Path, typer.Argument(help="Folder for the merged model.")],
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=MAX_SEED, help="Of randomised methods.")
    ] = 0,
    device: Device = "cpu",
    trust_remote_code: Trust = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge with mergekit, deterministically and with all files a model needs."""
    from surgekit.cli import models

    models.merge(
        config,
        out,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        as_json=json,
        quiet=quiet,
    )


@app.command()
def bias(
    merged: Merged,
    expert: Annotated[list[str], typer.Option("--expert", help="NAME=MODEL; repeatable.")],
    prompts: Annotated[list[str], typer.Option("--prompts", help="NAME=JSONL; repeatable.")],
    adapter: Annotated[
        list[str] | None, typer.Option("--adapter", help="NAME=FOLDER: also show it corrected.")
    ] = None,
    base: Base = None,
    text: Annotated[str, typer.Option("--text", help="prompt, response or both.")] = "both",
    width: Annotated[int, typer.Option("--bin", min=1, help="Positions a row.")] = 32,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write a plot to this HTML file.")
    ] = None,
    format: Format = "chat",
    max_length: MaxLength = 512,
    batch_size: BatchSize = 8,
    limit: Limit = None,
    device: Device = "cpu",
    dtype: Dtype = "bfloat16",
    body: Body = None,
    head: Head = None,
    trust_remote_code: Trust = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how far the merged model drifts from its experts, by position."""
    from surgekit.cli import models

    session = models.Session(
        merged, base, format, max_length, batch_size, limit, device, dtype, body, head,
        trust_remote_code, quiet,
    )  # fmt: skip
    models.bias(
        session,
        models.named(expert, "--expert"),
        models.named(prompts, "--prompts"),
        models.named(adapter or [], "--adapter"),
        text=text,
        width=width,
        plot=plot,
        as_json=json,
    )


@app.command()
def calibrate(
    merged: Merged,
    expert: Annotated[str, typer.Option("--expert", help="NAME=MODEL, or MODEL.")],
    prompts: Annotated[str, typer.Option("--prompts", help="NAME=JSONL, or JSONL.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the adapter.")],
    module: Annotated[
        str,
        typer.Option(
            "--module", help="darts, standard, add, parallel, table, mean-shift or linear."
        ),
    ] = "darts",
    loss: Annotated[
        str | None, typer.Option("--loss", help="l1, ewl1, kl or ce  [default: the module's]")
    ] = None,
    text: Annotated[str, typer.Option("--text", help="prompt, response or both.")] = "both",
    rank: Annotated[
        int | None, typer.Option("--rank", min=1, help="[default: 16; linear: whole]")
    ] = None,
    max_positions: Annotated[
        int | None,
        typer.Option(
            "--max-positions", min=1, max=1 << 20, help="Rows of the table [default: 512]"
        ),
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=1)] = 500,
    learning_rate: Annotated[float, typer.Option("--learning-rate")] = 1e-3,
    prompts_per_step: Annotated[
        int, typer.Option("--prompts-per-step", min=1, help="Prompts an iteration.")
    ] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED)] = 0,
    ridge: Annotated[
        str, typer.Option("--ridge", help="For linear: loo, gcv, or a number.")
    ] = "loo",
    base: Base = None,
    format: Format = "chat",
    max_length: MaxLength = 512,
    batch_size: BatchSize = 8,
    limit: Limit = None,
    device: Device = "cpu",
    dtype: Dtype = "bfloat16",
    body: Body = None,
    head: Head = None,
    trust_remote_code: Trust = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one adapter for one domain."""
    from surgekit.cli import models

    session = models.Session(
        merged, base, format, max_length, batch_size, limit, device, dtype, body, head,
        trust_remote_code, quiet,
    )  # fmt: skip
    surgery = {"module": module, "rank": rank, "max_positions": max_positions}
    fitting = {
        "loss": loss or "default",
        "text": text,
        "iterations": iterations,
        "learning_rate": learning_rate,
        "batch_size": prompts_per_step,
        "seed": seed,
        "ridge": ridge,
    }
    models.calibrate(session, expert, prompts, out, surgery, fitting, as_json=json)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="An adapter, a run directory or a states file.")],
    json: Json = False,
) -> None:
    """Show what an adapter, a run directory or a states file holds."""
    from surgekit.cli import inspecting

    inspecting.inspect(path, as_json=json)
