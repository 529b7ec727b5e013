"""Runs the jobs of collections and floors on vLLM: the other runner beside the embedded one.

vLLM generates and the plugin tells hidden states; text, channels, counts and boundaries are made by the
embedded engine's own `Row`, fed with vLLM's tokens, so that both write the same records. Knows jobs and how
they are asked of an engine; nothing of labels, traces or files.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from desist.controller import Control, ModelProfile
from desist.data.errors import EngineError
from desist.proxy.engines.embedded.job import Event, Failed, Job, Reached, Row
from desist.proxy.engines.embedded.slots import Snapshot
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.vllm import wire
from desist.proxy.engines.vllm.config import PluginConfig
from desist.proxy.engines.vllm.offline.engine import Ask, Generator, News, start_offline
from desist.proxy.engines.vllm.offline.gathered import Gathered, Watched
from desist.proxy.engines.vllm.params import to_xargs

__all__ = ["VllmRunner", "vllm_runner"]

_TRIES = 3
_PATIENCE = 8  # steps in which the closing event must come; one or two are needed


@dataclass(slots=True)
class _Run:
    """A job in vLLM. `events`: its tokens go to the row when all of them are there; None: it needs none."""

    job: Job
    row: Row
    request_id: str
    tries: int
    events: Gathered | None
    token_ids: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    waited: int = 0


class VllmRunner:
    """Runs jobs without control on an engine with the plugin (see `batch_runs.BatchRunner`).

    `taps` and `token_tap` are those that the plugin was configured with. A generation whose events are not
    complete is run again; after three tries its job fails.
    """

    def __init__(
        self,
        engine: Generator,
        *,
        max_rows: int,
        taps: Sequence[int] = (),
        token_tap: int | None = None,
    ) -> None:
        self._engine, self._max_rows = engine, max_rows
        self._watched = Watched(tuple(taps), token_tap, engine.facts.hidden_size)
        self._waiting: deque[tuple[Job, int]] = deque()
        self._running: dict[str, _Run] = {}
        self._closing: dict[str, _Run] = {}
        self._numbers = itertools.count()
        if self._watched:
            engine.listen(self._hear)

    @property
    def model(self) -> ModelFacts:
        """The model as this runner can run it.

        With a token tap its context is one token shorter: vLLM never reads the last token that it makes, so
        one more is made than is kept.
        """
        facts = self._engine.facts
        if self._watched.token_tap is None or facts.max_length is None:
            return facts
        return replace(facts, max_length=facts.max_length - 1)

    @property
    def max_rows(self) -> int:
        return self._max_rows

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting or self._closing)

    def add(self, job: Job) -> None:
        """Queue a job; forks go before others. Raises `EngineError` for a job that may be stopped."""
        control = job.session.control
        if control.mode != "off" or control.budget is not None:
            raise EngineError(
                "this runner makes full runs and forced exits only: a job's control must have mode 'off' and "
                "no budget. Controlled generations go through the vLLM server."
            )
        if isinstance(job.prefix, Snapshot):
            raise EngineError("a fork of the embedded runner cannot go on in vLLM: its prefix must be ids.")
        if job.prefix is not None:
            self._waiting.appendleft((job, 1))
        else:
            self._waiting.append((job, 1))

    def step(self) -> list[Event]:
        """Go one token further in every generation."""
        events: list[Event] = []
        while self._waiting and len(self._running) < self._max_rows:
            events += self._start(*self._waiting.popleft())
        if self._running or self._closing:
            for news in self._engine.step():
                run = self._running.get(news.request_id)
                if run is not None:
                    events += self._take(run, news)
            for run in list(self._closing.values()):
                events += self._close(run)
        return events

    def fail_all(self, error: Exception) -> list[Event]:
        """Drop everything that waits or runs."""
        dropped = [*self._running.values(), *self._closing.values()]
        keys = [run.job.key for run in dropped] + [job.key for job, _ in self._waiting]
        for request_id in self._running:
            self._engine.abort(request_id)
        for kept in (self._waiting, self._running, self._closing):
            kept.clear()
        return [Failed(key, error) for key in keys]

    def _start(self, job: Job, tries: int) -> Iterator[Event]:
        facts = self._engine.facts
        row = Row(job, facts.vocabulary, facts.hidden_ids)
        while row.forced and row.finished is None:
            row.take_forced()
        events = Gathered(self._watched) if job.capture and self._watched else None
        run = _Run(job, row, f"desist-{next(self._numbers)}", tries, events)
        if row.finished is not None:  # no room but for the hand-off
            yield self._done(run)
            return
        forced, more = job.prefix is not None, job.capture and self._watched.token_tap is not None
        ask = Ask(
            (*_read_before(job), *row.token_ids),
            job.draw,
            job.seed,
            job.max_tokens - len(row.token_ids) + more,
            facts.end_ids,
            locked=next(iter(job.session.locked_ids), None) if forced else None,
            measured=forced,
        )
        if events is not None:
            control = Control("shadow", answer=job.session.control.answer)
            ask = replace(ask, xargs=to_xargs(run.request_id, control))
        try:
            self._engine.add(run.request_id, ask)
        except ValueError as error:
            yield Failed(job.key, error)
            return
        self._running[run.request_id] = run

    def _take(self, run: _Run, news: News) -> Iterator[Event]:
        """Take new tokens; a job without events is done as soon as its text is."""
        start = len(run.token_ids)
        run.token_ids += news.token_ids
        run.log_probabilities += news.log_probabilities
        if run.events is not None:
            if news.finished:
                self._closing[run.request_id] = self._running.pop(run.request_id)
            return
        yield from self._feed(run, start)
        if run.row.finished is not None or news.finished:
            del self._running[run.request_id]
            if not news.finished:
                self._engine.abort(run.request_id)
            yield self._done(run)

    def _close(self, run: _Run) -> Iterator[Event]:
        """Finish a job with events once all are there, or run it again."""
        assert run.events is not None
        run.waited += 1
        why = run.events.missing()
        if why is not None and run.events.closed is None and run.waited < _PATIENCE:
            return
        del self._closing[run.request_id]
        if why is None:
            reached = list(self._feed(run, 0))
            run.events.require([each.boundary for each in reached], len(run.row.token_ids))
            yield from reached
            yield self._done(run)
        elif run.tries < _TRIES:
            self._waiting.appendleft((run.job, run.tries + 1))
        else:
            what = (
                f"the plugin's events of a generation were incomplete {_TRIES} times, at last: {why}. vLLM's "
                "log tells errors of the plugin. What was collected is kept: run the command again."
            )
            yield Failed(run.job.key, EngineError(what))

    def _feed(self, run: _Run, start: int) -> Iterator[Reached]:
        """Feed the tokens from `start` on to the row; the boundaries on the way, if the job wants them."""
        row, ends = run.row, self._engine.facts.end_ids
        for place, token in enumerate(run.token_ids[start:], start):
            if row.finished is not None:
                return
            if run.log_probabilities and row.answering and token not in ends:
                row.measured(run.log_probabilities[place])
            row.accept(token, ends)
            if row.finished is None and row.judged:  # nothing is decided after the end
                row.session.decide(row.boundary)
                if row.boundary is not None and run.job.capture:
                    n = place + 1
                    hidden = np.empty(0, np.float32)
                    if run.events is not None:
                        hidden = run.events.hidden(row.boundary, n)
                    prefix = (*_read_before(run.job), *run.token_ids[:n])
                    yield Reached(run.job.key, row.boundary, row.reasoning.n_chars, hidden, prefix)

    def _done(self, run: _Run) -> Event:
        row, events = run.row, run.events
        if row.finished is None:
            what = (
                f"vLLM ended a generation after {len(run.token_ids)} tokens, before its end of turn and its "
                f"limit of {run.job.max_tokens}: the context is too short. Raise --max-model-len, or lower "
                "the limit."
            )
            return Failed(run.job.key, EngineError(what))
        row.flush()
        kept = None if events is None else events.token_rows(row.session.detector.position)
        if kept is not None:
            row.token_hidden = list(kept)
        return row.done(len(run.job.prompt_ids))

    def _hear(self, events: Sequence[wire.Event]) -> None:
        """Keep what is told of our generations; comes in the midst of `step`."""
        for event in events:
            if not isinstance(event, (wire.Hello, wire.CommandDone)):
                key = event.identity.key
                run = self._running.get(key) or self._closing.get(key)
                if run is not None and run.events is not None:
                    run.events.hear(event)


@contextmanager
def vllm_runner(
    model: str | Path,
    profile: ModelProfile,
    *,
    taps: Sequence[int] = (),
    token_tap: int | None = None,
    max_rows: int = 64,
    arguments: Sequence[str] = (),
) -> Iterator[VllmRunner]:
    """A runner on an engine of its own, which ends with the block. `profile` is one of the shipped ones.

    `arguments`: see `start_offline`. Raises `EngineError` where vLLM does not start, `ControlError` for a
    profile that is not known by its name.
    """
    config = PluginConfig(
        profile=profile.name,
        decide="proxy",
        stream="float32" if taps else None,
        taps=tuple(taps),
        token_tap=token_tap,
        events=None,
        commands=None,
    )
    engine = start_offline(model, config=config, max_rows=max_rows, arguments=arguments)
    try:
        yield VllmRunner(engine, max_rows=max_rows, taps=taps, token_tap=token_tap)
    finally:
        engine.close()


def _read_before(job: Job) -> tuple[int, ...]:
    """What a job has read before its first token."""
    assert not isinstance(job.prefix, Snapshot)  # see `add`
    return job.prompt_ids if job.prefix is None else job.prefix
