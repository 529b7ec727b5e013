"""The gate before every figure: on this device, in this run, do the kernels do what the specification does?

Decodes a few made-up steps twice, side by side: rows at boundaries, drafts of which some are refused, stops,
forced hand-offs. What is counted or decided must be equal, bit for bit; scores must be close.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from desist.data.errors import EngineError
from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import Decided, SlotControl
from desist.kernels.rows import Rows
from desist.proxy.studies.kernel_step import Shape, Step, draw_token, make_step
from desist.proxy.studies.kernel_work import DECIDE, SCORE, STREAM, decided, scored, streamed

__all__ = ["Parity", "ParityError", "prove", "relative_error", "require_equal"]

_STEPS = 6
#: Ten times the tests' bound: a GPU's own float32 product, with which these are compared, sums otherwise too.
_BOUND = 2e-5
# Half of the random scores are above it, so that within six steps some requests stop and hand off.
_CONTROL = SlotControl(lam=0.5, ema=0.5, patience=1, hard=5, handoff=(70, 71, 72), locked=(73,))


class ParityError(EngineError):
    """An implementation does not do what the specification does."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Largest relative RMS error of an op's scores over all shapes and steps, and what was allowed."""

    op: str
    provider: str
    error: float
    bound: float


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS of the difference over RMS of `expected`; infinite where NaN stands in other places."""
    if found.shape != expected.shape or not torch.equal(found.isnan(), expected.isnan()):
        return float("inf")
    there = ~expected.isnan()
    a, b = found[there].double(), expected[there].double()
    return float((a - b).norm() / b.norm().clamp(min=1e-30)) if len(b) else 0.0


def prove(device: torch.device, impl: Impl, shapes: tuple[Shape, ...]) -> list[Parity]:
    """Compare `impl` with the specification on all shapes. Raises `ParityError` at the first difference."""
    worst = {SCORE: 0.0, STREAM: 0.0}
    for shape in shapes:
        for op, error in _side_by_side(shape, device, impl):
            if not error <= _BOUND:
                raise ParityError(
                    f"{op}, impl={impl!r} on {device}, {shape}: the scores' relative error is {error:.2e}, "
                    f"allowed is {_BOUND:.0e}. Nothing was measured."
                )
            worst[op] = max(worst[op], error)
    return [Parity(op, impl, error, _BOUND) for op, error in worst.items()]


def _side_by_side(shape: Shape, device: torch.device, impl: Impl) -> Iterator[tuple[str, float]]:
    """Errors of the scores, step by step; whatever else differs raises."""
    spec, other = (make_step(shape, device, control=_CONTROL) for _ in range(2))
    rng = random.Random(shape.rows)
    for _ in range(_STEPS):
        other.rows = spec.rows
        expected, found = scored(spec, "torch"), scored(other, impl)
        for name in ("flags", "count", "zone", "compact", "n"):
            require_equal(SCORE, name, getattr(found, name), getattr(expected, name))
        yield SCORE, relative_error(found.score, expected.score)
        # Both go on from the same scores: these may differ in a last bit, what follows from them may not.
        logits, same = _logits(spec), _logits(other)
        decisions, others = decided(spec, expected, logits, "torch"), decided(other, expected, same, impl)
        for name in Decided._fields:
            require_equal(DECIDE, name, getattr(others, name), getattr(decisions, name))
        require_equal(DECIDE, "logits", same, logits)
        yield STREAM, relative_error(streamed(other, expected, impl), streamed(spec, expected, "torch"))
        spec.rows = _next_rows(spec, decisions.forced.tolist(), rng)


def _logits(step: Step) -> torch.Tensor:
    """Made-up ones, to be forced."""
    logits = torch.linspace(-4.0, 4.0, step.shape.vocabulary, device=step.device)
    return logits.repeat(step.shape.rows, 1).to(step.shape.dtype)


def require_equal(op: str, name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise `ParityError` unless both are the same, NaN for NaN."""
    same = found.dtype == expected.dtype and found.shape == expected.shape
    if not same or not torch.allclose(found, expected, rtol=0.0, atol=0.0, equal_nan=True):
        raise ParityError(f"{op}: {name} is not the specification's. Nothing was measured.")


def _next_rows(step: Step, forced: list[int], rng: random.Random) -> Rows:
    """The step after: each request has accepted some of its drafts, and read what was forced or drawn."""
    slot, position, token, local = (column.tolist() for column in step.rows)
    first = 0
    while first < len(slot):
        many = slot.count(slot[first])
        accepted = rng.randint(1, many)
        last = first + accepted - 1
        drawn = [draw_token(step.shape, rng) for _ in range(many)]
        if forced[last] >= 0:
            drawn[0] = forced[last]
        start = position[first] + accepted
        position[first : first + many] = range(start, start + many)
        token[first : first + many] = drawn
        first += many
    columns = (slot, position, token, local)
    return Rows(*(torch.tensor(column, dtype=torch.int32, device=step.device) for column in columns))
