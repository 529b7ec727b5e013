"""Forcing: the kernel equals the specification bit for bit, and leaves alone what is not its own."""

from __future__ import annotations

import random

import pytest
import torch

from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import Decided, SlotControl, SlotSettings, force
from desist.kernels.rows import Rows
from desist.proxy.engines.vllm.inside.forcing import apply_at_rows
from desist.proxy.engines.vllm.inside.runtime import Force
from desist.proxy.engines.vllm.inside.tracked import Forced
from tests.kernels.decide_and_force.cases import DEVICE, IMPLS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INTEGER = {4: torch.int32, 2: torch.int16}


def asked_of(
    forced: list[int], locked: list[bool], ids: tuple[int, ...] = ()
) -> tuple[Decided, Rows, SlotSettings]:
    """What `force` reads, for rows of one slot each."""
    count = len(forced)
    settings = SlotSettings(max(1, count), locked=max(1, len(ids)), device=DEVICE)
    for slot in range(count):
        settings.enter(slot, SlotControl(locked=ids))
    number = torch.arange(count, dtype=torch.int32, device=DEVICE)
    zero = torch.zeros_like(number)
    decided = Decided(
        zero.to(torch.uint8),
        zero.double(),
        torch.tensor(forced, dtype=torch.int32, device=DEVICE),
        torch.tensor(locked, dtype=torch.bool, device=DEVICE),
    )
    return decided, Rows(number, zero, zero, zero), settings


def some_logits(seed: int, rows: int, vocabulary: int, dtype: torch.dtype) -> torch.Tensor:
    """Logits of which some are masked, infinite or no number."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator) * 20
    for value in (-torch.inf, -torch.inf, torch.inf, torch.nan):
        logits[torch.rand(logits.shape, generator=generator) < 0.07] = value
    return logits.to(device=DEVICE, dtype=dtype)


def assert_same_bits(one: torch.Tensor, other: torch.Tensor) -> None:
    kind = INTEGER[one.element_size()]
    assert torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 2, 31, 64, 65, 300, 9001])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_kernel_equals_specification(rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    rng = random.Random(vocabulary)
    forced = [rng.choice((-1, rng.randrange(vocabulary), vocabulary, vocabulary - 1)) for _ in range(rows)]
    locked = [token < 0 and rng.random() < 0.7 for token in forced]
    ids = (0, vocabulary - 1, vocabulary // 2, vocabulary + 3, vocabulary // 2)
    asked = asked_of(forced, locked, ids)
    logits = some_logits(rows + vocabulary, rows, vocabulary, dtype)
    one, other = logits.clone(), logits.clone()
    force(one, *asked, impl="torch")
    force(other, *asked, impl="triton")
    assert_same_bits(one, other)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_a_wider_buffer(impl: Impl, dtype: torch.dtype) -> None:
    """Only the named rows' own columns change: not the padding beside them, not the rows between."""
    wide = some_logits(3, 9, 80, dtype)
    before = wide.clone()
    logits = wide[1::2, 7:70]
    force(logits, *asked_of([5, -1, -1, 62], [False, False, True, False], (1,)), impl=impl)
    changed = before.view(INTEGER[wide.element_size()]) != wide.view(INTEGER[wide.element_size()])
    assert not changed[::2].any()
    assert not changed[:, :7].any()
    assert not changed[:, 70:].any()
    assert not changed[3].any()
    assert changed[5].sum() <= 1


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_does_what_the_plugin_does_on_the_host(impl: Impl, dtype: torch.dtype) -> None:
    logits = some_logits(1, 6, 40, dtype)
    logits[:2, 7] = 1.0
    logits[2, 7] = -torch.inf
    logits[3, 7] = torch.nan
    forced, locked, ids = [7, 7, 7, 7, -1, -1], [False] * 4 + [True, False], (3, 39)
    expected = logits.clone()
    forces = [Force(row, row, 0, Forced(token)) for row, token in enumerate(forced) if token >= 0]
    apply_at_rows(expected, [*forces, Force(4, 4, 0, Forced(None, frozenset(ids)))])
    force(logits, *asked_of(forced, locked, ids), impl=impl)
    assert_same_bits(logits, expected)


@pytest.mark.parametrize("impl", IMPLS)
def test_locked_logits_stay_finite_in_every_type(impl: Impl) -> None:
    for dtype in DTYPES:
        logits = torch.ones(1, 20, dtype=dtype, device=DEVICE)
        force(logits, *asked_of([-1], [True], (4,)), impl=impl)
        assert logits[0, 4] < -60000
        assert logits.isfinite().all()
        assert (logits == 1).sum() == 19


def test_logits_that_do_not_lie_next_to_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="last stride 1"):
        force(torch.ones(6, 1, device=DEVICE).expand(6, 4).T.contiguous().T, *asked_of([0] * 6, [False] * 6))
