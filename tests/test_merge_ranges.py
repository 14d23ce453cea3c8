"""Numbers of mergekit's methods outside their range, and those that do not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surgekit.findings import Finding
from surgekit.merging import read_merge_config
from surgekit.merging.examining import examine_merge
from surgekit.merging.ranges import RANGES, range_of
from surgekit.models.checkpoint import read_checkpoint

from .zoo import expect_told, make_checkpoint, mergekit_alone, tensors

Config = dict[str, Any]
NAMES = ("base", "math", "code", "chat")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("zoo")
    return {name: make_checkpoint(root / name, i) for i, name in enumerate(NAMES)}


def of(
    method: str,
    *own: Config | None,
    base: str | None = "base",
    names: tuple[str, ...] = ("math", "code"),
    **parameters: Any,
) -> Config:
    """A merge of ``names`` with their own parameters, and those of all."""
    listed = [
        {"model": name} | ({"parameters": own[i]} if i < len(own) and own[i] else {})
        for i, name in enumerate(names)
    ]
    made: Config = {"merge_method": method, "models": listed, "dtype": "float32"}
    if base is not None:
        made["base_model"] = base
    return made | ({"parameters": parameters} if parameters else {})


def found_of(config: Config, zoo: dict[str, Path]) -> list[Finding]:
    models = {n: read_checkpoint(zoo[n], n) for n in NAMES}
    return examine_merge(read_merge_config(config), Path.cwd(), models)[0]


ONE: Config = {"weight": 1.0}
NONE: Config = {"weight": 0.0}
# (configuration, level, what is said, what mergekit makes of it by itself: it dies, the merge
# holds NaN, or is a model of the merge, or is made all the same)
FOUND: dict[str, tuple[Config, str, str, str]] = {
    "della, epsilon too wide": (
        of("della", ONE, ONE, density=0.5, epsilon=0.6),
        "error",
        "parameters.epsilon: expected a number from 0 to below 0.5, found 0.6",
        "dies",
    ),
    "della, together beyond 1": (
        of("della", ONE, ONE, density=0.9, epsilon=0.2),
        "error",
        "math: density 0.9 with epsilon 0.2: expected density ± epsilon between 0 and 1",
        "dies",
    ),
    "della, together below 0": (
        of("della_linear", ONE, ONE, density=0.1, epsilon=0.1),
        "error",
        "give an epsilon below 0.1",
        "dies",
    ),
    "della, with the default": (
        of("della_linear", ONE, {"weight": 1.0, "density": 0.95}),
        "error",
        "code: density 0.95 with epsilon 0.15 (the default)",
        "dies",
    ),
    "della under a filter": (
        of("della", ONE, ONE, density=[{"filter": "mlp", "value": 0.95}, {"value": 1.0}]),
        "error",
        "math: density 0.95 with epsilon 0.15",
        "dies",
    ),
    "della, small entries preferred": (
        of("della", ONE, ONE, density=0.5, epsilon=-0.1),
        "error",
        "parameters.epsilon: expected a number from 0 to below 0.5, found -0.1",
        "made",
    ),
    "breadcrumbs, more dropped than there is": (
        of("breadcrumbs", ONE, ONE, density=0.9, gamma=0.2),
        "error",
        "math: density 0.9 with gamma 0.2: expected at most 1 in sum",
        "made",
    ),
    "breadcrumbs that thins nothing": (
        of("breadcrumbs_ties", ONE, ONE, gamma=0.2),
        "warning",
        "math: density 1 keeps every entry, so gamma 0.2 drops none",
        "made",
    ),
    "gamma in percent": (
        of("breadcrumbs", ONE, ONE, density=0.9, gamma=2),
        "error",
        "parameters.gamma: expected a share from 0 to 1, found 2; did you mean 0.02?",
        "made",
    ),
    "karcher, no tolerance": (
        of("karcher", base=None, tol=-1e-5),
        "error",
        "parameters.tol: expected a number above 0 and below 1, found -1e-05",
        "made",
    ),
    "karcher, no step": (
        of("karcher", base=None, max_iter=0),
        "error",
        "parameters.max_iter: expected a whole number from 1 on, found 0",
        "made",
    ),
    "multislerp of nothing": (
        of("multislerp", NONE, NONE),
        "error",
        "add up to 0, and multislerp divides by their sum",
        "NaN",
    ),
    "multislerp that cancels out": (
        of("multislerp", ONE, {"weight": -1.0}),
        "error",
        "add up to 0, and multislerp divides by their sum",
        "NaN",
    ),
    "multislerp of three times nothing": (
        of("multislerp", NONE, NONE, NONE, names=("math", "code", "chat"), normalize_weights=False),
        "error",
        "add up to 0, and multislerp finds no direction",
        "dies",
    ),
    "multislerp of nothing, not divided": (
        of("multislerp", NONE, NONE, normalize_weights=False),
        "warning",
        "all weights are 0, so the merge is the base itself",
        "base",
    ),
    "multislerp without one": (
        of("multislerp", NONE, ONE),
        "warning",
        "math: its weight is 0, so it has no part in it",
        "code",
    ),
    "multislerp, eps": (
        of("multislerp", ONE, ONE, eps=0),
        "error",
        "parameters.eps: expected a number above 0 and below 1, found 0",
        "made",
    ),
    "nuslerp of nothing": (
        of("nuslerp", NONE, NONE),
        "warning",
        "add up to 0, and nuslerp then takes both models by half",
        "made",
    ),
    "nuslerp without one": (
        of("nuslerp", ONE, NONE),
        "warning",
        "code: its weight is 0, so it has no part in it",
        "math",
    ),
    "sce that selects nothing": (
        of("sce", select_topk=0),
        "warning",
        "parameters.select_topk: 0; it selects nothing, so the merge is the base itself",
        "base",
    ),
    "nearswap that takes over nothing": (
        of("nearswap", base="math", t=0),
        "warning",
        "parameters.t: 0; it takes over nothing, so the merge is the base itself",
        "math",
    ),
    "nearswap below 0": (
        of("nearswap", base="math", t=-0.5),
        "error",
        "parameters.t: expected a distance from 0 on, found -0.5",
        "math",
    ),
    "slerp at one end": (
        of("slerp", base="math", t=1),
        "warning",
        "parameters.t: 1 throughout, so the merge is code itself",
        "code",
    ),
    "slerp at the other": (
        of("slerp", base="math", t=0),
        "warning",
        "parameters.t: 0 throughout, so the merge is math itself",
        "math",
    ),
    "ram below 0": (
        of("ram", epsilon=-1),
        "error",
        "parameters.epsilon: expected a number from 0 to below 1, found -1",
        "made",
    ),
    "ramplus, epsilon 0": (
        of("ramplus_tl", names=("math",), epsilon=0),
        "error",
        "parameters.epsilon: expected a number above 0 and below 1, found 0",
        "math",
    ),
    "ramplus below 0": (
        of("ramplus_tl", r=-1.0, alpha=-0.5),
        "error",
        "parameters.r: expected a number from 0 on, found -1.0",
        "made",
    ),
    "a scale of 0": (
        of("passthrough", {"scale": 0.0}, base=None, names=("math",)),
        "warning",
        "all weights are 0, so the merge is nothing",
        "made",
    ),
    "padding to no size": (
        of("ties", ONE, ONE) | {"tokenizer": {"source": "base", "pad_to_multiple_of": -3}},
        "error",
        "tokenizer.pad_to_multiple_of: expected a whole number from 1 on, found -3",
        "any",
    ),
}


@pytest.mark.parametrize(("config", "level", "said", "alone"), FOUND.values(), ids=FOUND.keys())
def test_found_before_any_work(
    config: Config, level: str, said: str, alone: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    expect_told(found_of(config, zoo), level, said)
    if alone != "any":
        assert what_mergekit_makes(config, zoo, tmp_path / "alone") == alone


def what_mergekit_makes(config: Config, zoo: dict[str, Path], out: Path) -> str:
    if mergekit_alone(config, zoo, out) != "silent":
        return "dies"
    made = tensors(out)
    if any(not np.isfinite(value).all() for value in made.values()):
        return "NaN"
    for name in NAMES:
        own = tensors(zoo[name])
        if all(np.allclose(made[n], own[n], rtol=0, atol=1e-6) for n in made):
            return name
    return "made"


SOUND: dict[str, Config] = {
    "della": of("della", ONE, ONE, density=0.5, epsilon=0.2, normalize=False),
    "della that keeps all": of("della_linear", ONE, ONE),
    "breadcrumbs": of("breadcrumbs", ONE, ONE, density=0.9, gamma=0.1),
    "breadcrumbs by default": of("breadcrumbs", ONE, ONE, density=0.995),
    "karcher": of("karcher", tol=1e-6, max_iter=30),
    "multislerp": of("multislerp", ONE, {"weight": 3.0}),
    "nuslerp by large weights": of("nuslerp", {"weight": 5.0}, {"weight": 7.0}),
    "sce": of("sce", select_topk=0.1),
    "nearswap beyond 1": of("nearswap", base="math", t=1.5),
    "ramplus": of("ramplus_tl", r=0.5, alpha=1, epsilon=1e-6),
    "one part passed on as nothing": of(
        "passthrough",
        {"scale": [{"filter": "down_proj", "value": 0}, {"value": 1}]},
        base=None,
        names=("math",),
    ),
}


@pytest.mark.parametrize("config", SOUND.values(), ids=SOUND.keys())
def test_what_is_in_range_is_left_alone(config: Config, zoo: dict[str, Path]) -> None:
    told = [f for f in found_of(config, zoo) if f.level not in ("note", "unverified")]
    assert told == []


def test_every_number_of_every_method_has_been_thought_of() -> None:
    """A method or parameter that another mergekit adds needs a look at what it may be."""
    from mergekit.merge_methods import registered_methods

    free = {"weight", "lambda", "scale"}
    parameters = {(m.spec.name, p.name): p for m in registered_methods() for p in m.spec.parameters}
    numbers = {k for k, p in parameters.items() if p.value_type is not bool}
    without = {k for k in numbers if range_of(*k) is None and k[1] not in free}
    assert without == {("slerp", "t")}
    assert {k for k in RANGES if k[0] != "*"} <= parameters.keys()
