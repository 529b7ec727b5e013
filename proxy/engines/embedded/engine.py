"""The embedded engine: a transformers model in this process, batched in flight, with probes inside.

Knows how a generation request becomes a job and how events become the proxy's events. The work is done by
`worker` (thread), `runner` (steps) and `loading` (files).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from desist.controller import ModelProfile, Session, builtin_profile, get_profile
from desist.controller.core import Mode
from desist.data.errors import EngineError
from desist.data.schema import Sampling
from desist.proxy.engines.base import (
    Audited,
    Delta,
    Event,
    Finished,
    GenerationRequest,
    ModelCard,
    Need,
    ScoredBoundary,
)
from desist.proxy.engines.embedded.artefacts import Scorers, builtin_model, builtin_probes, load_scorers
from desist.proxy.engines.embedded.job import Done, Emitted, Failed, Job, beside_key
from desist.proxy.engines.embedded.loading import LoadedModel, default_sampling, load_model
from desist.proxy.engines.embedded.runner import Runner
from desist.proxy.engines.embedded.sampler import Draw
from desist.proxy.engines.embedded.worker import Stream, Worker
from desist.proxy.engines.refusal import RequestRefused

if TYPE_CHECKING:
    from desist.proxy.settings import Settings

__all__ = ["EmbeddedEngine"]

log = logging.getLogger(__name__)


class EmbeddedEngine:
    """Serves one local model folder. Implements `desist.proxy.engines.base.Engine`.

    `model_path` None: the built-in reasoner. `probe` and `rom`: folders of probe artefacts (None: no
    such score); `force` loads them in spite of other fingerprints, as uncertified. `profile` None: the
    built-in reasoner's for the built-in reasoner, else that of the name in `profile_name`.
    Every step is computed with `max_slots` rows, so that a request's tokens do not depend on who else
    is there. `sampling` is the model's own default.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        *,
        probe: str | Path | None = None,
        rom: str | Path | None = None,
        profile: ModelProfile | None = None,
        max_slots: int = 16,
        device: str = "auto",
        threads: int | None = None,
        min_answer_tokens: int = 256,
        force: bool = False,
    ) -> None:
        self._path = Path(model_path) if model_path is not None else builtin_model()
        self.profile = profile or builtin_profile()
        self._probe_path, self._rom_path, self._force = probe, rom, force
        self._max_slots, self._device, self._threads = max_slots, device, threads
        self._min_answer_tokens = min_answer_tokens
        self._model: LoadedModel | None = None
        self._scorers = Scorers()
        self._runner: Runner | None = None
        self._worker: Worker | None = None
        self._numbers = itertools.count()
        self._cap: Mode = "active"
        self._told: Callable[[Audited], None] | None = None
        self._following: set[asyncio.Task[None]] = set()
        self._live: dict[str, tuple[int, str]] = {}  # the key of each running choice's job

    @classmethod
    def from_settings(cls, settings: Settings, profile: str | None = None) -> EmbeddedEngine:
        """The engine that the proxy's settings ask for, not started."""
        builtin = settings.model is None
        probe, rom = builtin_probes() if builtin and settings.probe is None else (settings.probe, None)
        return cls(
            settings.model,
            probe=probe,
            rom=rom,
            profile=get_profile(profile)
            if profile
            else builtin_profile()
            if builtin
            else get_profile("qwen3"),
            device=settings.device,
            min_answer_tokens=settings.control.min_answer_tokens,
        )

    @property
    def offers(self) -> frozenset[Need]:
        offered: set[Need] = {"text", "logprobs"}
        if self._scorers.names or self._probe_path is not None or self._rom_path is not None:
            offered.add("hidden")
        return frozenset(offered)

    @property
    def sampling(self) -> Sampling:
        """The sampler that the model asks for, and that its certificates are for."""
        return default_sampling(self._path)

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """What runs: model, tokenizer, template, dtype, profile and probe. Empty before `start`."""
        if self._model is None:
            return {}
        return {**self._model.fingerprints_with(self.profile), **self._scorers.fingerprints}

    async def start(self) -> None:
        """Load model and probes and start the thread."""
        if self._worker is None:
            self._worker = await asyncio.to_thread(self._load)
            self._worker.start()

    def _load(self) -> Worker:
        model = load_model(self._path, device=self._device, threads=self._threads)
        model.require_tags(self.profile)
        expect = model.fingerprints_with(self.profile)
        self._scorers = load_scorers(
            self._probe_path, self._rom_path, expect=expect, force=self._force, device=model.network.device
        )
        self._model = model
        self._runner = Runner(
            model,
            max_rows=self._max_slots,
            width=self._max_slots,
            probe=self._scorers.probe,
            rom=self._scorers.rom,
        )
        return Worker(self._runner)

    async def close(self) -> None:
        """End the thread; requests in flight end with an `EngineError`."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.close)

    async def reload(
        self,
        *,
        probe: str | Path | None = None,
        rom: str | Path | None = None,
        certificates: Sequence[str | Path] | None = None,
        force: bool = False,
    ) -> None:
        """Score with other probes, of the same taps; None keeps them. `certificates` are the proxy's.

        Requests that run get no scores any more and so are not stopped. Raises `ProbeError`,
        `ArtifactMismatch` or `EngineError`; then everything stays as it was.
        """
        worker = self._worker
        if worker is None:
            raise EngineError("the embedded engine is not started. Call start() first.")
        if probe is None and rom is None:
            return
        probe, rom = probe or self._probe_path, rom or self._rom_path
        model = self._loaded()
        scorers = await asyncio.to_thread(
            load_scorers,
            probe,
            rom,
            expect=model.fingerprints_with(self.profile),
            force=force or self._force,
            device=model.network.device,
        )
        await worker.use(scorers.probe, scorers.rom)
        self._scorers, self._probe_path, self._rom_path = scorers, probe, rom

    async def set_cap(self, mode: Mode) -> None:
        """The kill switch: no request uses a mode above `mode` from now on; raising it is for new ones."""
        self._cap = mode
        if self._worker is not None and self._worker.alive:
            self._worker.limit(mode)

    async def ready(self) -> str | None:
        if self._worker is None:
            return "the model is not loaded yet"
        if not self._worker.alive:
            return f"the engine's thread has ended: {self._worker.failure}"
        return None

    async def models(self) -> tuple[ModelCard, ...]:
        model = self._loaded()
        return (ModelCard(model.name, model.max_length),)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Events of one choice. Raises `RequestRefused` for a request that can never be served."""
        if self._worker is None or self._runner is None:
            raise EngineError("the embedded engine is not started. Call start() first.")
        worker = self._worker
        key = (next(self._numbers), request.request_id)
        job = self._job(key, request, self._runner)
        stream = Stream(asyncio.get_running_loop())
        beside = Stream(stream.loop) if request.audit and self._told is not None else None
        worker.submit(replace(job, audit=beside is not None), stream, beside)
        self._live[request.request_id] = key
        ended = False
        try:
            while not ended:
                event = await stream.queue.get()
                if isinstance(event, Emitted):
                    yield Delta(event.channel, event.text, event.token_ids)
                elif isinstance(event, Failed):
                    ended = True
                    raise _as_engine_error(event.error)
                elif isinstance(event, Done):
                    ended = True
                    if beside is not None:
                        self._audit(request.request_id, event, beside, worker)
                    yield self._finished(event, request)
        finally:
            if self._live.get(request.request_id) == key:
                del self._live[request.request_id]
            if not ended and worker.alive:
                worker.abort(key)
                if beside is not None:
                    worker.abort(beside_key(key))

    async def stop(self, request_id: str) -> bool:
        """End the thinking of a running choice by hand; see `desist.proxy.engines.base.Stopping`."""
        key, worker = self._live.get(request_id), self._worker
        if key is None or worker is None:
            return False
        return await worker.stop_now(key)

    def tell_audits(self, told: Callable[[Audited], None]) -> None:
        """See `desist.proxy.engines.base.Auditing`."""
        self._told = told

    @property
    def audits_running(self) -> int:
        return 0 if self._worker is None else self._worker.n_beside

    def _audit(self, request_id: str, done: Done, beside: Stream, worker: Worker) -> None:
        """The client has its answer; see the run that goes on to its end, if there is one."""
        tokens = done.usage.completion_tokens
        if not done.runs_on:
            worker.abort(beside_key(done.key))
            if self._told is not None:
                self._told(Audited(request_id, None, done.content, done.content, tokens, tokens, 0))
            return
        task = asyncio.ensure_future(self._follow(request_id, done, beside))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _follow(self, request_id: str, done: Done, beside: Stream) -> None:
        while not isinstance(event := await beside.queue.get(), (Done, Failed)):
            pass
        if isinstance(event, Failed):
            log.warning("the audit of request %s did not come to its end: %s", request_id, event.error)
            return
        full, kept = event.usage.completion_tokens, done.decision.position if done.decision else 0
        if self._told is not None:
            tokens = done.usage.completion_tokens
            self._told(
                Audited(request_id, done.decision, done.content, event.content, tokens, full, full - kept)
            )

    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise EngineError("the embedded engine is not started. Call start() first.")
        return self._model

    def _job(self, key: Any, request: GenerationRequest, runner: Runner) -> Job:
        prompt = self._prompt_ids(request)
        sampling = request.sampling
        room = runner.max_length - len(prompt)
        max_tokens = sampling.max_tokens
        if max_tokens is None:
            if room < 1:
                raise RequestRefused(
                    f"the prompt has {len(prompt)} tokens, which leaves no room in the model's context of "
                    f"{runner.max_length}. Shorten the prompt."
                )
            max_tokens = room
        runner.check(len(prompt), max_tokens)
        session = Session(
            self.profile,
            self._loaded().vocabulary,
            request.control,
            prompt,
            max_tokens,
            min_answer_tokens=self._min_answer_tokens,
        )
        session.cap(self._cap)
        seed = secrets.randbits(53) if sampling.seed is None else sampling.seed
        draw = Draw(sampling.temperature, sampling.top_p, request.top_k)
        return Job(key, prompt, session, draw, seed, max_tokens, request.stop)

    def _prompt_ids(self, request: GenerationRequest) -> tuple[int, ...]:
        model = self._loaded()
        if request.messages is not None:
            return model.chat_ids(request.messages, request.template)
        if isinstance(request.prompt, str):
            return model.text_ids(request.prompt)
        ids = tuple(request.prompt or ())
        size = model.network.config.vocab_size
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise RequestRefused(f"token id {wrong} in the prompt: this model's ids are 0 to {size - 1}.")
        return ids

    def _finished(self, done: Done, request: GenerationRequest) -> Finished:
        return Finished(
            done.finish_reason,
            done.stop_reason,
            done.usage,
            done.decision,
            done.shadow,
            tuple(
                ScoredBoundary(
                    scored.boundary.index,
                    scored.boundary.position,
                    scored.boundary.kind,
                    scored.boundary.text,
                    scored.scores,
                    scored.decision,
                )
                for scored in done.boundaries
            ),
            self._uncontrolled(request),
        )

    def _uncontrolled(self, request: GenerationRequest) -> str | None:
        control = request.control
        scorer = control.policy.scorer
        if control.mode == "off" or control.policy.lam is None or scorer in self._scorers.names:
            return None
        return f"the policy decides by scorer '{scorer}', which this engine does not compute"


def _as_engine_error(error: Exception) -> Exception:
    if isinstance(error, EngineError):
        return error
    wrapped = EngineError(f"the request failed in the engine: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
