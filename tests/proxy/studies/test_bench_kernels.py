"""The bench of the kernels: its gate lets nothing wrong pass, its figures add up, the command prints them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from desist.kernels.boundary_score import Flag
from desist.kernels.choice import interpreting, triton_found
from desist.kernels.cost import H200
from desist.proxy.studies import kernel_parity
from desist.proxy.studies.bench_kernels import KernelBench, Measured, bench_kernels, plugin_shares
from desist.proxy.studies.kernel_eager import EagerState, decide_step, score_step, stream_step
from desist.proxy.studies.kernel_parity import ParityError, prove, relative_error
from desist.proxy.studies.kernel_step import Shape, Step, make_step
from desist.proxy.studies.kernel_timing import Bandwidth, timed
from desist.proxy.studies.kernel_work import (
    BOTH,
    DECIDE,
    LOGITS_COPY,
    SCORE,
    STREAM,
    by_eager,
    by_kernels,
    least_bytes,
    scored,
    streamed,
)

CPU = torch.device("cpu")
SMALL = Shape(rows=7, at_boundary=2, hidden=40, widths=(20, 5), vocabulary=300, dtype=torch.float32)

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_a_step_is_what_its_shape_says() -> None:
    step = make_step(SMALL._replace(drafts=2), seed=3)
    assert step.rows.local.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert step.rows.slot.tolist() == [0, 0, 0, 1, 1, 1, 2]
    found = scored(step, "torch")
    assert found.compact[:2].tolist() == step.chosen.tolist()
    assert int(found.n) == 2
    assert all(Flag.THINKING in Flag(bits) for bits in found.flags.tolist())
    again = make_step(SMALL._replace(drafts=2), seed=3)
    assert torch.equal(again.rows.token, step.rows.token)
    assert torch.equal(again.taps[2], step.taps[2])


def test_eager_scores_and_decides_as_the_specification() -> None:
    step = make_step(SMALL)
    found = scored(step, "torch")
    assert relative_error(score_step(step), found.score[step.chosen]) < 1e-6
    state = EagerState.of(step)
    assert relative_error(stream_step(step, state), streamed(step, found, "torch")) < 1e-6
    score = found.score[step.chosen]
    between = float(score.min() + score.max()) / 2
    first = decide_step(step, state, score, lam=between, ema=0.5, patience=1)
    assert first.nonzero()[:, 0].tolist() == [int(step.chosen[score.argmax()])]
    twice = [decide_step(step, state, score, lam=between, ema=0.5, patience=3).any() for _ in range(2)]
    assert [bool(each) for each in twice] == [False, True]
    assert state.count.tolist() == [3] * 7


@pytest.mark.skipif(not triton_found() or not interpreting(), reason="Triton is not interpreted here")
def test_the_gate_lets_the_kernels_pass() -> None:
    for parity in prove(CPU, "triton", (SMALL._replace(drafts=2, dtype=torch.bfloat16),)):
        assert parity.error <= parity.bound


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (torch.tensor([1.0, math.nan]), 0.0),
        (torch.tensor([1.1, math.nan]), 0.1),
        (torch.tensor([1.0, 1.0]), math.inf),
        (torch.tensor([1.0]), math.inf),
    ],
)
def test_an_error_is_relative_and_nan_must_stay(shown: torch.Tensor, expected: float) -> None:
    assert relative_error(shown, torch.tensor([1.0, math.nan])) == pytest.approx(expected)


def off_by_a_little(step: Step) -> torch.Tensor:
    return score_step(step) * 1.05


def test_what_is_wrong_is_not_measured() -> None:
    timed_steps: list[str] = []
    with pytest.raises(ParityError, match="torch eager is off"):
        bench_kernels(
            rows=(3,),
            shape=SMALL,
            eager_score=off_by_a_little,
            progress=lambda what, *_: timed_steps.append(what),
        )
    assert set(timed_steps) == {"parity"}


def test_a_difference_in_a_count_or_a_logit_is_one() -> None:
    whole = torch.tensor([1, 2])
    with pytest.raises(ParityError, match="count"):
        kernel_parity.require_equal(SCORE, "count", whole + 1, whole)
    low = torch.tensor([-math.inf, 0.0, math.nan])
    kernel_parity.require_equal(DECIDE, "logits", low.clone(), low)
    with pytest.raises(ParityError, match="logits"):
        kernel_parity.require_equal(DECIDE, "logits", low.nan_to_num(), low)


def test_work_repeats_and_least_bytes_are_weights_and_rows() -> None:
    step = make_step(SMALL)
    for works in (by_kernels(step, "torch"), by_eager(step)):
        assert set(works) == {SCORE, DECIDE, BOTH, STREAM}
    score = by_kernels(step, "torch")[SCORE]
    first, second = score(), score()
    assert torch.equal(first.score.nan_to_num(), second.score.nan_to_num())  # type: ignore[attr-defined]
    weights = 4 * (20 * 120 + 20 + 5 * 20 + 5 + 5 + 1)
    assert least_bytes(SCORE, step) == weights + 2 * 120 * 4 + 7 * 128
    assert least_bytes(BOTH, step) - least_bytes(SCORE, step) == least_bytes(DECIDE, step) == 7 * 128
    assert least_bytes(LOGITS_COPY, step) == 7 * 300 * 8


def test_a_cpu_is_timed_as_a_whole() -> None:
    calls: list[int] = []
    found = timed(lambda: calls.append(1), CPU, runs=5)
    assert len(calls) == 6
    assert found.device_us >= 0
    assert found.host_us is None


def test_the_plugins_share_is_of_the_models_least_time() -> None:
    def measured(op: str, provider: str, microseconds: float) -> Measured:
        return Measured(op, provider, 1, 1, microseconds, 5.0, 0, 0.0, None)

    shares = plugin_shares(
        [
            measured(BOTH, "torch eager", 99.0),
            measured(LOGITS_COPY, "torch eager", 2.0),
            measured(BOTH, "triton", 20.0),
        ],
        Bandwidth(H200.bandwidth, ""),
    )
    assert {each.case: each.plugin_us for each in shares} == {
        "greedy, shadow": 20.0,
        "greedy, active": 22.0,
        "sampled, shadow": 20.0,
        "sampled, active": 20.0,
    }
    # 7.5 billion weights of two bytes (without the embedding), and 131 kB of cache for each of 2,048 tokens.
    assert shares[0].backbone_us == pytest.approx(1e6 * (2 * 7.505e9 + 2048 * 131_072) / 4.8e12, rel=2e-3)
    assert shares[0].share == pytest.approx(20.0 / shares[0].backbone_us)


@on_cpu
def test_without_a_gpu_the_torch_path_is_measured_and_said_to_be() -> None:
    found: KernelBench = bench_kernels(rows=(1, 5), shares=(0.2, 1.0), shape=SMALL)
    assert "no GPU" in found.note
    assert found.dtype == "float32"
    assert found.plugin == ()
    assert {each.provider for each in found.measured} == {"torch eager", "specification"}
    assert {(each.rows, each.at_boundary) for each in found.measured} == {(1, 1), (5, 1), (5, 5)}
    for each in found.measured:
        assert each.device_us > 0
        assert each.gb_per_s == pytest.approx(each.least_bytes / each.device_us / 1e3)
        assert each.of_roofline is None
    assert {each.op for each in found.parity} == {SCORE, STREAM}


@on_cpu
@pytest.mark.slow
def test_the_command_prints_one_object() -> None:
    command = [sys.executable, "-c", "from desist.cli import main; main()", "bench", "kernels"]
    done = subprocess.run(
        [*command, "--json", "--quiet"],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "no GPU" in found["note"]
    assert {(each["rows"], each["at_boundary"]) for each in found["measured"]} == {
        (1, 1), (64, 2), (64, 16), (64, 64), (256, 8), (256, 64), (256, 256),
    }  # fmt: skip
    assert found["parity"][0]["error"] <= found["parity"][0]["bound"]
