"""Copies of a step: what is new since the last one, and what was written over before it was copied."""

from __future__ import annotations

import torch

from desist.kernels.decide_and_force import Record, Ring, Verdict
from desist.kernels.decide_and_force.ring import LEAST
from desist.proxy.engines.vllm.inside.device_copies import StepCopy


def record(position: int) -> Record:
    return Record(1, position, position, Verdict.SCORE, 0.5, 0.5)


def copy_of(ring: Ring | None) -> StepCopy:
    columns = torch.arange(6, dtype=torch.int32).view(2, 3)
    return StepCopy(columns, ring, torch.tensor([[7], [8]]), torch.tensor([1, 0], dtype=torch.int32))


def test_each_step_brings_what_is_new() -> None:
    ring = Ring()
    ring.append([record(1), record(2)])
    first = copy_of(ring)
    ring.append([record(3)])
    assert [each.position for each in first.records(0)[0]] == [1, 2]
    found, head, lost = copy_of(ring).records(2)
    assert ([each.position for each in found], head, lost) == ([3], 3, 0)
    assert copy_of(None).records(3) == ([], 3, 0)


def test_what_the_sampler_said_comes_along_and_later_changes_do_not() -> None:
    columns = torch.zeros(2, 1, dtype=torch.int32)
    made = StepCopy(columns, None, torch.tensor([[7]]), torch.tensor([1]))
    columns += 1
    assert made.columns.tolist() == [[0], [0]]
    assert (made.sampled.tolist(), made.num_sampled.tolist()) == ([[7]], [1])


def test_records_that_were_written_over_are_counted() -> None:
    ring = Ring(LEAST)
    ring.append([record(number) for number in range(LEAST + 5)])
    found, head, lost = copy_of(ring).records(0)
    assert (len(found), head, lost) == (LEAST, LEAST + 5, 5)
