"""The command line: flags, exit codes and `--json`, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from desist import __version__
from desist.data import read_traces, write_traces
from desist.probes.features import hidden_dir
from tests.fakes.hidden import planted
from tests.fakes.traces import make_traces

ROOT = Path(__file__).resolve().parents[2]


def desist(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from desist.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def as_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """stdout must be one JSON object and nothing else."""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_version() -> None:
    assert desist("--version").stdout.strip() == __version__


def test_help_lists_the_commands() -> None:
    words = desist("--help").stdout
    for command in ("serve", "demo", "collect", "train", "calibrate", "report", "replay", "import", "bench"):
        assert command in words


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), "nonsense"),
        (("calibrate", "missing.jsonl", "--alpha", "0.05", "--out", "x"), "missing.jsonl"),
        (("calibrate", "--out", "x"), "--alpha"),
        (("train", "missing.jsonl", "--out", "x"), "missing.jsonl"),
    ],
    ids=["unknown command", "no traces", "neither traces nor audits", "nothing to train on"],
)
def test_an_error_is_the_json_object(arguments: tuple[str, ...], says: str) -> None:
    done = desist(*arguments, "--json")
    assert done.returncode == 1
    assert says in as_json(done)["error"]["message"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--port", "99999"), "port"), (("--upstream", "localhost"), "upstream"), (("--mode", "on"), "mode")],
    ids=["port", "address", "mode"],
)
def test_bad_server_settings_are_named(arguments: tuple[str, ...], says: str) -> None:
    done = desist("serve", *arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_every_command_takes_json_and_quiet() -> None:
    for command in ("serve", "demo", "study", "bench", "collect", "train", "score", "calibrate", "replay"):
        words = desist(command, "--help").stdout
        assert "--json" in words, command
        assert "--quiet" in words, command


def test_train_saves_a_probe(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    traces, _ = planted(hidden_dir(file), 120, strength=2.0)
    write_traces(file, traces)
    done = desist("train", file, "--family", "logistic", "--out", tmp_path / "probe", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert as_json(done)["report"]["auroc"] > 0.8
    scored = desist("score", file, "--probe", tmp_path / "probe", "--out", tmp_path / "s.jsonl", "--json")
    assert as_json(scored)["written"] == 120
    assert all("probe" in b.scores for t in read_traces(tmp_path / "s.jsonl") for b in t.boundaries)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scored") / "traces.jsonl.gz"
    write_traces(path, make_traces(400, seed=3))
    return path


def test_replay(scored: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    done = desist("replay", scored, "--budgets", "100,200", "--out", out, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    table = as_json(done)["tables"][0]
    names = [row["policy"] for row in table["rows"]]
    assert "budget 100" in names
    assert "full run" in names
    assert "budget 200" in out.read_text()


def test_import_chat_and_tagged_text(tmp_path: Path) -> None:
    chat = tmp_path / "chat.jsonl"
    response = {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "reasoning": "Wait, 2 + 2.", "content": "The answer is 4."},
            }
        ],
    }
    chat.write_text(json.dumps(response) + "\n")
    text = tmp_path / "one.txt"
    text.write_text("<think>Hmm, 3.</think>The answer is 3.")
    out = tmp_path / "all.jsonl"
    done = desist("import", chat, text, "--out", out, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert as_json(done)["written"] == 2
    assert [trace.reasoning for trace in read_traces(out)] == ["Wait, 2 + 2.", "Hmm, 3."]


def test_import_reports_what_it_drops(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    good = {"id": "a", "problem": "p", "reasoning": "r", "answer_text": "1", "model": "m"}
    bad.write_text(json.dumps(good) + "\n" + '{"id": "b"}\n')
    done = desist("import", bad, "--format", "published", "--out", tmp_path / "o.jsonl", "--json", "--quiet")
    found = as_json(done)
    assert found["written"] + found["dropped"] == 2
    assert done.returncode == (2 if found["dropped"] else 0)
    if found["dropped"]:
        assert found["files"][0]["dropped"][0]["line"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--engine", "embedded", "--upstream", "http://h"), "leave --upstream out"),
        (("--engine", "upstream"), "give --upstream URL"),
        (("--engine", "vllm", "--vllm-arg", "--port"), "must not hold --port"),
        (("--engine", "vllm", "--upstream", "http://127.0.0.1:9"), "cannot be reached"),
    ],
)
def test_serve_refuses_what_does_not_fit(arguments: tuple[str, ...], says: str) -> None:
    done = desist("serve", "--port", "0", *arguments, "--json")
    assert done.returncode == 1
    assert says in as_json(done)["error"]["message"]
    assert "Traceback" not in done.stderr
