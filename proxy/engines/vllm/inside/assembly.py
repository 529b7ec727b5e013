"""Puts one engine's plugin together: model facts, probes, certificates, runtime, sockets.

Knows vLLM's configuration object by its fields. The only place that remembers which engines of this process
have a plugin.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from desist._version import __version__
from desist.data.errors import EngineError, ProbeError
from desist.proxy.engines.embedded.artefacts import Scorers, load_scorers
from desist.proxy.engines.model import ModelFacts, read_model
from desist.proxy.engines.vllm.config import PluginConfig, offset_endpoint
from desist.proxy.engines.vllm.inside.evidence import Stream
from desist.proxy.engines.vllm.inside.runtime import Runtime
from desist.proxy.engines.vllm.inside.scoring import Scoring, layer_of
from desist.proxy.engines.vllm.params import AlphaPolicy
from desist.proxy.engines.vllm.wire import (
    WIRE_VERSION,
    Command,
    CommandDone,
    Hello,
    Ping,
    Reload,
    SetMode,
    StopNow,
)

if TYPE_CHECKING:
    from desist.proxy.engines.vllm.inside.commands import CommandInbox
    from desist.proxy.engines.vllm.inside.device_path import DevicePath
    from desist.proxy.engines.vllm.inside.publisher import Publisher

__all__ = ["Installed", "assemble", "dtype_text", "forget", "installed", "remember", "runtimes"]

logger = logging.getLogger(__name__)
_installed: dict[int, tuple[Any, Installed]] = {}


@dataclass(slots=True)
class Installed:
    """The plugin of one engine in this process. `path`: what controls requests on the device, if at all.

    `parser`: vLLM's reasoning parser, empty without one.
    """

    config: PluginConfig
    facts: ModelFacts
    runtime: Runtime
    runner: str
    device: Any
    rank: int
    inner_layers: tuple[int, ...]
    publisher: Publisher | None = None
    inbox: CommandInbox | None = None
    path: DevicePath | None = None
    parser: str = ""

    @property
    def by_host(self) -> Collection[str]:
        """The controlled requests whose rows the host reads."""
        tracked = self.runtime.tracked
        return tracked if self.path is None else tracked.keys() - self.path.requests.keys()

    @property
    def n_layers(self) -> int:
        """The last tap, after the final norm."""
        return self.facts.n_layers

    def obey_commands(self) -> None:
        """Obey the commands that have come. Never waits."""
        if self.inbox is not None:
            for command, prepared in self.inbox.take():
                self.answer(self._obeyed(command, prepared))

    def obey_when_idle(self, command: Command, prepared: Any) -> CommandDone | None:
        """An engine without requests makes no steps: the thread that takes commands obeys them itself."""
        if isinstance(command, Ping):
            running, errors = len(self.runtime.tracked), self.runtime.errors
            apart = 0 if self.path is None else self.path.replay.disagreements
            told = f"{running} controlled requests, {errors} errors, {apart} disagreements with the device"
            return CommandDone(command.id, True, told)
        return None if self.runtime.tracked else self._obeyed(command, prepared)

    def answer(self, done: CommandDone) -> None:
        """Tell the other side what became of a command."""
        if self.publisher is not None:
            self.publisher.publish([done])

    def hello(self) -> Hello:
        """What runs here."""
        import vllm

        runtime = self.runtime
        return Hello(
            WIRE_VERSION,
            __version__,
            vllm.__version__,
            self.runner,
            self.rank,
            self.config.decide,
            runtime.stream.dtype,
            runtime.stream.layers or tuple(sorted(runtime.scoring.layers)),
            self.facts.hidden_size,
            tuple(sorted(runtime.scoring.names)) if runtime.score_here else (),
            {**self.facts.fingerprints_with(runtime.profile), **runtime.scoring.scorers.fingerprints},
            runtime.cap,
            runtime.outside,
            self.inbox.endpoint if self.inbox is not None else None,
            self.parser,
        )

    def prepare(self, command: Reload) -> tuple[Scoring, tuple[AlphaPolicy, ...]]:
        """Load what a reload names, in the thread that takes commands. Raises what is wrong with it."""
        config = self.config.model_copy(
            update={
                key: value
                for key, value in (
                    ("probe", command.probe and Path(command.probe)),
                    ("rom", command.rom and Path(command.rom)),
                    ("force", command.force or None),
                    (
                        "certificates",
                        None if command.certificates is None else tuple(map(Path, command.certificates)),
                    ),
                )
                if value is not None
            }
        )
        scorers = _scorers(config, self.facts, self.runtime, self.device)
        scoring = Scoring(scorers, self.n_layers, impl=config.kernels)
        there = {*self.inner_layers, self.n_layers}
        if not scoring.layers <= there:
            raise ProbeError(
                f"the new probe reads the layers {sorted(scoring.layers)}, this engine was started with "
                f"{sorted(there)}: taps are part of the compiled model. Start vLLM again with this probe."
            )
        return scoring, _certificates(config, self.facts, self.runtime, scoring)

    def close(self) -> None:
        """End threads and sockets."""
        if self.inbox is not None:
            self.inbox.close()
        if self.publisher is not None:
            self.publisher.close()

    @contextmanager
    def _device_told(self) -> Iterator[None]:
        """Around a change of running requests: what ran before it is heard of first, then the device is told.

        The one place where the host waits for the device: commands are rare, and both sides must weigh one
        at the same token.
        """
        path = self.path if self.runtime.tracked else None
        if path is not None:
            path.settle()
        yield
        if path is not None:
            path.tell()

    def _obeyed(self, command: Command, prepared: Any) -> CommandDone:
        try:
            return self._obey(command, prepared)
        except Exception as error:  # one bad command must not lose those that came with it
            return CommandDone(command.id, False, f"{type(error).__name__}: {error}")

    def _obey(self, command: Command, prepared: Any) -> CommandDone:
        runtime = self.runtime
        if not runtime.outside:
            return CommandDone(
                command.id,
                False,
                "refused: with tensor parallelism a command would reach the ranks at different steps",
            )
        if isinstance(command, StopNow):
            with self._device_told():
                concerned = runtime.stop_now(command)
            if concerned:
                return CommandDone(command.id, True, f"{concerned} running")
            return CommandDone(command.id, False, f"no running request has the key {command.key!r}")
        if isinstance(command, SetMode):
            with self._device_told():
                runtime.limit(command.cap)
            return CommandDone(command.id, True, f"no request uses a mode above {command.cap}")
        if isinstance(command, Reload):
            runtime.scoring, runtime.certificates = prepared
            if self.publisher is not None:
                self.publisher.publish([self.hello()])
            return CommandDone(
                command.id, True, f"scorers {', '.join(sorted(runtime.scoring.names)) or 'none'}"
            )
        return CommandDone(command.id, True, "running")


def installed(vllm_config: Any) -> Installed | None:
    """The plugin of the engine with this configuration object, or None."""
    found = _installed.get(id(vllm_config))
    return found[1] if found is not None else None


def remember(vllm_config: Any, plugin: Installed) -> None:
    """The engine with this configuration object has this plugin, until it ends."""
    _installed[id(vllm_config)] = (vllm_config, plugin)


def runtimes() -> list[Runtime]:
    """The runtimes of this process's engines, the newest last."""
    return [plugin.runtime for _, plugin in _installed.values()]


def forget(vllm_config: Any) -> None:
    """The engine ends."""
    found = _installed.pop(id(vllm_config), None)
    if found is not None:
        found[1].close()


def dtype_text(vllm_config: Any) -> str:
    """The fingerprint "dtype" of a vLLM engine: type, quantisation and type of the KV cache."""
    parts = [str(vllm_config.model_config.dtype).removeprefix("torch.")]
    quantization = vllm_config.model_config.quantization
    kv = str(vllm_config.cache_config.cache_dtype)
    if quantization:
        parts.append(str(quantization))
    if kv not in ("auto", parts[0]):
        parts.append(f"kv:{kv}")
    return "+".join(parts)


def assemble(vllm_config: Any, config: PluginConfig, *, runner: str) -> Installed:
    """Build and remember the plugin of an engine whose model has just been loaded.

    Raises `EngineError`, `ProbeError`, `ArtifactMismatch` or `CalibrationError` where parts do not fit.
    """
    from vllm.distributed.parallel_state import get_tp_group

    parallel = vllm_config.parallel_config
    facts = read_model(_folder(vllm_config.model_config.model), dtype=dtype_text(vllm_config))
    profile = config.model_profile
    facts.require_tags(profile)
    outside = parallel.tensor_parallel_size == 1
    runtime = Runtime(
        profile,
        facts.vocabulary,
        Scoring(Scorers(), facts.n_layers),
        min_answer_tokens=config.min_answer_tokens,
        score_here=config.decide == "engine",
        outside=outside,
    )
    device = vllm_config.device_config.device
    scorers = _scorers(config, facts, runtime, device)
    runtime.scoring = Scoring(scorers, facts.n_layers, impl=config.kernels)
    runtime.certificates = _certificates(config, facts, runtime, runtime.scoring)
    runtime.stream = _stream(config, facts.n_layers, runtime.scoring)
    read = {*runtime.scoring.layers, *runtime.stream.layers}
    if runtime.stream.token_layer is not None:
        read.add(runtime.stream.token_layer)
    rank = int(getattr(parallel, "data_parallel_index", None) or parallel.data_parallel_rank or 0)
    plugin = Installed(config, facts, runtime, runner, device, rank, tuple(sorted(read - {facts.n_layers})))
    plugin.parser = vllm_config.structured_outputs_config.reasoning_parser or ""
    if get_tp_group().rank_in_group == 0 and (config.events is not None or config.commands is not None):
        _connect(plugin)
    remember(vllm_config, plugin)
    logger.info(
        "desist: decide=%s scorers=%s inner layers=%s events=%s",
        config.decide, sorted(runtime.scoring.names), plugin.inner_layers,
        plugin.publisher.endpoint if plugin.publisher else None,
    )  # fmt: skip
    return plugin


def _connect(plugin: Installed) -> None:
    from desist.proxy.engines.vllm.inside.commands import CommandInbox
    from desist.proxy.engines.vllm.inside.publisher import Publisher

    config = plugin.config
    if config.commands is not None:  # first, so that the first Hello tells its address
        plugin.inbox = CommandInbox(
            offset_endpoint(config.commands, plugin.rank),
            prepare=plugin.prepare,
            answer=plugin.answer,
            handle=plugin.obey_when_idle,
        )
    if config.events is not None:
        plugin.publisher = Publisher(
            offset_endpoint(config.events, plugin.rank),
            rank=plugin.rank,
            capacity=config.queue,
            hello=plugin.hello,
        )
        plugin.runtime.sinks.append(plugin.publisher.publish)


def _folder(model: str) -> Path:
    """The local folder of a model that vLLM has loaded, by path or by hub name."""
    if Path(model).is_dir():
        return Path(model)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, local_files_only=True))
    except Exception as error:
        raise EngineError(
            f"the files of model {model!r} are not found ({error}), so its fingerprints cannot be checked. "
            "Give the folder of the model to --model."
        ) from error


def _scorers(config: PluginConfig, facts: ModelFacts, runtime: Runtime, device: Any) -> Scorers:
    return load_scorers(
        config.probe,
        config.rom,
        expect=facts.fingerprints_with(runtime.profile),
        force=config.force,
        device=device,
    )


def _certificates(
    config: PluginConfig, facts: ModelFacts, runtime: Runtime, scoring: Scoring
) -> tuple[AlphaPolicy, ...]:
    if not config.certificates:
        return ()
    from desist.calibration.certificate import load_for_running

    prints = {**facts.fingerprints_with(runtime.profile), **scoring.scorers.fingerprints}
    return tuple(load_for_running(path, prints, force=config.force) for path in config.certificates)


def _stream(config: PluginConfig, n_layers: int, scoring: Scoring) -> Stream:
    kind = config.stream or ("float32" if config.decide == "proxy" else None)
    wanted: Sequence[int] = [layer_of(tap, n_layers) for tap in config.taps]
    if not wanted and kind is not None:
        wanted = scoring.ordered_layers
    token = None if config.token_tap is None else layer_of(config.token_tap, n_layers)
    return Stream(tuple(wanted), kind, token)
