"""What max_length, the model and the tables leave of the prompts is told before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surgekit.pipeline.preflight import lengths, preflight
from surgekit.pipeline.preflight.facts import ModelFacts
from surgekit.pipeline.preflight.lengths import Counts, check_lengths, count_tokens
from surgekit.pipeline.prompts import read_domain
from surgekit.states.prompts import tokenize_prompts

from .runs import document, make_world, recipe
from .tiny import jsonl, tokenizer

LLAMA = ModelFacts(1000, 32, 320, 2048, "llama")
STANDARD = [{"module": "standard"}]
DARTS = [{"module": "darts"}]
PLENTY = Counts([20] * 12, [40] * 12)


def told(
    calibration: Counts = PLENTY,
    test: Counts = PLENTY,
    facts: ModelFacts = LLAMA,
    **changes: Any,
) -> list[tuple[str, str]]:
    changes = {"surgery": STANDARD} | changes
    counted = {"math": {"calibration": calibration, "validation": PLENTY, "test": test}}
    made = recipe(Path("/nowhere"), **changes)
    return [(f.level, f.message) for f in check_lengths(made, counted, facts)]


def of(*pairs: tuple[int, int]) -> Counts:
    """(tokens of the prompt, tokens of the response) of some prompts."""
    return Counts([p for p, _ in pairs], [p + r for p, r in pairs])


RESPONSE = [{"module": "standard", "text": "response"}]
FOUND: dict[str, tuple[dict[str, Any], str, str]] = {
    "cut sequences": (
        {"test": of((20, 81), (20, 20)), "max_length": 100},
        "warning",
        "domains.math.test: 1 of 2 sequences are cut at max_length 100 (1 % of the tokens)",
    ),
    "whole responses cut": (
        {"test": of((100, 5), (20, 20)), "max_length": 100},
        "warning",
        "domains.math.test: of 1 of 2 prompts the whole response is cut",
    ),
    "nothing left to fit": (
        {"calibration": of((100, 5), (120, 9)), "max_length": 100, "surgery": RESPONSE},
        "error",
        "text 'response' has nothing to fit; prompts have up to 120 tokens",
    ),
    "beyond the model": (
        {"facts": ModelFacts(1000, 32, 320, 39, "llama")},
        "warning",
        "36 sequences are longer than the 39 positions the model was made for",
    ),
    "beyond a model that has a table": (
        {"facts": ModelFacts(1000, 32, 320, 39, "gpt2")},
        "error",
        "set max_length: 39",
    ),
    "beyond the surgery's table": (
        {"surgery": [{"module": "darts", "max_positions": 39}]},
        "warning",
        "12 sequences are longer than the 39 rows of the position table of darts-ewl1@both",
    ),
    "rows that few tokens reach": (
        {"surgery": DARTS, "calibration": of(*[(20, 10)] * 8, *[(20, 90)] * 4)},
        "note",
        "fewer than 5 calibration tokens each from position 30 (math) on",
    ),
    "responses of one token": (
        {"surgery": RESPONSE, "calibration": of(*[(20, 2)] * 12)},
        "warning",
        "most responses are a single token",
    ),
}
NOT_FOUND: dict[str, dict[str, Any]] = {
    "a sequence as long as max_length": {"test": of((20, 80)), "max_length": 100},
    "the last token of a response is left": {"calibration": of((39, 1)), "max_length": 40},
    "no response to be cut": {"test": of((40, 0)), "max_length": 40},
    "as long as the model's positions": {"facts": ModelFacts(1000, 32, 320, 40, "gpt2")},
    "longer than the model's positions, but cut before": {
        "facts": ModelFacts(1000, 32, 320, 40, "gpt2"),
        "max_length": 40,
    },
    "a model that does not say": {"facts": ModelFacts(1000, 32, 320, None, "gpt2")},
    "a table with a row for each": {"surgery": [{"module": "darts", "max_positions": 40}]},
    "a rank is no table": {"surgery": [{"module": "standard", "rank": 2}]},
    "short responses, and text both": {"calibration": of(*[(20, 2)] * 12)},
    "responses of two tokens": {"surgery": RESPONSE, "calibration": of(*[(20, 3)] * 12)},
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_cut_or_too_short_is_found(name: str) -> None:
    settings, level, said = FOUND[name]
    found = told(**settings)
    assert any(known == level and said in message for known, message in found), found


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_just_fits_is_not_found(name: str) -> None:
    found = told(**NOT_FOUND[name])
    assert [f for f in found if "cut at max_length 40" not in f[1]] == []
    assert not any("whole response" in message for _, message in found)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("lengths"))


def test_tokens_are_counted_as_a_run_counts_them(world: Path) -> None:
    made = recipe(world)
    domains = {n: read_domain(n, d, made.seeds) for n, d in made.domains.items()}
    counted, findings = count_tokens(made, domains, trust_remote_code=False)
    assert findings == []
    for name, prompts in domains.items():
        for split, items in prompts.splits.items():
            for limit in (512, 60, 40):
                tokens = tokenize_prompts(items, tokenizer(), max_length=limit)
                assert counted[name][split].kept(limit) == len(tokens.ids)
                judged = lengths_scored(tokens)
                assert counted[name][split].scored(limit) == judged


def lengths_scored(tokens: Any) -> int:
    from surgekit.fidelity import scored_tokens

    return int(scored_tokens(tokens).sum())


def test_what_takes_too_long_is_not_verified(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "SECONDS", -1.0)
    made = recipe(world)
    domains = {n: read_domain(n, d, made.seeds) for n, d in made.domains.items()}
    counted, findings = count_tokens(made, domains, trust_remote_code=False)
    assert counted == {}
    assert [f.level for f in findings] == ["unverified"] * 2


def test_a_format_that_the_tokenizer_refuses_is_found(world: Path) -> None:
    turns = [{"role": r, "content": r} for r in ("user", "assistant", "critic")]
    broken = jsonl(world / "data" / "roles.jsonl", [{"messages": turns}] * 3)
    strict = "{% for m in messages %}{{ {'user': 1, 'assistant': 2}[m.role] + 1 }}{% endfor %}"
    (world / "base" / "chat_template.jinja").write_text(strict)
    domains: dict[str, Any] = {
        "math": {"expert": "./math", "calibration": str(broken), "test": str(broken)}
    }
    brought = recipe(world, domains=domains, merge={"folder": "./base"})
    merged_here = recipe(world, domains=domains)
    for made, level in ((brought, "error"), (merged_here, "warning")):
        read = {n: read_domain(n, d, made.seeds) for n, d in made.domains.items()}
        (finding,) = count_tokens(made, read, trust_remote_code=False)[1]
        assert finding.level == level
        assert "domains.math" in finding.message


@pytest.mark.parametrize(
    ("format", "said"),
    [
        ("{{ prompt", "format template does not parse"),
        ("{{ prompt.nothing.at_all }}", "format template failed"),
        ("{{ prompt }}{{ promt }}", "format template failed: 'promt' is undefined"),
        ("{{ prompt }}{{ ''.__class__ }}", "format template failed: access to attribute"),
        ("{{ prompt + 1 }}", "format template failed"),
    ],
)
def test_a_format_that_no_tokenizer_can_make_work_is_an_error_told_once(
    world: Path, format: str, said: str
) -> None:
    domains = document()["domains"]
    domains["math"] |= {"format": format}
    told = [f for f in preflight(recipe(world, domains=domains)) if "format" in f.message]
    assert [f.level for f in told] == ["error"]
    assert told[0].message.startswith(f"domains.math: {said}")


def test_without_a_tokenizer_lengths_are_not_verified(world: Path) -> None:
    made = recipe(world, base="./nowhere")
    (finding,) = count_tokens(made, {}, trust_remote_code=False)[1]
    assert finding.level == "unverified"
