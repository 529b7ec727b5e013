"""The runner: forced hand-off, locks, limits, probes and events, on a tiny random model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from desist.controller import Control, Policy, Session, StopReason
from desist.data.errors import EngineError, ProbeError
from desist.probes.base import ProbeCard
from desist.proxy.collection.batch_runs import drive
from desist.proxy.engines.embedded import Done, Draw, Emitted, Failed, Job, Reached, Runner
from tests.fakes.tiny_model import PROFILE, WIDTH, tiny_model

MODEL = tiny_model()
VOCABULARY = MODEL.vocabulary
CLOSE = VOCABULARY.special_id("</think>")
OPEN = VOCABULARY.special_id("<think>")
PROMPT = MODEL.chat_ids([{"role": "user", "content": "What is 1 + 4?"}])


class LastTap:
    """A probe that scores a boundary by the first number of its hidden state at one tap."""

    def __init__(self, tap: int = -1) -> None:
        self.card = ProbeCard("logistic", (tap,), WIDTH, "consistent")
        self.seen: list[torch.Tensor] = []

    def score(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen.append(rows.clone())
        return rows[:, 0].sigmoid()


class CountingRom:
    """A streaming probe whose state counts tokens and whose score is the count's share of a hundred."""

    def __init__(self) -> None:
        self.card = ProbeCard("rom", (1,), WIDTH, "consistent")

    def initial_state(self, batch: int) -> torch.Tensor:
        return torch.zeros(batch, 1)

    def step(self, state: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return state + 1, (state[:, 0] + 1) / 100


def job(
    key: Any = 0,
    control: Control | None = None,
    *,
    seed: int = 1,
    max_tokens: int = 120,
    prompt: Sequence[int] = PROMPT,
    draw: Draw | None = None,
    **fields: Any,
) -> Job:
    control = control or Control("off")
    session = Session(PROFILE, VOCABULARY, control, prompt, max_tokens)
    return Job(key, tuple(prompt), session, draw or Draw(0.9, 0.98), seed, max_tokens, **fields)


def run(*jobs: Job, **settings: Any) -> dict[Any, Done]:
    events = Runner(MODEL, **settings).run(jobs)
    assert not [event for event in events if isinstance(event, Failed)]
    return {event.key: event for event in events if isinstance(event, Done)}


def full_logits(ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = MODEL.network(torch.tensor([list(ids)])).logits[0, -1]
    return logits.clone()


def stop_at_once(answer: str = "write") -> Control:
    return Control("active", Policy(lam=-1.0), answer=answer)  # type: ignore[arg-type]


def closing_seed(least: int = 20) -> int:
    """A seed whose full run closes its thinking by itself, after some tokens."""
    for seed in range(200):
        done = run(job(seed=seed))[0]
        if done.stop_reason is StopReason.NATURAL and done.usage.reasoning_tokens >= least:
            return seed
    raise AssertionError("no seed closes thinking")


def test_sampled_and_greedy_tokens_are_those_of_plain_forwards() -> None:
    done = run(job(draw=Draw(0.0), max_tokens=12))[0]
    ids = list(PROMPT)
    for token in done.token_ids:
        assert token == int(full_logits(ids).argmax())
        ids.append(token)


@pytest.mark.parametrize("draw", [Draw(0.0), Draw(0.9, 0.95)])
def test_sixteen_together_are_as_one_at_a_time(draw: Draw) -> None:
    def jobs() -> list[Job]:
        prompts = [MODEL.chat_ids([{"role": "user", "content": "x" * (3 * n)}]) for n in range(16)]
        return [
            job(
                n, stop_at_once() if n % 3 == 0 else None, seed=n, prompt=prompts[n], draw=draw, max_tokens=60
            )
            for n in range(16)
        ]

    together = run(*jobs(), max_rows=16, width=16, probe=LastTap())
    for one in jobs():
        alone = run(one, max_rows=16, width=16, probe=LastTap())[one.key]
        assert alone.token_ids == together[one.key].token_ids
        assert [scored.scores for scored in alone.boundaries] == [
            scored.scores for scored in together[one.key].boundaries
        ]


def test_more_jobs_than_slots_give_the_same_answers() -> None:
    few = run(*(job(n, seed=n) for n in range(9)), max_rows=2)
    many = run(*(job(n, seed=n) for n in range(9)), max_rows=16, width=16)
    assert {n: done.token_ids for n, done in few.items()} == {n: done.token_ids for n, done in many.items()}


def test_a_seed_decides_the_tokens() -> None:
    assert run(job(seed=4))[0] == run(job(seed=4))[0]
    assert run(job(seed=4))[0].token_ids != run(job(seed=5))[0].token_ids


@pytest.mark.parametrize("answer", ["write", "extract"])
def test_a_stop_forces_the_hand_off_at_once_and_goes_on_from_there(answer: str) -> None:
    """The stop at the first boundary is followed by the hand-off, token for token."""
    free = run(job(seed=3))[0]
    done = run(job(seed=3, control=stop_at_once(answer)), probe=LastTap())[0]
    handoff = VOCABULARY.encode(PROFILE.handoff(answer))  # type: ignore[arg-type]
    assert done.decision is not None
    at = done.decision.position
    assert done.decision.index == 0
    assert 7 <= at < 14  # an unfinished character may put the boundary off by a few tokens
    assert done.stop_reason is StopReason.PROBE
    assert done.token_ids[:at] == free.token_ids[:at]
    assert done.token_ids[at : at + len(handoff)] == handoff
    assert done.usage.handoff_tokens == len(handoff)
    assert done.usage.completion_tokens == len(done.token_ids)
    assert "</think>" not in done.reasoning + done.content
    opening = PROFILE.answer_opening(answer)  # type: ignore[arg-type]
    assert done.content.startswith(opening)
    assert "enough" not in done.reasoning


def test_keys_and_values_after_the_hand_off_are_those_of_a_fresh_prefill() -> None:
    done = run(job(control=stop_at_once(), draw=Draw(0.0)), probe=LastTap())[0]
    start = len(done.token_ids) - done.usage.answer_tokens
    for place in range(start, len(done.token_ids)):
        logits = full_logits([*PROMPT, *done.token_ids[:place]])
        logits[OPEN] = -torch.inf
        assert done.token_ids[place] == int(logits.argmax())


def test_a_boundary_is_scored_by_its_own_hidden_state() -> None:
    probe = LastTap()
    done = run(job(seed=2, control=Control("shadow", Policy(lam=0.0))), probe=probe)[0]
    assert len(probe.seen) == len(done.boundaries) > 1
    for scored, seen in zip(done.boundaries, probe.seen, strict=True):
        ids = [*PROMPT, *done.token_ids[: scored.boundary.position]]
        with torch.inference_mode():
            output = MODEL.network(torch.tensor([ids]), output_hidden_states=True)
        expected = output.hidden_states[-1][0, -1]
        torch.testing.assert_close(seen[0], expected, atol=1e-4, rtol=1e-4)
        assert scored.scores["probe"] == pytest.approx(float(expected[0].sigmoid()), abs=1e-4)
    assert done.shadow is not None
    assert done.decision is None


def test_captured_states_and_forks() -> None:
    """A fork made at a boundary is the live stop at that boundary, with its own draw."""
    runner = Runner(MODEL, taps=(1, -1), token_tap=2)
    reached: list[Reached] = []
    done: dict[Any, Done] = {}
    for event in drive(runner, [job("full", seed=3, capture=True, stream=False)]):
        if isinstance(event, Reached):
            reached.append(event)
            runner.add(job(event.boundary.index, draw=Draw(0.0), stream=False, prefix=event.prefix))
        elif isinstance(event, Done):
            done[event.key] = event
    full = done.pop("full")
    assert len(reached) == len(done) >= 2
    assert full.token_hidden is not None
    assert full.token_hidden.shape[1] == WIDTH
    handoff = VOCABULARY.encode(PROFILE.handoff_write)
    for event in reached:
        position, exit_done = event.boundary.position, done[event.boundary.index]
        ids = [*PROMPT, *full.token_ids[:position]]
        assert event.char == len(text_of(full.token_ids[:position]))
        with torch.inference_mode():
            states = MODEL.network(torch.tensor([ids]), output_hidden_states=True).hidden_states
        expected = torch.cat([states[1][0, -1], states[-1][0, -1]]).numpy()
        np.testing.assert_allclose(event.hidden, expected, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(
            full.token_hidden[position - 1], states[2][0, -1].numpy(), atol=1e-4, rtol=1e-4
        )
        assert exit_done.token_ids[: len(handoff)] == handoff
        logits = full_logits([*ids, *handoff])
        logits[OPEN] = -torch.inf
        assert exit_done.token_ids[len(handoff)] == int(logits.argmax())
        # A fork that is named by its ids goes on from the same place.
        again = Runner(MODEL).run([job("ids", draw=Draw(0.0), stream=False, prefix=tuple(ids))])
        assert [each.token_ids for each in again if isinstance(each, Done)] == [exit_done.token_ids]
        assert exit_done.usage.completion_tokens == len(exit_done.token_ids)


def text_of(ids: Sequence[int]) -> str:
    return b"".join(VOCABULARY.token_bytes(n) for n in ids if n not in MODEL.hidden_ids).decode(
        "utf-8", "replace"
    )


def test_the_streaming_probe_counts_reasoning_tokens_only() -> None:
    seed = closing_seed()
    done = run(job(seed=seed, control=Control("shadow", Policy("rom", lam=2.0))), rom=CountingRom())[0]
    assert done.boundaries
    for scored in done.boundaries:
        assert scored.scores["rom"] == pytest.approx(scored.boundary.position / 100)


def test_thinking_cannot_be_opened_again_after_a_stop() -> None:
    """The tag is made the likeliest token; it is never sampled after the stop."""
    weight = MODEL.network.lm_head.weight
    kept = weight.detach().clone()
    bias = torch.nn.Parameter(torch.zeros(weight.shape[0]))
    MODEL.network.lm_head.bias = bias
    try:
        with torch.no_grad():
            bias[OPEN] = 1e4
        done = run(job(control=stop_at_once(), max_tokens=40), probe=LastTap())[0]
        free = run(job(max_tokens=40))[0]
    finally:
        MODEL.network.lm_head.bias = None
    assert torch.equal(weight, kept)
    assert OPEN in free.token_ids
    assert done.decision is None or OPEN not in done.token_ids[done.decision.position :]


def test_a_second_close_tag_is_swallowed() -> None:
    bias = torch.nn.Parameter(torch.zeros(MODEL.network.config.vocab_size))
    MODEL.network.lm_head.bias = bias
    try:
        with torch.no_grad():
            bias[CLOSE] = 1e4
        prompt = (*PROMPT, *VOCABULARY.encode("1 + 4 = 5\n</think>\n\n"))
        done = run(job(prompt=prompt, max_tokens=10))[0]
    finally:
        MODEL.network.lm_head.bias = None
    assert set(done.token_ids) == {CLOSE}
    assert (done.content, done.reasoning, done.usage.answer_tokens) == ("", "", 10)


def test_streamed_text_is_the_whole_text_in_its_channel() -> None:
    seed = closing_seed()
    events = Runner(MODEL).run([job(seed=seed)])
    done = events[-1]
    assert isinstance(done, Done)
    parts = {"reasoning": "", "content": ""}
    ids: list[int] = []
    for event in events[:-1]:
        assert isinstance(event, Emitted)
        parts[event.channel] += event.text
        ids += event.token_ids
    assert (parts["reasoning"], parts["content"]) == (done.reasoning, done.content)
    assert tuple(ids) == done.token_ids
    assert done.usage.reasoning_tokens == done.token_ids.index(CLOSE)
    assert done.reasoning == text_of(done.token_ids[: done.usage.reasoning_tokens])


def test_a_job_that_is_dropped_frees_its_slot() -> None:
    runner = Runner(MODEL, max_rows=2)
    for key in ("a", "b", "c"):
        runner.add(job(key, seed=ord(key)))
    for _ in range(5):
        runner.step()
    assert (runner.n_running, runner.n_waiting) == (2, 1)
    assert runner.abort("a")
    assert not runner.abort("a")
    runner.step()
    assert (runner.n_running, runner.n_waiting) == (2, 0)
    finished = {}
    while runner.busy:
        finished |= {event.key: event for event in runner.step() if isinstance(event, Done)}
    assert set(finished) == {"b", "c"}
    assert finished["b"] == run(job("b", seed=ord("b")))["b"]


class _Broken:
    """A vocabulary that fails at one token, once it is armed."""

    armed = False

    def __init__(self, token: int) -> None:
        self._token = token

    def __getattr__(self, name: str) -> Any:
        return getattr(VOCABULARY, name)

    def token_bytes(self, token_id: int) -> bytes:
        if self.armed and token_id == self._token:
            raise RuntimeError("broken")
        return VOCABULARY.token_bytes(token_id)


def test_an_error_in_one_job_leaves_the_others_alone() -> None:
    whole = run(job("good", seed=8))["good"]
    bad = run(job("bad", seed=9))["bad"]
    vocabulary = _Broken(bad.token_ids[5])
    broken = Session(PROFILE, vocabulary, Control("off"), PROMPT, 120)
    vocabulary.armed = True
    events = Runner(MODEL).run([job("good", seed=8), Job("bad", PROMPT, broken, Draw(0.9, 0.98), 9, 120)])
    failed = [event for event in events if isinstance(event, Failed)]
    assert [(event.key, str(event.error)) for event in failed] == [("bad", "broken")]
    assert [event for event in events if isinstance(event, Done)] == [whole]


def test_stop_strings_end_the_answer() -> None:
    prompt = (*PROMPT, *VOCABULARY.encode("1 + 4 = 5\n</think>\n\n"))
    free = next(
        done for seed in range(50) if len((done := run(job(prompt=prompt, seed=seed))[0]).content) > 12
    )
    seed = next(s for s in range(50) if run(job(prompt=prompt, seed=s))[0] == free)
    word = free.content[6:9]
    done = run(job(prompt=prompt, seed=seed, stop=(word,)))[0]
    assert done.content == free.content[: free.content.find(word)]
    assert done.finish_reason == "stop"
    assert len(done.token_ids) < len(free.token_ids)


def test_limits() -> None:
    runner = Runner(MODEL)
    with pytest.raises(EngineError, match="context of 512"):
        runner.add(job(max_tokens=510))
    with pytest.raises(ValueError, match="prompt is empty"):
        runner.check(0, 5)
    done = run(job(max_tokens=9, seed=3))[0]
    assert (len(done.token_ids), done.finish_reason, done.stop_reason) == (9, "length", StopReason.LENGTH)
    one = run(job(max_tokens=1, seed=3))[0]
    assert len(one.token_ids) == 1


def test_a_turn_that_ends_inside_thinking_still_gets_an_answer_when_active() -> None:
    bias = torch.nn.Parameter(torch.zeros(MODEL.network.config.vocab_size))
    (end,) = MODEL.end_ids
    MODEL.network.lm_head.bias = bias
    try:
        with torch.no_grad():
            bias[end] = 1e4
        active = run(job(control=Control("active", Policy(lam=None)), max_tokens=40))[0]
        untouched = run(job(max_tokens=40))[0]
    finally:
        MODEL.network.lm_head.bias = None
    handoff = VOCABULARY.encode(PROFILE.handoff_write)
    assert active.token_ids == (*handoff, end)
    assert untouched.token_ids == (end,)


def test_confidence_is_the_geometric_mean_probability_of_the_answer() -> None:
    done = run(job(control=stop_at_once(), stream=False, seed=6), probe=LastTap())[0]
    start = len(done.token_ids) - done.usage.answer_tokens
    logs = []
    for place in range(start, len(done.token_ids)):
        if done.token_ids[place] not in MODEL.end_ids:
            logits = full_logits([*PROMPT, *done.token_ids[:place]])
            logits[OPEN] = -torch.inf
            logs.append(float(logits.log_softmax(0)[done.token_ids[place]]))
    expected = float(torch.tensor(logs).mean().exp()) if logs else None
    assert done.confidence == pytest.approx(expected, rel=1e-3)


def test_jobs_that_run_while_the_probe_is_exchanged_are_not_stopped_by_either() -> None:
    runner = Runner(MODEL, max_rows=1, probe=LastTap(2), taps=(1, 2))
    never = Control("active", Policy(lam=2.0))
    seed = next(n for n in range(50) if run(job(control=never, seed=n), probe=LastTap())[0].boundaries)
    for key in (0, 1):  # one runs, one waits
        runner.add(job(key, stop_at_once(), seed=seed))
    runner.step()
    other = LastTap(1)
    runner.use(other, None)
    events = runner.run([job(2, stop_at_once(), seed=seed)])
    done = {event.key: event for event in events if isinstance(event, Done)}
    assert all(not scored.scores for key in (0, 1) for scored in done[key].boundaries)
    assert StopReason.PROBE not in (done[0].stop_reason, done[1].stop_reason)
    assert (done[2].stop_reason, len(other.seen)) == (StopReason.PROBE, 1)
    with pytest.raises(ProbeError, match="taps 3"):
        runner.use(LastTap(3), None)
