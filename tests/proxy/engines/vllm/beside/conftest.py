"""One vLLM of a proxy's own for all modules here: to start one costs more than most of their tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from desist.proxy.engines.builtin import builtin_probes
from tests.fakes.own_vllm import Served, serve


@pytest.fixture(scope="session")
def running() -> Iterator[Callable[[], Served]]:
    with ExitStack() as servers:
        started: list[Served] = []

        def one() -> Served:
            if not (started and started[-1].alive):
                started.append(serve(servers, candidate=builtin_probes()[0]))
            return started[-1]

        yield one


@pytest.fixture
def served(running: Callable[[], Served]) -> Served:
    """Decides in the engine; the same probe runs in the proxy as a candidate. A new one after a kill."""
    return running()
