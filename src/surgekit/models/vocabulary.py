"""The vocabulary of a checkpoint by its files, and whether two models mean the same by an id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surgekit.errors import InputError
from surgekit.files import read_json_object
from surgekit.findings import Finding, Level
from surgekit.models.checkpoint import Checkpoint
from surgekit.models.gguf_header import read_gguf

_OTHER_TOKENIZER = 0.1
"""Share of ids with another meaning from which on two tokenizers are two."""


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer's files say.

    Attributes:
        ids: piece of text → id, added tokens too.
        added: the added tokens alone.
        eos: the end-of-text token, where it is named.
        pad: the padding token, where it is named.
        template: the chat template, where there is one.
        digest: of the file that the ids stand in: two that agree need no comparing.
    """

    ids: Mapping[str, int]
    added: Mapping[str, int]
    eos: str | None
    pad: str | None
    template: str | None
    digest: str


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """The vocabulary in a checkpoint folder.

    Returns:
        None where no file tells ids apart from code (``tokenizer.model`` alone), or none is there.

    Raises:
        InputError: a file that is no JSON of its kind.
    """
    settings = _optional(folder / "tokenizer_config.json", "tokenizer config")
    template = _template(folder, settings)
    named = {key: _named(settings.get(f"{key}_token")) for key in ("eos", "pad")}
    fast, plain = folder / "tokenizer.json", folder / "vocab.json"
    if fast.is_file():
        document = read_json_object(fast, "a tokenizer")
        ids = _model_ids(document, fast)
        listed = document.get("added_tokens") or []
        pairs = [(t.get("content"), t.get("id")) for t in listed if isinstance(t, dict)]
        added, file = _whole(pairs, fast), fast
    elif plain.is_file():
        ids = _whole(read_json_object(plain, "a vocabulary").items(), plain)
        extra = folder / "added_tokens.json"
        added, file = _whole(_optional(extra, "added tokens").items(), extra), plain
    else:
        return None
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Vocabulary(ids | added, added, named["eos"], named["pad"], template, digest)


def gguf_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in a GGUF file; raises InputError where the file is damaged."""
    header = read_gguf(path)
    ids = header.tokens
    pieces = {str(i): t for t, i in ids.items()}
    eos, pad = (
        pieces.get(str(header.fields.get(f"tokenizer.ggml.{key}_token_id")))
        for key in ("eos", "padding")
    )
    said = header.fields.get("tokenizer.chat_template")
    template = said if isinstance(said, str) else None
    digest = hashlib.sha256("\0".join(ids).encode("utf-8", "replace")).hexdigest()
    return Vocabulary(ids, {}, eos, pad, template, digest)


def vocabulary_of(model: Checkpoint) -> Vocabulary | None:
    """The vocabulary of a model by its headers, wherever it lies."""
    packed = next((file for file in model.files if file.suffix == ".gguf"), None)
    return read_vocabulary(model.folder) if packed is None else gguf_vocabulary(packed)


@dataclass(frozen=True)
class IdsCompared:
    """How two vocabularies number the same pieces of text.

    Attributes:
        common: ids that both have.
        differing: of those, the ones that mean different pieces.
        example: (id, the one's piece, the other's), of the first of them.
        surplus: pieces only the other has, at ids the one lacks.
    """

    common: int
    differing: int
    example: tuple[int, str, str] | None
    surplus: tuple[str, ...]

    @property
    def other_tokenizer(self) -> bool:
        """True where so many ids differ that they are two tokenizers, not one with changes."""
        return self.differing > _OTHER_TOKENIZER * max(1, self.common)


def compare_ids(one: Vocabulary, other: Vocabulary) -> IdsCompared:
    """Compare two vocabularies id by id."""
    a = {i: t for t, i in one.ids.items()}
    b = {i: t for t, i in other.ids.items()}
    both = sorted(a.keys() & b.keys())
    differing = [i for i in both if a[i] != b[i]]
    example = (differing[0], a[differing[0]], b[differing[0]]) if differing else None
    surplus = tuple(b[i] for i in sorted(b.keys() - a.keys()))
    return IdsCompared(len(both), len(differing), example, surplus)


def compare_vocabularies(
    names: tuple[str, str],
    one: Vocabulary,
    two: Vocabulary,
    *,
    averaged: bool = True,
    aligned: bool = False,
) -> list[Finding]:
    """Whether an expert's ids mean the base's tokens.

    Args:
        names: of the base and of the expert.
        one: the base's vocabulary.
        two: the expert's.
        averaged: their weights are merged; else they are only compared by their states.
        aligned: the merge brings vocabularies into line by their tokens.
    """
    base, name = names
    found: list[Finding] = []
    compared = compare_ids(one, two) if one.digest != two.digest else None
    if compared is not None and compared.example is not None:
        at, mine, theirs = compared.example
        level: Level = "error" if compared.other_tokenizer else "warning"
        level = "note" if aligned else level
        found.append(
            Finding(
                level,
                f"{name}: {compared.differing} of {compared.common} ids mean another token than "
                f"for {base}, the first being {at}: {theirs!r} instead of {mine!r}; "
                + (
                    "the merge goes by tokens"
                    if aligned
                    else "what one reads is not what the other reads"
                    if not averaged
                    else "the embeddings of different tokens would be averaged (tokenizer: "
                    "{source: base} in the merge brings them into line)"
                ),
            )
        )
    if compared is not None and compared.surplus:
        shown = ", ".join(map(repr, compared.surplus[:3]))
        found.append(
            Finding(
                "note",
                f"{name}: {len(compared.surplus)} tokens that {base} has not ({shown}); "
                "the merged model does not know them unless its tokenizer takes them in",
            )
        )
    return found


def compare_ends(
    one: Checkpoint, two: Checkpoint, base: Vocabulary | None, own: Vocabulary | None
) -> list[Finding]:
    """Whether an expert ends its text as the base does: by its tokenizer, and by what stops it.

    transformers stops at the ids of ``generation_config.json``, or else of ``config.json``,
    whatever the tokenizer calls its end.

    Args:
        one: the base.
        two: the expert.
        base: the base's vocabulary, where it can be read.
        own: the expert's.

    Raises:
        InputError: a ``generation_config.json`` that is no JSON object.
    """
    late = "; the merged model has the base's, and may not stop where this expert does"
    if base is not None and own is not None and base.eos and own.eos and base.eos != own.eos:
        said = f"{two.name}: ends its text with {own.eos!r}, {one.name} with {base.eos!r}"
        return [Finding("warning", said + late)]
    known, wanted = _end_ids(one), _end_ids(two)
    if not known or wanted <= known:
        return []
    shown = [", ".join(map(str, sorted(ids))) for ids in (wanted, known)]
    said = f"{two.name}: stops at id {shown[0]} (eos_token_id), {one.name} at {shown[1]}"
    return [Finding("warning", said + late)]


def _end_ids(model: Checkpoint) -> frozenset[int]:
    generation = (
        {}
        if model.virtual
        else _optional(model.folder / "generation_config.json", "generation config")
    )
    value = generation.get("eos_token_id")
    value = model.config.get("eos_token_id") if value is None else value
    listed = value if isinstance(value, list) else [value]
    return frozenset(i for i in listed if isinstance(i, int) and not isinstance(i, bool))


def compare_templates(base: str | None, others: Mapping[str, str | None]) -> list[Finding]:
    """Which chat template a merge keeps, where they differ."""
    different = [name for name, template in others.items() if template and template != base]
    if not different:
        return []
    kept = "the base's" if base else "none, for the base has none"
    return [
        Finding(
            "note",
            f"{', '.join(different)}: another chat template than the base's; the merged model "
            f"keeps {kept} (chat_template in the merge configuration sets one)",
        )
    ]


def _model_ids(document: Mapping[str, Any], file: Path) -> dict[str, int]:
    model = document.get("model")
    listed = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(listed, dict):
        return _whole(listed.items(), file)
    if isinstance(listed, list) and all(isinstance(pair, list) and pair for pair in listed):
        return {str(pair[0]): i for i, pair in enumerate(listed)}  # pieces of a unigram model
    raise InputError(f"{file}: expected a tokenizer with a vocabulary, found none in it")


def _whole(pairs: Iterable[tuple[Any, Any]], file: Path) -> dict[str, int]:
    """Piece → id, sure that each id is a whole number."""
    found: dict[str, int] = {}
    for piece, number in pairs:
        if not isinstance(number, int) or isinstance(number, bool):
            raise InputError(f"{file}: expected a number as the id of {piece!r}, found {number!r}")
        found[str(piece)] = number
    return found


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace")
    template = settings.get("chat_template")
    if template is None:
        template = _optional(folder / "chat_template.json", "chat template").get("chat_template")
    if isinstance(template, list):  # several, by name
        by_name = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = by_name.get("default", next(iter(by_name.values()), None))
    return template if isinstance(template, str) else None


def _named(token: object) -> str | None:
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def _optional(path: Path, what: str) -> dict[str, Any]:
    return read_json_object(path, what) if path.is_file() else {}
