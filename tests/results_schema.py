"""results.json as the contract has it, key by key; surplus keys, NaN and infinity are refused."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Runs(_Exact):
    mean: FiniteFloat
    std: FiniteFloat | None
    runs: list[FiniteFloat]


class Measured(Runs):
    interval: list[FiniteFloat] | None


class BiasRow(_Exact):
    start: int
    stop: int
    tokens: int
    l1: FiniteFloat
    relative: FiniteFloat
    cosine: FiniteFloat


class ByPosition(_Exact):
    merged: list[BiasRow]
    methods: dict[str, list[BiasRow]]


class Drift(_Exact):
    noise: FiniteFloat
    merged: FiniteFloat
    methods: dict[str, Runs]


class Bias(_Exact):
    l1: Drift
    relative: Drift
    cosine: Drift
    by_position: ByPosition
    noise_prompts: int


class EntropyRow(_Exact):
    start: FiniteFloat = Field(alias="from")
    stop: FiniteFloat | None = Field(alias="to")
    tokens: int
    base: FiniteFloat
    expert: FiniteFloat
    merged: FiniteFloat
    methods: dict[str, FiniteFloat]


class Metric(_Exact):
    base: FiniteFloat
    expert: FiniteFloat
    merged: FiniteFloat
    methods: dict[str, Measured]
    by_entropy: list[EntropyRow]


class Recovered(_Exact):
    kl: dict[str, Measured | None]
    loss: dict[str, Measured | None]


class Metrics(_Exact):
    loss: Metric
    kl: Metric
    agreement: Metric
    recovered: Recovered


class Items(_Exact):
    calibration: int
    validation: int
    test: int
    cut: int


class Chosen(Runs):
    worse: bool


class Validation(_Exact):
    metric: Literal["kl"]
    merged: FiniteFloat
    methods: dict[str, Chosen]
    best: str
    recommended: str


class Difference(_Exact):
    mean: FiniteFloat
    interval: list[FiniteFloat] | None


class ExpertCheck(_Exact):
    split: Literal["validation"]
    prompts: int
    tokens: int
    loss: dict[Literal["expert", "base", "merged"], FiniteFloat]
    difference: dict[Literal["base", "merged"], Difference]
    warnings: list[str]


class Domain(_Exact):
    items: Items
    expert_check: ExpertCheck
    bias: Bias
    metrics: Metrics
    validation: Validation
    recommended: str
    chosen_on: Literal["validation"]


class Fit(_Exact):
    seed: int
    parameters: int
    bytes: int
    rank: int | None
    tokens: int
    first_loss: FiniteFloat | None
    last_loss: FiniteFloat | None
    relative_ridge: FiniteFloat | None


class Method(_Exact):
    module: str
    loss: str | None
    text: str
    rank: int | None
    parameters: int
    bytes: int
    calibration: dict[str, Any]
    fits: dict[str, list[Fit]]


class Model(_Exact):
    source: str
    fingerprint: str = Field(pattern=r"^sf1-[0-9a-f]{64}$")


class Merged(_Exact):
    fingerprint: str = Field(pattern=r"^sf1-[0-9a-f]{64}$")
    source: str | None = None
    config: dict[str, Any] | None = None
    effective_weights: dict[str, Any] | None = None
    seed: int | None = None
    mergekit: str | None = None


class Environment(_Exact):
    python: str
    platform: str
    processors: int
    threads: int
    gpu: str | None
    versions: dict[str, str]
    batch_size: int


class Effect(_Exact):
    corrected: FiniteFloat
    uncorrected: FiniteFloat


class Effects(_Exact):
    loss: Effect
    kl: Effect


class Results(_Exact):
    format: Literal[1]
    surgekit: str
    recipe_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    models: dict[str, Model | Merged]
    environment: Environment
    seeds: list[int]
    methods: dict[str, Method]
    domains: dict[str, Domain]
    cross_domain: dict[str, dict[str, Effects | str]]
    timing: dict[str, FiniteFloat]
    peak_memory_bytes: dict[str, int]
