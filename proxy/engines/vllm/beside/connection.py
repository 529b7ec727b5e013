"""The proxy's connection to one vLLM: the child, if it started one, HTTP, events, commands.

Knows how the parts start, fit together and end; nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from pydantic import SecretStr

from desist.controller import ModelProfile, get_profile
from desist.controller.fingerprints import profile_fingerprints
from desist.data.errors import EngineError, UpstreamError
from desist.proxy.engines.builtin import builtin_model
from desist.proxy.engines.model import ModelFacts, read_model
from desist.proxy.engines.upstream.client import UpstreamClient
from desist.proxy.engines.vllm.beside.child import Child
from desist.proxy.engines.vllm.beside.commander import Commander
from desist.proxy.engines.vllm.beside.launch import Launch, endpoints, plan_launch, profile_name
from desist.proxy.engines.vllm.beside.subscriber import EventStream
from desist.proxy.engines.vllm.wire import Command, CommandDone, Hello
from desist.proxy.settings import Settings, UpstreamSettings

__all__ = ["Connection"]

logger = logging.getLogger(__name__)
_REACH_S = 10.0
_READY_S = 5.0


class Connection:
    """Everything between this proxy and one vLLM. `log` gets each line that a child prints.

    `facts`: the model as its folder tells it; None where there is no such folder here.
    """

    def __init__(self, settings: Settings, log: Callable[[str], None] | None) -> None:
        self._settings, self._log = settings, log
        self.profile: ModelProfile = get_profile(profile_name(settings))
        self.facts: ModelFacts | None = None
        self.upstream: UpstreamSettings | None = None  # where vLLM serves; the child's is known at its start
        self._launch: Launch | None = None
        self._child: Child | None = None
        self._client: UpstreamClient | None = None
        self._events: EventStream | None = None
        self._commanders: tuple[Commander, ...] = ()
        self._accepted: Mapping[str, str] = {}
        self.started = False

    async def start(self) -> None:
        """Start the child or reach the server, hear the plugin, and check that all belongs together.

        Raises `EngineError`; what was started is then ended by `close`.
        """
        settings, upstream = self._settings, self._settings.upstream
        if upstream is None:
            self._launch = await asyncio.to_thread(plan_launch, settings)
            upstream = UpstreamSettings(url=self._launch.url, api_key=SecretStr(self._launch.api_key))
            events, commands = self._launch.events, self._launch.commands
        else:
            events, commands = endpoints(settings)
        self.upstream = upstream
        self._client = UpstreamClient(upstream)
        await self._client.start()
        self._events = EventStream(events)
        await self._events.start()
        if self._launch is not None:
            self._child = Child(
                self._launch.arguments,
                f"{self._launch.url}/health",
                environ=self._launch.environ,
                log=self._log if settings.vllm.log else None,
                stop_s=settings.vllm.stop_s,
            )
            await self._child.start(settings.vllm.start_s)
        else:
            await self._client.get("/models", _REACH_S)
        await self._hear()
        self.facts = await asyncio.to_thread(self._read_facts)
        self._commanders = tuple(Commander(endpoint, self._events) for endpoint in commands)
        self.accept()
        self.started = True

    def accept(self) -> None:
        """Take what runs now, by its fingerprints, for what this proxy was made for."""
        self._accepted = {} if self.hello is None else self.hello.fingerprints

    async def close(self) -> None:
        """End everything. More than once is fine."""
        self.started = False
        for commander in self._commanders:
            commander.close()
        self._commanders = ()
        if self._events is not None:
            await self._events.close()
        if self._client is not None:
            await self._client.close()
        if self._child is not None:
            await self._child.close()
        if self._launch is not None:
            self._launch.clean()

    async def ready(self) -> str | None:
        """None if requests can be served, else why not."""
        if not self.started:
            return "vLLM is starting"
        if (reason := self.failure or self.other) is not None:
            return reason
        try:
            await self.client.get("/models", _READY_S)
        except UpstreamError as error:
            return str(error)
        return None

    @property
    def other(self) -> str | None:
        """How what runs differs from what was accepted: a server that was started again, or reloaded."""
        for hello in self.events.hellos:
            if hello is not None and hello.fingerprints != self._accepted:
                names = sorted(set(hello.fingerprints.items()) ^ set(self._accepted.items()))
                which = ", ".join(dict.fromkeys(name for name, _ in names))
                return (
                    f"another {which} runs in vLLM than the certificates here were checked against. Start "
                    "the proxy again, or load the other one through it."
                )
        return None

    @property
    def template_opens(self) -> bool:
        """Whether the chat template is said to open thinking."""
        upstream = self._settings.upstream
        return upstream is not None and upstream.thinking_opened_by_template

    @property
    def failure(self) -> str | None:
        """Why the child has ended, if it has."""
        return None if self._child is None else self._child.failure

    @property
    def client(self) -> UpstreamClient:
        """HTTP to the server. Raises `EngineError` where there is none, or where the child has ended."""
        if self._client is None:
            raise EngineError("the vLLM engine is not started. Call start() first.")
        if (failure := self.failure) is not None:
            raise EngineError(failure)
        return self._client

    @property
    def events(self) -> EventStream:
        if self._events is None:
            raise EngineError("the vLLM engine is not started. Call start() first.")
        return self._events

    @property
    def hello(self) -> Hello | None:
        """What runs, as the first rank that is there tells it."""
        if self._events is None:
            return None
        return next((hello for hello in self._events.hellos if hello is not None), None)

    def totals(self) -> Mapping[str, int]:
        """The event stream's counters, and the commands that found nobody."""
        counted = {} if self._events is None else dict(self._events.totals())
        return counted | {"unsent_commands": sum(commander.unsent for commander in self._commanders)}

    def send(self, command: Command) -> bool:
        """Send to every rank, of which one knows the request, without waiting; whether all got it."""
        sent = [commander.send(command) for commander in self._commanders]
        return all(sent)

    async def ask(self, what: Callable[[Commander], Awaitable[CommandDone]]) -> list[CommandDone]:
        """The answer of every rank. Raises `EngineError` where one does not answer."""
        if not self.started:
            raise EngineError("the vLLM engine is not started. Call start() first.")
        return list(await asyncio.gather(*map(what, self._commanders)))

    async def _hear(self) -> None:
        """Wait for the greeting of every rank and check it against the settings."""
        vllm = self._settings.vllm
        try:
            hellos = await self.events.hello(vllm.hello_s)
        except EngineError as error:
            if self._child is not None and self._child.failure is not None:
                raise EngineError(self._child.failure) from error
            raise EngineError(
                f"{error} docs/vllm.md shows the three lines that a server of your own needs."
            ) from error
        first = hellos[0]
        for hello in hellos[1:]:
            if (hello.decide, hello.fingerprints) != (first.decide, first.fingerprints):
                raise EngineError(
                    f"data-parallel rank {hello.rank} runs another model, probe or configuration than rank "
                    f"{first.rank}. Start all ranks alike."
                )
        if vllm.decide is not None and first.decide != vllm.decide:
            raise EngineError(
                f"vllm.decide is '{vllm.decide}', but the plugin runs with decide '{first.decide}'. Change "
                "one of the two."
            )
        ours = profile_fingerprints(self.profile)["profile"]
        if first.fingerprints.get("profile", ours) != ours:
            raise EngineError(
                f"the plugin runs with another model profile than '{self.profile.name}'. Set vllm.profile to "
                "the profile named in its --additional-config."
            )
        if first.decide == "proxy" and not first.outside:
            raise EngineError(
                "decide: proxy needs commands from outside, which the plugin refuses under tensor "
                "parallelism. Use decide: engine, or serve without it."
            )

    def _read_facts(self) -> ModelFacts | None:
        """Tokenizer and sizes of what runs, from a folder that is here. Raises `EngineError` for another."""
        settings = self._settings
        if settings.serves_builtin:
            folder: Path | None = builtin_model()
        elif settings.model is None:
            folder = None
        else:
            folder = _local_folder(settings.model)
        if folder is None:
            logger.warning(
                "the model's folder is not known here (--model), so that thinking is told from the answer by "
                "tags in the text, or by vLLM's own reasoning parser"
            )
            return None
        told = self.hello.fingerprints if self.hello is not None else {}
        facts = read_model(folder, dtype=told.get("dtype", ""), weights=False)
        for name in ("tokenizer", "template"):
            if name in told and told[name] != facts.fingerprints[name]:
                raise EngineError(
                    f"the {name} in {folder} is not the one that vLLM runs. Give --model the folder that "
                    "vLLM was started with."
                )
        return facts


def _local_folder(model: str) -> Path | None:
    """The folder of a model named by path, or by hub name if its files are here. Downloads nothing."""
    if Path(model).is_dir():
        return Path(model)
    with contextlib.suppress(Exception):  # not there, not a name, or no such package
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, local_files_only=True))
    return None
