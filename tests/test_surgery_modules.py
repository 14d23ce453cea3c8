"""Surgery modules against the oracle: values, types, starts, sizes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from surgekit.adapters.files import save_adapter
from surgekit.errors import MismatchError
from surgekit.surgery.config import CalibrationConfig, SurgeryConfig
from surgekit.surgery.fit import calibrate
from surgekit.surgery.modules import SurgeryModule, table_rows, tensor_shapes

from . import oracle
from .synthetic import FORMS, config, numbers, pair, parameters, random_module, tokens, whole

D, T = 8, 6
POSITIONS = torch.tensor([0, 1, T - 1, T, T + 1, 511, 10**9, -1, -T, -(10**9), 2, 2])
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def gap(found: torch.Tensor, wanted: oracle.Array) -> float:
    """Largest absolute difference; the values themselves are of size one."""
    assert tuple(found.shape) == wanted.shape
    return float(np.abs(numbers(found) - wanted).max(initial=0.0))


# -- Values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rank"), FORMS)
@pytest.mark.parametrize(
    ("stored", "entering", "tolerance"),
    [
        (torch.float64, torch.float64, 1e-10),
        (torch.float32, torch.float64, 1e-10),
        (torch.bfloat16, torch.float64, 1e-10),
        (torch.float32, torch.float32, 1e-5),
        (torch.bfloat16, torch.float32, 1e-5),
    ],
)
def test_equals_the_oracle(
    name: str, rank: int | None, stored: torch.dtype, entering: torch.dtype, tolerance: float
) -> None:
    module = random_module(name, D, rank, positions=T).to(stored)
    z = torch.randn(len(POSITIONS), D, dtype=entering)
    found = module(z, POSITIONS)
    wanted = oracle.correct(name, parameters(module), numbers(z), whole(POSITIONS))
    assert found.dtype == entering
    assert gap(found, wanted) <= tolerance
    assert gap(found, numbers(z)) > 0.1  # a module that did nothing would be no test


@pytest.mark.parametrize(("name", "rank"), FORMS)
@PROPERTY
@given(data=st.data())
def test_any_leading_shape_and_positions_that_broadcast(
    name: str, rank: int | None, data: st.DataObject
) -> None:
    lead = data.draw(st.lists(st.integers(0, 3), max_size=2))
    length = data.draw(st.integers(0, 5))
    shape = (*lead, length)
    # Any leading part may be missing or 1 in the positions, as a batch shares its positions.
    kept = data.draw(st.integers(0, len(lead)))
    own = tuple(1 if data.draw(st.booleans()) else n for n in lead[len(lead) - kept :])
    count = math.prod((*own, length))
    drawn = data.draw(st.lists(st.integers(-3, T + 3), min_size=count, max_size=count))
    kind = data.draw(st.sampled_from([torch.int64, torch.int32]))
    positions = torch.tensor(drawn, dtype=kind).reshape(*own, length)
    module = random_module(name, D, rank, positions=T, seed=data.draw(st.integers(0, 5)))
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(*shape, D, generator=generator, dtype=torch.float64)
    found = module(z, positions)
    flat = whole(positions.expand(shape).reshape(-1))
    wanted = oracle.correct(name, parameters(module), numbers(z).reshape(-1, D), flat)
    assert gap(found, wanted.reshape(*shape, D)) <= 1e-10


@pytest.mark.parametrize("name", ["standard", "mean-shift", "linear"])
def test_modules_without_a_table_need_no_positions(name: str) -> None:
    module = random_module(name, D, 3 if name == "standard" else None)
    z = torch.randn(2, 5, D, dtype=torch.float64)
    assert torch.equal(module(z), module(z, torch.arange(5)))


@pytest.mark.parametrize("name", ["darts", "add", "parallel", "table"])
def test_beyond_the_table_only_the_content_part_is_left(name: str) -> None:
    # Rank 8, so that every row of a table has a unit in the second bottleneck that it moves.
    module = random_module(name, D, None if name == "table" else 8, positions=T)
    low = {k: v for k, v in parameters(module).items() if k in ("down", "up")}
    z = torch.randn(4, D, dtype=torch.float64)
    outside = torch.tensor([T, T + 1, -1, -T])
    content = oracle.correct("standard", low, numbers(z), whole(outside)) if low else numbers(z)
    assert gap(module(z, outside), content) <= 1e-12
    inside = module(z, torch.tensor([0, 1, T - 2, T - 1]))
    assert (np.abs(numbers(inside) - content).max(axis=1) > 0.01).all()


def test_positions_outside_give_no_row_and_no_gradient() -> None:
    table = torch.randn(3, 2, requires_grad=True)
    rows = table_rows(table, torch.tensor([[2, -1], [3, 0]]))
    assert torch.equal(rows[0, 0], table[2])
    assert torch.equal(rows[1, 1], table[0])
    assert not rows[0, 1].any()
    assert not rows[1, 0].any()
    rows.sum().backward()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == [1, 0, 1]  # -1 is not the last row, 3 not row 2 or 0


# -- Types --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rank"), FORMS)
@pytest.mark.parametrize("entering", [torch.bfloat16, torch.float16])
def test_halves_stay_halves_but_are_computed_wide(
    name: str, rank: int | None, entering: torch.dtype
) -> None:
    module = random_module(name, D, rank, positions=T).to(torch.bfloat16)
    z = torch.randn(len(POSITIONS), D).to(entering)
    found = module(z, POSITIONS)
    wanted = oracle.correct(name, parameters(module), numbers(z), whole(POSITIONS))
    assert found.dtype == entering
    # One rounding, of the result: half a unit in the last place.
    step = torch.finfo(entering).eps
    assert (np.abs(numbers(found) - wanted) <= 0.5 * step * np.abs(wanted) + 1e-5).all()


def test_refuses_another_width_and_missing_positions() -> None:
    module = random_module("darts", D, 3)
    with pytest.raises(MismatchError, match="width 8, found 7"):
        module(torch.zeros(2, 7), torch.arange(2))
    with pytest.raises(MismatchError, match="needs position_ids"):
        module(torch.zeros(2, D))


# -- Starts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rank"), FORMS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_starts_as_the_identity(name: str, rank: int | None, kind: torch.dtype) -> None:
    module = SurgeryModule(config(name, D, rank, T), seed=3).to(kind)
    z = torch.randn(len(POSITIONS), D).to(kind)
    assert torch.equal(module(z, POSITIONS), z)


@pytest.mark.parametrize("name", list(oracle.MODULES))
def test_starting_values(name: str) -> None:
    d, r, t = 400, 50, 40
    rank = r if "down" in oracle.MODULES[name] else None
    module = SurgeryModule(config(name, d, rank, t), seed=1)
    drawn = {"down", "down2"} | ({"table"} if name == "parallel" else set())
    for key, value in module.named_parameters():
        values = numbers(value)
        if key not in drawn:
            assert not values.any(), key
        elif key == "table":  # N(0, 0.02²)
            assert values.std() == pytest.approx(0.02, rel=0.02)
            assert values.mean() == pytest.approx(0, abs=0.001)
            assert np.abs(values).max() > 0.06  # a uniform draw of that deviation ends at 0.035
        else:  # Kaiming-uniform with a = √5: uniform on ±1/√d
            bound = 1 / math.sqrt(d)
            assert np.abs(values).max() == pytest.approx(bound, rel=1e-3)
            assert np.abs(values).max() <= bound * (1 + 1e-6)
            assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    if name == "parallel":
        assert not torch.equal(module.get_parameter("down"), module.get_parameter("down2"))


@pytest.mark.parametrize("name", ["standard", "darts", "add", "parallel"])
def test_the_seed_alone_decides_the_start(name: str) -> None:
    def flat(seed: int) -> torch.Tensor:
        module = SurgeryModule(config(name, D, 3, T), seed=seed)
        return torch.cat([p.detach().flatten() for p in module.parameters()])

    before = torch.get_rng_state()
    first = flat(5)
    assert torch.equal(torch.get_rng_state(), before)  # nobody else's draws are moved
    torch.manual_seed(99)
    assert torch.equal(flat(5), first)
    assert not torch.equal(flat(6), first)


@pytest.mark.parametrize(
    ("name", "moving"),
    [
        ("standard", {"up"}),
        ("darts", {"up", "table"}),
        ("add", {"up"}),
        ("parallel", {"up", "up2"}),
        ("mean-shift", {"shift"}),
        ("table", {"table"}),
    ],
)
def test_what_the_first_step_can_move(name: str, moving: set[str]) -> None:
    module = SurgeryModule(config(name, D, None if name in ("mean-shift", "table") else 3, T))
    (module(torch.randn(5, D), torch.arange(5)) * torch.randn(5, D)).sum().backward()
    nonzero = {
        key for key, p in module.named_parameters() if p.grad is not None and bool(p.grad.any())
    }
    assert nonzero == moving


# -- Sizes --------------------------------------------------------------------------------------


def seven_billion(name: str) -> SurgeryConfig:
    return SurgeryConfig.model_validate({"module": name, "hidden_size": 4096})


def stored_bytes(file: Path) -> int:
    """Sum of the tensors' bytes, read from a safetensors file's own header."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    spans = [entry["data_offsets"] for entry in header.values()]
    total = sum(stop - start for start, stop in spans)
    assert total == len(content) - 8 - size
    return total


@pytest.mark.parametrize(("name", "wanted"), [("darts", 4_456_448), ("standard", 262_144)])
def test_bytes_at_the_size_of_the_paper(tmp_path: Path, name: str, wanted: int) -> None:
    merged, expert = pair(tokens([3, 2]), 4096)
    once = CalibrationConfig(iterations=1)
    module = calibrate(merged, expert, seven_billion(name), calibration=once)
    assert module.tensor_bytes() == wanted
    save_adapter(module, tmp_path / "adapter", domain="math")
    assert stored_bytes(tmp_path / "adapter" / "surgery.safetensors") == wanted


@pytest.mark.parametrize(
    ("name", "extra"), [("darts", 2_097_152), ("add", 2_097_152), ("parallel", 2_228_224)]
)
def test_parameters_over_standard(name: str, extra: int) -> None:
    standard = SurgeryModule(seven_billion("standard")).parameter_count()
    assert standard == 131_072
    assert SurgeryModule(seven_billion(name)).parameter_count() - standard == extra


@pytest.mark.parametrize(("name", "rank"), FORMS)
def test_counts_agree_with_the_shapes(name: str, rank: int | None) -> None:
    module = SurgeryModule(config(name, D, rank, T)).to(torch.bfloat16)
    shapes = {key: tuple(p.shape) for key, p in module.named_parameters()}
    assert shapes == tensor_shapes(module.config)
    if rank is None or name != "linear":
        assert set(shapes) == set(oracle.MODULES[name])
    assert module.parameter_count() == sum(math.prod(s) for s in shapes.values())
    assert module.tensor_bytes() == 2 * module.parameter_count()


# -- Settings -----------------------------------------------------------------------------------


def test_settings_of_the_method() -> None:
    darts = SurgeryConfig(module="darts", hidden_size=64)
    assert (darts.rank, darts.max_positions) == (16, 512)
    assert SurgeryConfig(module="table", hidden_size=4).max_positions == 512
    assert SurgeryConfig(module="linear", hidden_size=4).rank is None
    default = CalibrationConfig()
    assert (default.iterations, default.learning_rate, default.batch_size) == (500, 1e-3, 16)
    assert (default.text, default.entropy_mean) == ("both", "dataset")
    losses = {name: default.loss_for(name) for name in oracle.MODULES}
    assert losses["standard"] == "l1"
    assert losses["darts"] == "ewl1"
    assert losses["linear"] is None
    assert losses["mean-shift"] is None
    assert CalibrationConfig(loss="kl").loss_for("mean-shift") == "kl"
    with pytest.raises(ValueError, match="closed form"):
        CalibrationConfig(loss="l1").loss_for("linear")
    with pytest.raises(ValueError, match="give it a loss"):
        CalibrationConfig(loss=None).loss_for("darts")


@pytest.mark.parametrize(
    "settings_",
    [
        {"module": "darts", "hidden_size": 4, "rank": 5},
        {"module": "darts", "hidden_size": 4},  # rank 16 by default
        {"module": "table", "hidden_size": 4, "rank": 1},
        {"module": "standard", "hidden_size": 32, "max_positions": 5},
        {"module": "darts", "hidden_size": 0},
        {"module": "other", "hidden_size": 4},
        {"module": "darts", "hidden_size": 32, "ranks": 2},
    ],
)
def test_impossible_forms_are_refused(settings_: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SurgeryConfig.model_validate(settings_)


@pytest.mark.parametrize(
    "settings_",
    [{"ridge": 0.0}, {"ridge": math.inf}, {"learning_rate": math.inf}, {"iterations": 0}],
)
def test_impossible_calibrations_are_refused(settings_: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CalibrationConfig.model_validate(settings_)
