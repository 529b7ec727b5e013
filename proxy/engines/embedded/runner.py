"""The synchronous core of the embedded engine: jobs in, events out, one token per row and step.

A step reads one token in every row, scores the boundaries just read, lets each row's session decide, and
chooses every row's next token: a forced one after a stop, else a sampled one. A cue is scored when its
own hidden state is there, before the next token is chosen, so that a stop acts without delay. Knows no
threads, no asyncio and no files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal

import torch

from desist.controller.core import Mode
from desist.probes.base import Probe, StreamingProbe
from desist.proxy.engines.embedded.beside import Beside, Parked
from desist.proxy.engines.embedded.job import Done, Emitted, Event, Failed, Job, Reached, Row
from desist.proxy.engines.embedded.needs import Model
from desist.proxy.engines.embedded.sampler import choose
from desist.proxy.engines.embedded.scoring import RowScores
from desist.proxy.engines.embedded.slots import SlotBatch, Snapshot, StepOutput
from desist.proxy.engines.refusal import RequestRefused

__all__ = ["Model", "Runner"]


class Runner:
    """Runs jobs side by side on one model.

    `probe` scores boundaries (score name "probe"), `rom` every reasoning token (score name "rom", read at
    boundaries). `taps`: the hidden states that jobs with `capture` get at their boundaries (default: the
    probe's). `token_tap`: the tap that they keep for every reasoning token (None: none).
    `width`: see `SlotBatch`.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_rows: int = 16,
        width: int | None = None,
        probe: Probe | None = None,
        rom: StreamingProbe | None = None,
        taps: Sequence[int] | None = None,
        token_tap: int | None = None,
    ) -> None:
        self._model = model
        wanted = taps if taps is not None else (probe.card.taps if probe else ())
        needed = [*wanted, *(probe.card.taps if probe else ()), *(rom.card.taps if rom else ())]
        self._slots = SlotBatch(
            model.network,
            max_rows=max_rows,
            width=width,
            taps=[*needed, *([] if token_tap is None else [token_tap])],
        )
        self._scores = RowScores(self._slots, probe, rom)
        self._capture_taps = self._scores.places(wanted)
        self._token_tap = None if token_tap is None else self._scores.places([token_tap])[0]
        self._rows: list[Row] = []
        self._waiting: deque[Job] = deque()
        self._beside = Beside()

    def use(self, probe: Probe | None, rom: StreamingProbe | None) -> None:
        """Score with these probes, of taps that are read already. Raises `ProbeError` for other taps.

        Jobs that are here now get no scores any more: their thresholds were made for other probes, and
        without evidence nothing is stopped.
        """
        self._scores.use(probe, rom, [job.key for job in self._waiting] + [row.job.key for row in self._rows])

    @property
    def max_length(self) -> int:
        """Prompt and generated tokens of one job at most."""
        return self._slots.max_length

    @property
    def max_rows(self) -> int:
        return self._slots.max_rows

    @property
    def scorers(self) -> frozenset[str]:
        """Names of the scores that are computed at boundaries."""
        return self._scores.names

    @property
    def n_running(self) -> int:
        return len(self._rows)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._waiting or self._beside)

    @property
    def n_beside(self) -> int:
        """Audited jobs that run on or wait to."""
        return len(self._beside) + sum(bool(row.job.generated) for row in self._rows)

    def add(self, job: Job) -> None:
        """Queue a job. It joins the running ones when a slot is free; forks go before others."""
        self.check(len(job.prompt_ids), job.max_tokens)
        if job.prefix is not None:
            self._waiting.appendleft(job)
        else:
            self._waiting.append(job)

    def check(self, prompt_tokens: int, max_tokens: int) -> None:
        """Raise `RequestRefused` for a job that can never run, naming the limits."""
        if prompt_tokens < 1:
            raise RequestRefused("the prompt is empty; give at least one token.")
        if max_tokens < 1:
            raise RequestRefused(f"max_tokens is {max_tokens}; ask for at least one token.")
        if prompt_tokens + max_tokens > self.max_length:
            raise RequestRefused(
                f"{prompt_tokens} prompt tokens and {max_tokens} to generate exceed the model's context of "
                f"{self.max_length} tokens. Shorten the prompt or lower max_tokens."
            )

    def limit(self, mode: Mode) -> None:
        """The kill switch, for the jobs that are here."""
        for job in (*self._waiting, *(row.job for row in self._rows)):
            job.session.cap(mode)

    def abort(self, key: Hashable) -> bool:
        """Drop a job, waiting or running; its slot is free at once. False if it is not there."""
        for job in self._waiting:
            if job.key == key:
                self._waiting.remove(job)
                return True
        for number, row in enumerate(self._rows):
            if row.job.key == key:
                self._leave(number)
                return True
        return self._beside.abort(key)

    def stop_now(self, key: Hashable) -> bool:
        """Close the thinking of a job by hand, at the next token outside hold-off zones.

        False if it is not there, or if its thinking is over.
        """
        for job in self._waiting:
            if job.key == key:
                job.session.stop_now()
                return True
        for row in self._rows:
            if row.job.key == key and not row.answering:
                row.session.stop_now()
                return True
        return False

    def fail_all(self, error: Exception) -> list[Event]:
        """Drop everything after an error that concerns the whole batch."""
        keys = [row.job.key for row in self._rows] + [job.key for job in self._waiting]
        keys += self._beside.clear()
        self._waiting.clear()
        while self._rows:
            self._leave(len(self._rows) - 1)
        return [Failed(key, error) for key in keys]

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Go one token further in every row."""
        events: list[Event] = []
        self._admit(events)
        if not self._rows:
            return events
        output = self._slots.step([row.pending for row in self._rows])
        self._decide(output, events)
        self._choose(output.logits, events)
        for number in range(len(self._rows) - 1, -1, -1):
            row = self._rows[number]
            if row.finished is not None and not self._unread(row):
                self._finish(row, events)
                self._leave(number)
        return events

    def run(self, jobs: Iterable[Job]) -> list[Event]:
        """Run jobs to their end. For callers that have nothing else to do meanwhile."""
        for job in jobs:
            self.add(job)
        events: list[Event] = []
        while self.busy:
            events += self.step()
        return events

    def _admit(self, events: list[Event]) -> None:
        self._make_room()
        while self._waiting and len(self._rows) < self._slots.max_rows:
            self._begin(self._waiting.popleft(), events)
        while self._beside and len(self._rows) < self._slots.max_rows:
            one = self._beside.take()
            if isinstance(one, Parked):
                self._slots.load(one.read)
                self._rows.append(one.row)
            else:
                self._begin(one, events)

    def _begin(self, job: Job, events: list[Event]) -> None:
        try:
            row = Row(job, self._model.vocabulary, self._model.hidden_ids)
            row.resume(self._model.end_ids)
            if isinstance(job.prefix, Snapshot):
                self._slots.load(job.prefix)
            else:
                self._slots.join(job.prompt_ids[:-1] if job.prefix is None else job.prefix)
        except Exception as error:
            events.append(Failed(job.key, error))
            return
        self._scores.begin(row)
        self._rows.append(row)

    def _make_room(self) -> None:
        """Audited jobs that run on give their slots to jobs that wait, the youngest first."""
        wanted = len(self._waiting) - (self._slots.max_rows - len(self._rows))
        for number in range(len(self._rows) - 1, -1, -1):
            row = self._rows[number]
            if wanted > 0 and row.job.generated:
                self._beside.park(row, self._slots.save(number))
                self._leave(number)
                wanted -= 1

    def _leave(self, number: int) -> None:
        self._slots.leave(number)
        self._scores.forget(self._rows[number].job.key)
        last = self._rows.pop()
        if number < len(self._rows):
            self._rows[number] = last

    def _decide(self, output: StepOutput, events: list[Event]) -> None:
        """Score the boundaries just read and let every thinking row's session decide."""
        self._keep_tokens(output)
        scores = self._scores.of(self._rows, output)
        for number, row in enumerate(self._rows):
            if row.judged:
                if row.boundary is not None and row.job.capture:
                    events.append(self._reached(number, row, output))
                self._ask(number, row, scores.get(number, {}), output, events)

    def _ask(
        self,
        number: int,
        row: Row,
        scores: Mapping[str, float],
        output: StepOutput,
        events: list[Event],
    ) -> None:
        decision = row.session.decide(row.boundary, scores)
        if decision.stops:
            if row.job.audit and decision.reason is row.control.policy.reason:
                self._run_on(number, row, output)
            opening = row.hand_off(decision)
            self._emit(row, "content", opening, (), events)

    def _run_on(self, number: int, row: Row, output: StepOutput) -> None:
        """Let an audited row go on beside its stop: the next token is the one that it would have got."""
        draw = row.job.draw
        uniform = 0.0 if draw.greedy else row.uniforms.at(len(row.token_ids))
        (token,) = choose(output.logits[number : number + 1], [draw], [uniform])
        self._beside.add(row.run_on(self._slots.save(number), token))

    def _unread(self, row: Row) -> bool:
        """Whether the last reasoning token of a finished row is still to be read for its hidden state."""
        row.judged, row.boundary = False, None  # nothing is decided after the end
        return self._token_tap is not None and row.job.capture and row.counted

    def _keep_tokens(self, output: StepOutput) -> None:
        if self._token_tap is None:
            return
        rows = [n for n, row in enumerate(self._rows) if row.job.capture and row.counted]
        if rows:
            kept = output.hidden[self._token_tap][rows].float().cpu().numpy()
            for number, hidden in zip(rows, kept, strict=True):
                self._rows[number].token_hidden.append(hidden)

    def _reached(self, number: int, row: Row, output: StepOutput) -> Reached:
        assert row.boundary is not None
        parts = [output.hidden[place][number] for place in self._capture_taps]
        hidden = torch.cat(parts).float().cpu().numpy() if parts else torch.empty(0).numpy()
        return Reached(row.job.key, row.boundary, row.reasoning.n_chars, hidden, self._slots.save(number))

    def _choose(self, logits: torch.Tensor, events: list[Event]) -> None:
        """Choose every row's next token."""
        sampled = []
        for number, row in enumerate(self._rows):
            if row.finished is not None:
                row.counted = False
            elif row.forced:
                row.take_forced()
            else:
                sampled.append(number)
        if not sampled:
            return
        rows = [self._rows[number] for number in sampled]
        if len(sampled) < len(self._rows):
            logits = logits[sampled]
        self._lock(logits, rows)
        tokens = choose(
            logits,
            [row.job.draw for row in rows],
            [0.0 if row.job.draw.greedy else row.uniforms.at(len(row.token_ids)) for row in rows],
        )
        self._measure(logits, rows, tokens)
        for row, token in zip(rows, tokens, strict=True):
            try:
                self._take(row, token, events)
            except Exception as error:
                row.finished = "stop"
                events.append(Failed(row.job.key, error))

    def _take(self, row: Row, token: int, events: list[Event]) -> None:
        if token in self._model.end_ids and row.thinking and row.control.mode == "active":
            # The model ends its turn inside its thinking: the reader gets an answer all the same.
            opening = row.hand_off(None)
            self._emit(row, "content", opening, (), events)
            row.take_forced()
            return
        channel, text = row.accept(token, self._model.end_ids)
        self._emit(row, channel, text, (token,), events)

    def _lock(self, logits: torch.Tensor, rows: Sequence[Row]) -> None:
        """After a stop the tag that opens thinking cannot be sampled."""
        for number, row in enumerate(rows):
            if row.stopped:
                for locked in row.session.locked_ids:
                    logits[number, locked] = -torch.inf

    def _measure(self, logits: torch.Tensor, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        wanted = [
            n
            for n, row in enumerate(rows)
            if row.answering and not row.job.stream and tokens[n] not in self._model.end_ids
        ]
        if not wanted:
            return
        part = logits[wanted]
        chosen = torch.tensor([tokens[n] for n in wanted], device=part.device)[:, None]
        values = part.gather(1, chosen)[:, 0] - part.logsumexp(dim=-1)
        for number, value in zip(wanted, values.tolist(), strict=True):
            rows[number].measured(value)

    def _emit(
        self,
        row: Row,
        channel: Literal["reasoning", "content"],
        text: str,
        token_ids: tuple[int, ...],
        events: list[Event],
    ) -> None:
        if row.job.stream and (text or token_ids):
            events.append(Emitted(row.job.key, channel, text, token_ids))

    def _finish(self, row: Row, events: list[Event]) -> None:
        if any(isinstance(event, Failed) and event.key == row.job.key for event in events):
            return
        for channel, text in row.flush():
            self._emit(row, channel, text, (), events)
        done: Done = row.done(len(row.job.prompt_ids))
        events.append(done)
