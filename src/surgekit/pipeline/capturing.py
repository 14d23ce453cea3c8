"""Capture stage: each model is loaded once, for all the states that are wanted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from surgekit.errors import InputError
from surgekit.models.anatomy import Head, find_anatomy
from surgekit.models.fingerprint import digest_json, fingerprint
from surgekit.models.loading import load_model, parse_dtype
from surgekit.pipeline.models import ModelFolders
from surgekit.pipeline.prompts import DomainTokens, tokens_digest
from surgekit.pipeline.run_directory import RunDirectory
from surgekit.recipe import Recipe
from surgekit.states.capture import capture
from surgekit.states.heads import load_head, save_head
from surgekit.states.prompts import TokenizedPrompts
from surgekit.states.states import States, load_states, save_states

NOISE_PROMPTS = 16


@dataclass(frozen=True)
class _Job:
    """One file of states that is wanted of a model."""

    name: str
    tokens: TokenizedPrompts
    entropies: bool
    batch_size: int


@dataclass(frozen=True)
class StateStore:
    """The states of a run, read from disk when they are asked for.

    Attributes:
        run: its run directory.
        identities: by ``DOMAIN/SPLIT/MODEL``, a digest of what the states were made from.
        fingerprints: by model.
    """

    run: RunDirectory
    identities: Mapping[str, str]
    fingerprints: Mapping[str, str]

    def load(self, domain: str, split: str, model: str) -> States:
        """States of ``model`` on a domain's split."""
        return load_states(_file(self.run, f"{domain}/{split}/{model}"))

    def head(self, model: str) -> Head:
        """The head of a model (a domain's name for its expert)."""
        return load_head(_head_file(self.run, model))


def capture_all(
    run: RunDirectory,
    recipe: Recipe,
    models: ModelFolders,
    tokens: Mapping[str, DomainTokens],
    plain: TokenizedPrompts | None,
    *,
    trust_remote_code: bool,
) -> StateStore:
    """Capture what later stages need.

    Of the merged model: all splits of all domains, and the plain text. Of each expert: its own
    domain, with entropies, and a few test prompts at another batch size (the noise floor). Of the
    base: the validation prompts, on which experts are checked, and the test prompts.
    """
    batch = recipe.batch_size
    jobs: dict[str, list[_Job]] = {"merged": [], "base": []}
    for domain, prepared in tokens.items():
        jobs[domain] = []
        for split, sequences in prepared.splits.items():
            jobs["merged"].append(_Job(f"{domain}/{split}/merged", sequences, False, batch))
            jobs[domain].append(_Job(f"{domain}/{split}/{domain}", sequences, True, batch))
        test = prepared.splits["test"]
        for split in ("validation", "test"):
            of_split = prepared.splits[split]
            jobs["base"].append(_Job(f"{domain}/{split}/base", of_split, False, batch))
        few = test.select(list(range(min(NOISE_PROMPTS, len(test)))))
        other = batch // 2 if batch > 1 else 2
        jobs[domain].append(_Job(f"{domain}/noise/{domain}", few, False, other))
    if plain is not None:
        jobs["merged"].append(_Job("plain/test/merged", plain, False, batch))
    identities: dict[str, str] = {}
    fingerprints: dict[str, str] = {}
    for model, wanted in jobs.items():
        fingerprints[model] = _capture_model(
            run, recipe, models, model, wanted, identities, trust_remote_code
        )
    return StateStore(run, identities, fingerprints)


def _capture_model(
    run: RunDirectory,
    recipe: Recipe,
    models: ModelFolders,
    name: str,
    jobs: list[_Job],
    identities: dict[str, str],
    trust_remote_code: bool,
) -> str:
    loaded: list[PreTrainedModel] = []

    def model() -> PreTrainedModel:
        if not loaded:
            loaded.append(
                load_model(
                    str(models.folders[name]),
                    dtype=recipe.dtype,
                    device=None if recipe.device == "cpu" else recipe.device,
                    trust_remote_code=trust_remote_code,
                )
            )
        return loaded[0]

    common = {"model": models.identities[name], "dtype": recipe.dtype, "body": recipe.body}

    def write_head() -> str:
        try:
            head = find_anatomy(model(), body=recipe.body, head=recipe.head)[1]
        except InputError as error:
            raise type(error)(f"model {name}: {error}") from error
        save_head(head, _head_file(run, name))
        return fingerprint(model())

    mark = run.stage(
        f"capture/heads/{name}",
        common | {"head": recipe.head},
        [_head_file(run, name)],
        write_head,
    )
    for job in jobs:
        inputs = common | {
            "tokens": tokens_digest(job.tokens),
            "entropies": job.entropies,
            "batch_size": job.batch_size,
            "device": recipe.device,
        }
        path = _file(run, job.name)

        def work(job: _Job = job, path: Path = path) -> None:
            run.reporter.start(f"states of {job.name}", len(job.tokens.ids))
            try:
                states = capture(
                    model(),
                    job.tokens,
                    entropies=job.entropies,
                    batch_size=job.batch_size,
                    dtype=parse_dtype(recipe.dtype) or model().dtype,
                    body=recipe.body,
                    head=recipe.head,
                    model_fingerprint=mark,
                    progress=run.reporter.advance,
                )
            except InputError as error:
                raise type(error)(f"{job.name}: {error}") from error
            finally:
                run.reporter.finish()
            save_states(states, path)

        run.stage(f"capture/{job.name}", inputs, [path], work)
        identities[job.name] = digest_json(inputs)
    return mark


def _file(run: RunDirectory, name: str) -> Path:
    return run.path("states", f"{name}.safetensors")


def _head_file(run: RunDirectory, model: str) -> Path:
    return run.path("states", "heads", f"{model}.safetensors")
