"""One plain vLLM for all modules here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.plain_vllm import plain_vllm


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base address of the real vLLM without the plugin."""
    with plain_vllm(tmp_path_factory.mktemp("vllm") / "log") as url:
        yield url
