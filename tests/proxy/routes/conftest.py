"""A server behind the proxy that answers anything, and its address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.raw_upstream import RawUpstream
from tests.fakes.server import live_server


@pytest.fixture(scope="module")
def upstream() -> RawUpstream:
    return RawUpstream()


@pytest.fixture(scope="module")
def direct(upstream: RawUpstream) -> Iterator[str]:
    with live_server(upstream) as address:
        yield address
