"""Settings: precedence, unknown keys, bounds, masked secrets; and serving with them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from desist.data.errors import ArtifactMismatch, ControlError
from desist.proxy import Settings, SettingsError, load_settings
from desist.proxy.lifecycle.serve import listen, serve
from tests.fakes.engine import FakeEngine


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("DESIST_"):
            monkeypatch.delenv(name)


def test_defaults() -> None:
    made = load_settings()
    assert (made.host, made.port, made.engine) == ("127.0.0.1", 8100, "embedded")
    assert made.control.mode == "active"


def test_flags_before_environment_before_file_before_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nhost: file\ncontrol: {mode: shadow, budget: 5, alpha: 0.02}\ndrain_s: 3\n")
    monkeypatch.setenv("DESIST_PORT", "2")
    monkeypatch.setenv("DESIST_HOST", "env")
    monkeypatch.setenv("DESIST_CONTROL__BUDGET", "6")
    made = load_settings(file, {"port": 3, "host": None, "control": {"answer": "extract", "mode": None}})
    assert (made.port, made.host, made.drain_s) == (3, "env", 3)
    assert (made.control.mode, made.control.budget, made.control.answer) == ("shadow", 6, "extract")
    assert made.control.alpha == "0.02"


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('engine = "upstream"\ncertificates = ["a.json"]\n[upstream]\nurl = "http://h:8000/"\n')
    made = load_settings(file)
    assert made.upstream is not None
    assert made.upstream.url == "http://h:8000/v1"
    assert made.certificates == (Path("a.json"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1\n", r"prot is 1: not a known setting. Did you mean port\?"),
        ("control: {mod: off}\n", r"control.mod is .*not a known setting. Did you mean mode\?"),
        ("upstream: {url: 'http://h', ky: 1}\n", "upstream.ky is 1: not a known setting"),
        ("port: 99999\n", "port is 99999: .*less than or equal to 65535"),
        ("port: many\n", "port is 'many': .*integer"),
        ("control: {mode: fast}\n", "control.mode is 'fast'"),
        ("engine: upstream\n", "upstream.url is not set: give --upstream URL"),
        ("engine: upstream\nupstream: {url: 'ftp://x'}\n", "upstream.url is 'ftp://x': must be an http"),
        ("- 1\n", "holds list, not keys and values"),
        ("a: [\n", "is not YAML"),
        ("control: {alpha: true}\n", "control.alpha is True"),
    ],
)
def test_bad_files_name_the_key(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words):
        load_settings(file)


def test_all_problems_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {"port": -1, "drain_s": -1, "wat": 1})
    assert all(word in str(caught.value) for word in ("port", "drain_s", "wat"))


def test_bad_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESIST_TRACES", "somewhere")  # belongs to another part
    load_settings()
    monkeypatch.setenv("DESIST_CONTROL__WAT", "1")
    with pytest.raises(SettingsError, match=r"control\.wat"):
        load_settings()
    monkeypatch.delenv("DESIST_CONTROL__WAT")
    monkeypatch.setenv("DESIST_UPSTREM__URL", "http://x")
    with pytest.raises(
        SettingsError, match=r"DESIST_UPSTREM__URL is not a setting. Did you mean DESIST_UPSTREAM"
    ):
        load_settings()


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read.*Check --config"):
        load_settings(tmp_path / "none.yaml")


def test_secrets_are_masked() -> None:
    flags: dict[str, Any] = {"api_keys": ["hush"], "upstream": {"url": "http://h", "api_key": "quiet"}}
    made = load_settings(None, flags)
    assert "hush" not in str(made.shown()) + repr(made)
    assert "quiet" not in str(made.shown()) + repr(made)
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {"api_keys": [{"a": "hush"}]})
    assert "hush" not in str(caught.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1


def test_a_taken_address_is_told() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ControlError, match=r"cannot listen on .* --port"):
        serve(Settings(port=taken.getsockname()[1]), engine=FakeEngine())


def test_small_answers_are_not_delayed() -> None:
    """asyncio sets TCP_NODELAY only on sockets that name their protocol."""
    with listen("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP


def test_what_stops_the_start_is_raised() -> None:
    failure = ArtifactMismatch("made for something else")
    with pytest.raises(ArtifactMismatch, match="something else"):
        serve(Settings(port=0), engine=FakeEngine(start_error=failure))


SERVING = """
import sys
from desist.proxy import Settings
from desist.proxy.lifecycle.serve import serve
from tests.fakes.engine import FakeEngine
engine = FakeEngine()
serve(Settings(port=0), engine=engine, announce=lambda url: print(url, flush=True))
print(engine.life)
print("torch" in sys.modules)
"""


def test_serving_until_told_to_stop() -> None:
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", SERVING], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert out.splitlines() == ["['start', 'close']", "False"], err
    assert err == ""


STARTING = """
import asyncio
from desist.proxy import Settings
from desist.proxy.lifecycle.serve import serve
from tests.fakes.engine import FakeEngine
class Slow(FakeEngine):
    async def start(self):
        await super().start()
        print("starting", flush=True)
        await asyncio.sleep(600)
engine = Slow()
serve(Settings(port=0), engine=engine, announce=print)
print(engine.life)
"""


def test_a_start_that_is_told_to_stop_ends_what_it_began() -> None:
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", STARTING], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("['start', 'close']\n", "", 0)
