"""The kernel's decisions are the stop machine's, token for token, over random steps of a made-up server."""

from __future__ import annotations

import pytest

from desist.kernels.choice import Impl
from tests.kernels.decide_and_force.cases import DEVICE
from tests.kernels.decide_and_force.serving import Server


def served(seed: int, steps: int, *, drafts: int, impl: Impl) -> Server:
    server = Server(seed, slots=5, drafts=drafts, impl=impl, device=DEVICE)
    for _ in range(steps):
        server.step()
    print(
        f"seed {seed}, {drafts} drafts, {impl}: {steps} steps, {server.rows} rows, {server.made} requests, "
        f"{server.stops} stops, {server.holds} holds, {server.withdrawals} withdrawals, "
        f"{server.refused} refusals, {server.preempted} preemptions"
    )
    return server


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize(("drafts", "steps"), [(0, 800), (1, 500), (2, 400), (3, 300)])
def test_two_thousand_random_steps(drafts: int, steps: int, impl: Impl) -> None:
    server = served(1000 + drafts, steps, drafts=drafts, impl=impl)
    assert min(server.stops, server.holds, server.withdrawals, server.preempted) > 5
    assert server.refused > 50 or not drafts


@pytest.mark.extended
@pytest.mark.parametrize("drafts", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_random_steps(seed: int, drafts: int) -> None:
    served(seed, 500, drafts=drafts, impl="triton")
