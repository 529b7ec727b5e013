"""The engine over a vLLM with the plugin: requests go through, scores and stops come back beside them.

Knows how a generation request becomes vLLM's, and how its stream and its events become one answer. Closing
the stream early makes vLLM abort the request. The work is done by `connection`, `run` and `remote`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from desist.controller.core import Control, Mode
from desist.data.errors import EngineError, UpstreamError
from desist.data.schema import Sampling
from desist.proxy.engines.base import Event, Finished, GenerationRequest, ModelCard, Need
from desist.proxy.engines.model import default_sampling
from desist.proxy.engines.upstream.bodies import path_of
from desist.proxy.engines.upstream.reading import list_models, read_chunks
from desist.proxy.engines.vllm.beside.bodies import capped, check_body, is_bound, is_controlled, vllm_body
from desist.proxy.engines.vllm.beside.child import stderr_line
from desist.proxy.engines.vllm.beside.commander import Commander
from desist.proxy.engines.vllm.beside.connection import Connection
from desist.proxy.engines.vllm.beside.counters import VllmCounters
from desist.proxy.engines.vllm.beside.followed import Followed, Observer, follow
from desist.proxy.engines.vllm.beside.outcome import outcome
from desist.proxy.engines.vllm.beside.owed import owed_answer, unpaid
from desist.proxy.engines.vllm.beside.run import VllmRun
from desist.proxy.engines.vllm.wire import CommandDone, Hello
from desist.proxy.settings import Settings, UpstreamSettings

if TYPE_CHECKING:
    from desist.proxy.engines.vllm.beside.proxy_probes import ProxyProbes

__all__ = ["Observer", "VllmEngine"]

_RELOAD_S = 60.0
_UNPARSED = (
    "vLLM runs without a reasoning parser, so that its grammar binds from the first token and nothing is "
    "thought. Start it with --reasoning-parser desist-{}"
)


class VllmEngine:
    """Serves one vLLM. Implements `desist.proxy.engines.base.Engine`; see `VllmSettings`.

    `observer` is told each boundary of each request, hidden states included where they are streamed; with
    it, requests without control are followed too. `log` gets the lines of a child.
    """

    passes_through = True

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Observer | None = None,
        log: Callable[[str], None] | None = stderr_line,
    ) -> None:
        self._settings, self._observer = settings, observer
        self._connection = Connection(settings, log)
        self.counters = VllmCounters(self._connection.totals)
        self._probes: ProxyProbes | None = None
        self._live: list[Followed] = []
        self._cap: Mode = "active"

    @property
    def offers(self) -> frozenset[Need]:
        offered: set[Need] = {"text", "logprobs"}
        if self.scorers:
            offered.add("hidden")
        return frozenset(offered)

    @property
    def scorers(self) -> frozenset[str]:
        """The scores that may decide. Empty before `start`."""
        hello = self._connection.hello
        if hello is None:
            return frozenset()
        if hello.decide == "proxy":
            return frozenset() if self._probes is None else self._probes.deciding
        return frozenset(hello.scorers)

    @property
    def hello(self) -> Hello | None:
        """What the plugin says of itself. None before `start`."""
        return self._connection.hello

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """What runs: model, tokenizer, template, dtype, profile and probes. Empty before `start`."""
        hello = self._connection.hello
        if hello is None:
            return {}
        return {**hello.fingerprints, **(self._probes.fingerprints if self._probes is not None else {})}

    @property
    def sampling(self) -> Sampling:
        """The sampler that the model asks for, which vLLM uses unless it was told otherwise."""
        facts = self._connection.facts
        return Sampling() if facts is None else default_sampling(facts.path)

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Show this engine's counters in `registry`."""
        self.counters.register(registry)

    @property
    def upstream(self) -> UpstreamSettings | None:
        """Where vLLM serves, for requests that are passed on untouched. None before `start`."""
        return self._connection.upstream

    async def start(self) -> None:
        """Start or reach vLLM; load probes that run here. Raises `EngineError` or `ProbeError`."""
        if self._connection.started:
            return
        await self._connection.start()
        hello = self._connection.hello
        assert hello is not None  # start waits for it
        if hello.decide == "proxy" or self._settings.vllm.candidate is not None:
            from desist.proxy.engines.vllm.beside.proxy_probes import ProxyProbes

            self._probes = await ProxyProbes.load(
                self._settings, hello, self._connection.facts, self._connection.send, self.counters
            )

    async def close(self) -> None:
        """End the child, if there is one; requests in flight end with an `EngineError`."""
        if self._probes is not None:
            await self._probes.remote.close()
        await self._connection.close()

    async def ready(self) -> str | None:
        return await self._connection.ready()

    async def models(self) -> tuple[ModelCard, ...]:
        return await list_models(self._connection.client)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Events of one choice. Raises `ApiError` (400) for a request that can never be served."""
        connection = self._connection
        if (reason := connection.other) is not None:
            raise EngineError(reason)
        check_body(request)
        asked, request = request.control, replace(request, control=capped(request.control, self._cap))
        parser = "" if connection.hello is None else connection.hello.parser
        bound = not parser and is_bound(request)
        if bound:  # there is no thinking to control
            request = replace(request, control=Control("off"))
        key = f"{request.request_id.replace('/', '-')}-{secrets.token_hex(4)}"
        with self._following(request, key) as followed:
            run = VllmRun(
                request,
                connection.profile,
                connection.facts,
                lambda: followed is not None and followed.stopped is not None,
                template_opens=connection.template_opens,
                parser=parser,
                bound=bound,
            )
            body = vllm_body(
                request,
                key,
                followed=followed is not None,
                min_answer_tokens=self._settings.control.min_answer_tokens,
            )
            # vLLM builds its own request id from this header; choices of one request must not share it.
            headers = {**request.headers, "x-request-id": key}
            async with connection.client.post(path_of(request), body, headers) as stream:
                async for chunk in read_chunks(stream):
                    for delta in run.feed(chunk):
                        yield delta
                    if run.answered:
                        break
            for delta in run.finish():
                yield delta
            heard = None
            if followed is not None:
                heard = await followed.end(self._settings.vllm.join_s)
                if not heard.complete:
                    self.counters.incomplete.inc()
            ended = outcome(run, request.control if bound else asked, heard)
            if bound and is_controlled(asked):
                ended = replace(ended, uncontrolled=_UNPARSED.format(connection.profile.name))
            async for event in self._paid(run, request, ended, {**headers, "x-request-id": f"{key}-answer"}):
                yield event

    async def _paid(
        self, run: VllmRun, request: GenerationRequest, ended: Finished, headers: Mapping[str, str]
    ) -> AsyncIterator[Event]:
        """The end of a generation, before it the answer if the model ended its turn without one."""
        connection = self._connection
        try:
            owed = owed_answer(run, request, connection.profile, connection.facts)
        except UpstreamError as error:
            yield unpaid(ended, error)
            return
        if owed is None:
            yield ended
            return
        for delta in owed.opening():
            yield delta
        async with connection.client.post("/completions", owed.body, headers) as stream:
            async for chunk in read_chunks(stream):
                for delta in owed.feed(chunk):
                    yield delta
        for delta in owed.finish():
            yield delta
        yield owed.finished(ended)

    async def stop_now(self, request_id: str) -> int:
        """End the thinking of a running request by hand; of how many choices.

        `request_id` is the id of the whole request, or that of one choice (`ID/NUMBER`). Raises
        `EngineError` where there is none that can be stopped, or where the plugin refuses.
        """
        keys = [
            each.key
            for each in self._live
            if each.request_id == request_id or each.request_id.rpartition("/")[0] == request_id
        ]
        if not keys:
            raise EngineError(
                f"no request {request_id!r} is followed by the plugin. It is over, or runs with mode 'off'."
            )
        told = [await self._connection.ask(partial(Commander.stop_now, key=key)) for key in keys]
        stopped = sum(any(answer.ok for answer in answers) for answers in told)  # one rank has each
        if not stopped:
            raise EngineError(f"request {request_id!r} was not stopped: {told[0][0].message}")
        return stopped

    async def stop(self, request_id: str) -> bool:
        """End the thinking of a running choice by hand; see `desist.proxy.engines.base.Stopping`."""
        return await self.stop_now(request_id) > 0

    async def set_cap(self, mode: Mode) -> None:
        """The kill switch: no request uses a mode above `mode` from now on.

        New requests obey whatever happens; raises `EngineError` where those that run may not.
        """
        self._cap = mode
        if self._probes is not None:
            self._probes.remote.limit(mode)
        answers = await self._connection.ask(lambda to: to.set_mode(mode))
        _require(answers, f"the mode was not limited to {mode}")

    async def reload(
        self,
        *,
        probe: str | Path | None = None,
        rom: str | Path | None = None,
        certificates: Sequence[str | Path] | None = None,
        force: bool = False,
    ) -> None:
        """Load other probes and certificates, of the same taps; None keeps what is there.

        Paths must exist on the engine's machine too. `fingerprints` then tells the new probes; whoever
        holds operating points must load them again. Raises `EngineError` or `ProbeError`.
        """
        if self._probes is not None and probe is not None and "probe" in self._probes.remote.names:
            await self._probes.reload(Path(probe), force=force)
            probe = None
        if probe is None and rom is None and certificates is None:
            return
        paths = None if certificates is None else [str(path) for path in certificates]
        answers = await self._connection.ask(
            lambda to: to.reload(
                probe=_text(probe), rom=_text(rom), certificates=paths, force=force, timeout_s=_RELOAD_S
            )
        )
        _require(answers, "nothing was reloaded")
        self._connection.accept()

    def _following(self, request: GenerationRequest, key: str) -> AbstractContextManager[Followed | None]:
        """The events of a request while it runs; None where the plugin has nothing to do for it."""
        if not is_controlled(request.control) and self._observer is None:
            return nullcontext()
        remote = None if self._probes is None else self._probes.remote
        return follow(self._connection.events, request, key, remote, self._observer, self._live)


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def _require(answers: Sequence[CommandDone], what: str) -> None:
    """Raise `EngineError` unless every rank obeyed."""
    refused = [answer.message for answer in answers if not answer.ok]
    if refused:
        raise EngineError(f"{what}: {refused[0]}")
