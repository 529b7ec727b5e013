"""Every command in the README is run: what a newcomer types must work.

The commands run in a folder of their own, with fewer problems than the README asks for. `make test` is
what runs this test; `vllm serve` needs vLLM and a stand-in takes its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.server import HTTP, live_server
from tests.fakes.upstream import FakeUpstream

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DESIST = f"{shlex.quote(sys.executable)} -c 'from desist.cli import main; main()'"
#: What the README's numbers become here, so that the commands take seconds.
SMALLER = (("--n 3000", "--n 160"), ("--n 1000", "--n 120"), ("--alpha 0.05", "--alpha 0.4"))
#: Commands that start a server and do not return.
SERVERS = ("make serve", "desist serve")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every command line: those in console blocks, and those in the text."""
    lines = [line for block in blocks("console") for line in block.splitlines() if line]
    inline = re.findall(r"`((?:desist|make|vllm) [^`]+)`", README)
    return [*lines, *(command for command in inline if command not in lines)]


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextlib.contextmanager
def server(command: str, cwd: Path) -> Iterator[str]:
    """A server started by a README command on a free port; yields the address that it prints."""
    process = subprocess.Popen(
        command, shell=True, cwd=cwd, stderr=subprocess.PIPE, text=True, env=environment(), process_group=0
    )
    assert process.stderr is not None
    seen: list[str] = []
    try:
        for line in process.stderr:
            seen.append(line)
            if found := re.search(r"(http://127\.0\.0\.1:\d+)/v1$", line.strip()):
                yield found[1]
                return
        pytest.fail(f"{command} did not start:\n{''.join(seen)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(timeout=60)
        process.stderr.close()


def test_the_readme_names_no_command_that_is_not_known_here() -> None:
    known = ("make serve", "make test", "make demo", "make study", "desist ", "vllm serve ")
    assert [command for command in commands() if not command.startswith(known)] == []


def test_make_serve_and_the_client_code() -> None:
    (code,) = blocks("python")
    with server("make serve ARGS='--port 0'", ROOT) as address:
        done = subprocess.run(
            [sys.executable, "-c", code.replace("http://127.0.0.1:8100", address)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\\boxed{" in done.stdout
    assert "stop_reason" in done.stdout


def test_make_test_runs_pytest() -> None:
    done = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "-m pytest" in done.stdout


def test_make_demo() -> None:
    done = subprocess.run(
        "make demo ARGS='--n 8 --quiet --no-rivals'", shell=True, cwd=ROOT, capture_output=True, text=True,
        check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "8 fresh problems" in done.stdout


def test_make_study(tmp_path: Path) -> None:
    done = subprocess.run(
        f"make study ARGS='--n 40 --out {tmp_path}'", shell=True, cwd=ROOT, capture_output=True, text=True,
        check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert {name: point["n"] for name, point in found["points"].items()} == {"a": 40, "b": 40}
    assert (tmp_path / "pareto.svg").read_text().startswith("<svg")
    assert "| (b) harm" in (tmp_path / "results.md").read_text()


def test_the_way_of_your_own_model(tmp_path: Path) -> None:
    """The console block from `collect` to `serve`, line by line."""
    (block,) = [one for one in blocks("console") if "desist collect" in one]
    ran = 0
    for line in block.splitlines():
        for large, small in SMALLER:
            line = line.replace(large, small)
        if line.startswith("desist serve"):
            with server(line.replace("desist", DESIST, 1) + " --port 0", tmp_path) as address:
                assert HTTP.get(f"{address}/readyz").status_code == 200
            ran += 1
            continue
        done = subprocess.run(
            line.replace("desist", DESIST, 1), shell=True, cwd=tmp_path, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        ran += 1
    assert ran == len(block.splitlines())


def test_before_your_own_vllm(tmp_path: Path) -> None:
    (line,) = [command for command in commands() if command.startswith("desist serve --upstream")]
    upstream = FakeUpstream()
    with live_server(upstream.app()) as url:
        command = line.replace("http://127.0.0.1:8000", url).replace("desist", DESIST, 1)
        with server(f"{command} --port 0", tmp_path) as address:
            code = (
                "from openai import OpenAI\n"
                f"client = OpenAI(base_url='{address}/v1', api_key='none')\n"
                "reply = client.chat.completions.create(model=client.models.list().data[0].id,\n"
                "    messages=[{'role': 'user', 'content': 'hi'}], extra_body={'desist': {'budget': 2000}})\n"
                "print(reply.choices[0].message.content)\n"
            )
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
