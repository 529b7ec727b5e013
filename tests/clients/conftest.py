"""The proxies that unchanged clients are tried on: the embedded engine, and the real vLLM (extended).

vLLM stands behind the proxy in two ways: with the plugin, and plain, as anybody runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from desist.controller import builtin_profile
from desist.proxy import Settings, create_app
from desist.proxy.engines.builtin import builtin_model
from desist.proxy.settings import UpstreamSettings
from desist.proxy.studies.builtin import builtin_problems
from tests.fakes.own_vllm import serve
from tests.fakes.plain_vllm import plain_vllm
from tests.fakes.server import live_server


@dataclass(frozen=True)
class Served:
    """A proxy on the built-in reasoner. `grammar`: its engine takes tools and schemas."""

    base: str
    grammar: bool

    @property
    def url(self) -> str:
        return f"{self.base}/v1"

    @cached_property
    def _vocabulary(self) -> Any:
        from desist.proxy.engines.model import read_model

        return read_model(builtin_model(), dtype="float32", weights=False).vocabulary

    def tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of a text, a forced closing sentence left out."""
        return len(self._vocabulary.encode(text.partition(" I have enough to answer.")[0]))


@pytest.fixture(scope="session")
def embedded() -> Iterator[Served]:
    pytest.importorskip("torch")
    with live_server(create_app(Settings())) as base:
        yield Served(base, grammar=False)


@pytest.fixture(scope="session")
def vllm() -> Iterator[Served]:
    with ExitStack() as servers:
        yield Served(serve(servers).base, grammar=True)


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A vLLM that knows nothing of desist, with two settings that the built-in reasoner needs for JSON."""
    compact = '{"backend": "xgrammar", "disable_any_whitespace": true}'
    args = ("--structured-outputs-config", compact)
    with plain_vllm(
        tmp_path_factory.mktemp("plain") / "log", args, VLLM_ENFORCE_STRICT_TOOL_CALLING="0"
    ) as url:
        settings = Settings(
            engine="upstream", upstream=UpstreamSettings(url=url, profile=builtin_profile().name)
        )
        with live_server(create_app(settings)) as base:
            yield Served(base, grammar=True)


extended = pytest.mark.extended


@pytest.fixture(
    params=["embedded", pytest.param("vllm", marks=extended), pytest.param("upstream", marks=extended)]
)
def served(request: pytest.FixtureRequest) -> Served:
    """Each of them in turn."""
    found: Served = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def problems() -> list[str]:
    """Problems that the model was not trained on."""
    return [problem.text for problem in builtin_problems("test", 17, 16)]
