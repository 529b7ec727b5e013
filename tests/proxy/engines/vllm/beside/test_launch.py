"""How vLLM is started: command line, plugin configuration, private sockets, and what is refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from desist.data.errors import EngineError
from desist.proxy import Settings, SettingsError, load_settings
from desist.proxy.engines.builtin import builtin_model, builtin_probes
from desist.proxy.engines.vllm.beside.launch import Launch, endpoints, on_cpu, plan_launch
from desist.proxy.engines.vllm.config import PROCESSOR, PluginConfig, config_of
from desist.proxy.live.certificates import certificate_paths
from desist.proxy.settings import UpstreamSettings, VllmSettings

pytest.importorskip("vllm", reason="needs vLLM or its CPU build")


def value(launch: Launch, name: str) -> str:
    return launch.arguments[launch.arguments.index(name) + 1]


def config(launch: Launch) -> PluginConfig:
    found = config_of(json.loads(value(launch, "--additional-config")))
    assert found is not None
    return found


def planned(**settings: Any) -> Launch:
    launch = plan_launch(Settings(engine="vllm", **settings))
    launch.clean()
    return launch


def test_the_built_in_reasoner() -> None:
    launch = plan_launch(Settings(engine="vllm"))
    assert launch.folder is not None
    assert stat.S_IMODE(launch.folder.stat().st_mode) == 0o700
    assert launch.arguments[:2] == ("-m", "vllm.entrypoints.openai.api_server")
    assert value(launch, "--model") == str(builtin_model())
    assert value(launch, "--served-model-name") == "desist-reasoner"
    assert value(launch, "--logits-processors") == PROCESSOR
    assert value(launch, "--reasoning-parser") == "desist-desist-reasoner"  # or a grammar binds thinking
    assert launch.url == f"http://127.0.0.1:{value(launch, '--port')}"
    made = config(launch)
    assert (made.profile, made.decide, made.stream) == ("desist-reasoner", "engine", None)
    assert (made.probe, made.rom) == (builtin_probes()[0], None)  # a streaming probe is asked for
    assert made.certificates == certificate_paths(Settings(engine="vllm")) != ()
    assert (made.events, made.commands) == (launch.events[0], launch.commands[0])
    assert launch.events[0].startswith("ipc://")
    assert launch.environ["VLLM_API_KEY"] == launch.api_key
    assert launch.api_key not in repr(launch) + " ".join(launch.arguments)
    assert ("--enforce-eager" in launch.arguments) == on_cpu()
    launch.clean()
    assert not launch.folder.exists()


def test_the_proxy_decides_on_streamed_states() -> None:
    made = config(planned(vllm=VllmSettings(decide="proxy")))
    card = json.loads((builtin_probes()[0] / "card.json").read_text())  # type: ignore[operator]
    assert (made.decide, made.stream, made.probe, made.rom) == ("proxy", "float32", None, None)
    assert made.taps == tuple(card["taps"])
    candidate = builtin_probes()[0]
    beside = config(planned(vllm=VllmSettings(candidate=candidate, stream="bfloat16")))
    assert (beside.decide, beside.stream, beside.taps) == ("engine", "bfloat16", tuple(card["taps"]))
    assert beside.probe is not None


def test_a_model_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "theirs")
    vllm = VllmSettings(args=("--max-num-seqs", "8"), port=9999, ranks=2, events="tcp://127.0.0.1:7000")
    launch = planned(model="org/name", vllm=vllm)
    assert value(launch, "--model") == "org/name"
    assert "--served-model-name" not in launch.arguments
    assert launch.arguments[-2:] == ("--max-num-seqs", "8")
    assert value(launch, "--data-parallel-size") == "2"
    assert value(launch, "--reasoning-parser") == "desist-qwen3"
    assert "--structured-outputs-config" not in launch.arguments
    assert launch.url == "http://127.0.0.1:9999"
    assert launch.events == ("tcp://127.0.0.1:7000", "tcp://127.0.0.1:7001")
    assert launch.commands[1] == launch.commands[0] + "_dp1"
    assert launch.environ["VLLM_PLUGINS"] == "theirs,desist"
    made = config(launch)
    assert (made.profile, made.probe, made.certificates) == ("qwen3", None, ())


@pytest.mark.parametrize("args", [("--reasoning-parser", "qwen3"), ("--reasoning_parser=qwen3",)])
def test_a_reasoning_parser_of_one_s_own(args: tuple[str, ...]) -> None:
    launch = planned(model="org/name", vllm=VllmSettings(args=args))
    named = [argument for argument in launch.arguments if argument.startswith("--reasoning")]
    assert named == [args[0]]


def test_what_cannot_be_started_is_refused(tmp_path: Path) -> None:
    other = "cuda" if on_cpu() else "cpu"
    with pytest.raises(EngineError, match=f"device is '{other}'"):
        on_cpu(other)
    with pytest.raises(ValueError, match="holds no probe card"):
        plan_launch(Settings(engine="vllm", probe=tmp_path, vllm=VllmSettings(decide="proxy")))


def test_endpoints_of_a_server_of_one_s_own() -> None:
    settings = Settings(engine="vllm", upstream=UpstreamSettings(url="http://h"), vllm=VllmSettings(ranks=2))
    events, commands = endpoints(settings)
    assert events == ("tcp://127.0.0.1:8111", "tcp://127.0.0.1:8112")
    assert commands == ("tcp://127.0.0.1:8131", "tcp://127.0.0.1:8132")
    assert not settings.serves_builtin
    assert certificate_paths(settings) == ()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"args": ["--additional-config={}"]}, "vllm.args .*desist writes itself"),
        ({"args": ["--port", "1"]}, "must not hold --port"),
        ({"decide": "elsewhere"}, "vllm.decide is 'elsewhere'"),
        ({"decide": "proxy", "rom": "folder"}, "decide: proxy sends boundaries only"),
        ({"strem": "float32"}, "Did you mean stream"),
        ({"join_s": 0}, "vllm.join_s"),
    ],
)
def test_bad_settings_are_named(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(None, {"engine": "vllm", "vllm": flags}, {})
