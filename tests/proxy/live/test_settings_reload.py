"""New settings, keys, certificates and probes for a proxy that runs; bad ones leave everything as it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from desist.data.errors import ArtifactMismatch
from desist.proxy import create_app
from desist.proxy.settings import Source
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server, wait_for
from tests.proxy.live.test_activation import Reloading, certificate

ROOT = Path(__file__).resolve().parents[3]
BASE = "reload_s: 0.05\n"


@contextmanager
def serving(path: Path, text: str, engine: Any = None, **flags: Any) -> Iterator[str]:
    path.write_text(BASE + text)
    source = Source(path, flags)
    app = create_app(source.load().settings, engine=engine or FakeEngine(), source=source)
    with live_server(app) as base:
        yield base


def swap(path: Path, text: str) -> None:
    """As editors and mounted config maps do: another file takes the place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def ask(base: str, key: str = "", **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return HTTP.post(f"{base}/v1/chat/completions", json=body, headers=headers)


def config(base: str) -> dict[str, Any]:
    found: dict[str, Any] = HTTP.get(f"{base}/readyz").json().get("details", {}).get("config") or {}
    return found


def count(base: str, name: str) -> float:
    rows = HTTP.get(f"{base}/metrics").text.splitlines()
    return float(next(row for row in rows if row.startswith(f"desist_config_{name}_total ")).split()[1])


def mode(base: str) -> str:
    return str(ask(base).json()["desist"]["mode"])


def test_a_new_file_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with serving(path, "control: {mode: shadow}\n") as base:
        assert mode(base) == "shadow"
        swap(path, BASE + "control: {mode: active, budget: 77}\nlimits: {max_choices: 2}\n")
        wait_for(lambda: mode(base) == "active")
        assert ask(base).json()["desist"]["budget"] == 77
        assert ask(base, n=3).status_code == 400
        assert (count(base, "reloads"), count(base, "reload_failures")) == (1, 0)
        assert config(base) == {}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("control: {mode: fast}\n", "control.mode is 'fast'"),
        ("contrl: {mode: shadow}\n", "Did you mean control?"),
        ("control: [\n", "is not YAML"),
        ("certificates: [none.json]\n", "none.json"),
        ("api_key_file: none\n", "cannot be read"),
        ("tenants: {t: {alpha: 7}}\n", "tenants.t.alpha"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_new_file_keeps_the_old_one_and_says_so(
    tmp_path: Path, bad: str | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "c.yaml"
    with serving(path, "control: {mode: shadow, budget: 9}\n") as base:
        if bad is None:
            path.unlink()
        else:
            swap(path, BASE + "limits: {max_choices: 1}\n" + bad)
        wait_for(lambda: bool(config(base)))
        assert words in config(base)["failure"]
        assert count(base, "reload_failures") == 1
        assert any("the old ones stay" in record.message for record in caplog.records)
        assert mode(base) == "shadow"
        assert ask(base, n=2).status_code == 200  # nothing of the bad file, not even its good part
        assert HTTP.get(f"{base}/readyz").status_code == 200
        swap(path, BASE + "control: {mode: off}\n")
        wait_for(lambda: mode(base) == "off")
        assert config(base) == {}


def test_flags_stay_above_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with serving(path, "", control={"mode": "shadow"}) as base:
        swap(path, BASE + "control: {mode: active, budget: 5}\n")
        wait_for(lambda: count(base, "reloads") == 1)
        assert mode(base) == "shadow"


def test_keys_and_tenants_change(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    path = tmp_path / "c.yaml"
    with serving(path, f"api_key_file: {keys}\ntenants: {{t: {{mode: 'off'}}}}\n") as base:
        assert (ask(base, "old").status_code, ask(base, "new").status_code) == (200, 401)
        keys.write_text("old\nnew t\n")  # the settings file itself is as it was
        wait_for(lambda: ask(base, "new").status_code == 200)
        assert ask(base, "new").json()["desist"]["mode"] == "off"
        keys.write_text("new t\n")
        wait_for(lambda: ask(base, "old").status_code == 401)
        keys.write_text("# nobody\n")
        wait_for(lambda: count(base, "reload_failures") == 1)
        assert ask(base, "new").status_code == 200  # not open to all, and not closed to those it had


def test_the_last_key_cannot_be_taken_from_a_public_proxy(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(BASE + "host: 0.0.0.0\napi_keys: [k]\n")
    source = Source(path, {})
    with live_server(create_app(source.load().settings, engine=FakeEngine(), source=source)) as base:
        swap(path, BASE + "host: 127.0.0.1\n")  # the socket stays where it is
        wait_for(lambda: "no client key" in config(base).get("failure", ""))
        assert ask(base).status_code == 401


def test_what_waits_for_the_next_start_is_told(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with serving(path, "") as base:
        swap(path, BASE + "port: 1\nmonitor: {gap: 5}\ncontrol: {mode: shadow}\n")
        wait_for(lambda: mode(base) == "shadow")
        assert config(base) == {"at_next_start": ["port", "monitor"]}
        swap(path, BASE)
        wait_for(lambda: config(base) == {})


def test_requests_in_flight_keep_what_they_began_with(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with serving(path, "control: {mode: shadow}\n", FakeEngine(pause_s=0.2)) as base:
        found: list[httpx.Response] = []
        threads = [
            threading.Thread(target=lambda more=more: found.append(ask(base, **more)))
            for more in ({}, {"stream": True})
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: "desist_requests_in_flight 2.0" in HTTP.get(f"{base}/metrics").text)
        swap(path, BASE + "control: {mode: off}\nstream: {desist_object: false}\n")
        wait_for(lambda: count(base, "reloads") == 1)
        assert not found
        for thread in threads:
            thread.join(10)
        assert {reply.headers["x-desist-mode"] for reply in found} == {"shadow"}
        whole = next(reply for reply in found if "event-stream" not in reply.headers["content-type"])
        assert whole.json()["desist"]["mode"] == "shadow"
        assert "desist" not in ask(base).json()


def test_certificates_and_probe_follow_the_file(tmp_path: Path) -> None:
    probe = tmp_path / "p1"
    probe.mkdir()
    (probe / "card").write_text("p1")
    first, second = certificate(tmp_path, "0.2", "p0"), certificate(tmp_path, "0.3", "p1")
    engine = Reloading()
    path = tmp_path / "c.yaml"

    def alpha(base: str) -> Any:
        return ask(base).json()["desist"]["alpha"]

    with serving(path, f"certificates: [{first}]\n", engine) as base:
        assert alpha(base) == 0.2
        swap(path, BASE + f"certificates: [{second}]\n")  # made for another probe
        wait_for(lambda: bool(config(base)))
        assert "ArtifactMismatch" in config(base)["failure"]
        assert alpha(base) == 0.2
        swap(path, BASE + f"probe: {probe}\ncertificates: [{second}]\n")
        wait_for(lambda: alpha(base) == 0.3)
        assert engine.reloads == [probe]
        other = certificate(tmp_path, "0.25", "p1")
        other.replace(second)  # another certificate under the same name
        wait_for(lambda: alpha(base) == 0.25)


def test_r64_a_models_certificate_made_for_something_else_is_refused(tmp_path: Path) -> None:
    fitting, foreign = certificate(tmp_path, "0.2", "p0"), certificate(tmp_path, "0.3", "p9")
    whole = f"certificates: [{certificate(tmp_path, '0.25', 'p0')}]\n"
    path = tmp_path / "c.yaml"
    path.write_text(BASE + whole + f"models: {{fake: {{certificates: [{foreign}]}}}}\n")
    source = Source(path, {})
    app = create_app(source.load().settings, engine=Reloading(), source=source)
    with pytest.raises(ArtifactMismatch, match="probe"):
        _started(app)
    block = f"models: {{fake: {{certificates: [{fitting}], mode: shadow}}}}\n"
    with serving(path, whole + block, Reloading()) as base:
        told = ask(base, model="fake").json()["desist"]
        assert (told["alpha"], told["mode"]) == (0.2, "shadow")
        told = ask(base, model="org/other").json()["desist"]
        assert (told["alpha"], told["mode"]) == (0.25, "active")
        swap(path, BASE + whole + f"models: {{fake: {{certificates: [{foreign}]}}}}\n")
        wait_for(lambda: bool(config(base)))
        assert ask(base, model="fake").json()["desist"]["alpha"] == 0.2


def _started(app: Any) -> None:
    import asyncio

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(start())


def test_aliases_are_names(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with serving(path, "models: {fake: {aliases: [quick], mode: 'off'}}\n") as base:
        reply = ask(base, model="quick")
        assert (reply.json()["model"], reply.json()["desist"]["mode"]) == ("fake", "off")
        assert ask(base, model="quicker").status_code == 404
        listed = HTTP.get(f"{base}/v1/models").json()["data"]
        assert [(each["id"], each.get("root")) for each in listed] == [
            ("fake", None), ("quick", "fake"), ("org/other", None),
        ]  # fmt: skip
        assert HTTP.get(f"{base}/v1/models/quick").json()["root"] == "fake"
        swap(path, BASE + "models: {fake: {aliases: [quicker]}}\n")
        wait_for(lambda: ask(base, model="quicker").status_code == 200)
        assert ask(base, model="quick").status_code == 404


SERVING = """
import sys
from pathlib import Path
from desist.proxy.lifecycle.serve import serve
from desist.proxy.settings import Source
from tests.fakes.engine import FakeEngine
source = Source(Path(sys.argv[1]), {"port": 0})
serve(source.load().settings, engine=FakeEngine(), source=source, announce=lambda url: print(url, flush=True))
"""


def test_sighup_reloads_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("reload_s: 0\ncontrol: {mode: shadow}\n")
    with subprocess.Popen(
        [sys.executable, "-c", SERVING, str(path)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        base = process.stdout.readline().strip()
        assert mode(base) == "shadow"
        path.write_text("reload_s: 0\ncontrol: {mode: active}\n")
        assert mode(base) == "shadow"  # nobody looks by himself
        process.send_signal(signal.SIGHUP)
        _until(lambda: mode(base) == "active")
        path.write_text("nonsense: 1\n")
        process.send_signal(signal.SIGHUP)
        _until(lambda: bool(config(base)))
        assert json.loads(HTTP.get(f"{base}/readyz").text)["status"] == "ready"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "the old ones stay" in err


def _until(condition: Callable[[], bool]) -> None:
    wait_for(condition, 10)
