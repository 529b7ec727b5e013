"""The runtime on rows of its own making: waves, drafts, forces, failures, reloads; no vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from desist.controller import ModelProfile
from desist.proxy.engines.embedded.artefacts import Scorers
from desist.proxy.engines.vllm.inside.evidence import RowOf, Stream
from desist.proxy.engines.vllm.inside.forcing import LOCKED, apply_at_places, apply_at_rows
from desist.proxy.engines.vllm.inside.runtime import Force, Runtime
from desist.proxy.engines.vllm.inside.scoring import Scoring, as_bytes
from desist.proxy.engines.vllm.inside.tracked import Forced
from desist.proxy.engines.vllm.wire import Blocked, Closed, Opened, Scored, Stopped
from tests.fakes.vllm_engine import complete, xargs
from tests.fakes.vocabulary import FakeVocabulary

PROFILE = ModelProfile("test", handoff_write=" so\n</think>\n\n", kinds=("cue",), tool_call_open=None)


class FakeProbe:
    """Says the first value of a row."""

    def __init__(self, layers: tuple[int, ...] = (1,)) -> None:
        self.card = type("Card", (), {"taps": layers})()

    def score(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[:, 0]


class FakeTaps:
    """Row r of layer l holds `values[r]` in all places."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def read(self, layers: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor([[self.values[row]] * 2 * len(layers) for row in rows])


def runtime(**values: Any) -> tuple[Runtime, FakeVocabulary, list[Any]]:
    words = FakeVocabulary(tags=("<think>", "</think>"))
    words.ids("one", " wait", " two", " so", "\n", "\n\n")
    made = Runtime(PROFILE, words, Scoring(Scorers(probe=FakeProbe()), 2), **values)  # type: ignore[arg-type]
    events: list[Any] = []
    made.sinks.append(events.extend)
    return made, words, events


def enter(made: Runtime, words: FakeVocabulary, name: str, **control: Any) -> int:
    """A request after the prompt `<think>`; the position of its first generated token."""
    made.entered(name, words.encode("<think>"), 200, xargs(name, **{"mode": "active", "lam": 0.5} | control))
    return 1


def test_a_refused_draft_after_a_stop_does_not_lose_the_hand_off() -> None:
    """One draft, read and refused at each step: the next row has the number that was read last."""
    made, words, events = runtime()
    first = enter(made, words, "r")
    wait, two = words.ids(" wait", " two")
    handoff = words.encode(PROFILE.handoff_write)
    made.step([RowOf("r", 0, 0, first, wait), RowOf("r", 1, 0, first + 1, two, True)], FakeTaps([0.9, 0.1]))
    assert [(force.row, force.what.token) for force in made.forces] == [(0, handoff[0])]
    made.commit("r", 1)
    for place, token in enumerate(handoff[:-1]):
        rows = [RowOf("r", 0, 0, first + 1 + place, token), RowOf("r", 1, 0, first + 2 + place, two, True)]
        made.step(rows, FakeTaps([0.1, 0.1]))
        assert (0, handoff[place + 1]) in [(force.row, force.what.token) for force in made.forces]
        made.commit("r", 2 + place)
    made.left(["r"])
    made.flush()
    assert complete(events)
    assert [type(event) for event in events] == [Opened, Scored, Stopped, Closed]


def test_rows_of_the_batch_are_scored_in_one_call_and_each_decides_for_itself() -> None:
    made, words, events = runtime()
    wait = words.ids(" wait")[0]
    for name in ("a", "b", "c"):
        enter(made, words, name)
    made.step([RowOf(name, row, row, 1, wait) for row, name in enumerate("abc")], FakeTaps([0.2, 0.7, 0.4]))
    assert [event.identity.key for event in events if isinstance(event, Stopped)] == ["b"]
    assert [event.scores for event in events if isinstance(event, Scored)] == [
        {"probe": pytest.approx(0.2)}, {"probe": pytest.approx(0.7)}, {"probe": pytest.approx(0.4)},
    ]  # fmt: skip
    assert [force.row for force in made.forces] == [1]


def test_a_reload_is_for_requests_that_come_after() -> None:
    made, words, events = runtime()
    wait = words.ids(" wait")[0]
    enter(made, words, "old")

    class Sure(FakeProbe):
        def score(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.ones(len(rows))

    made.scoring = Scoring(Scorers(probe=Sure()), 2)  # type: ignore[arg-type]
    enter(made, words, "new")
    made.step([RowOf("old", 0, 0, 1, wait), RowOf("new", 1, 1, 1, wait)], FakeTaps([0.1, 0.1]))
    assert [event.identity.key for event in events if isinstance(event, Stopped)] == ["new"]


def test_no_reasoning_at_all_is_the_hand_off_from_the_first_token_on() -> None:
    made, words, events = runtime()
    handoff = words.encode(PROFILE.handoff_write)
    first = enter(made, words, "none", mode="off", budget=0)
    enter(made, words, "some", mode="off", budget=1)
    prompt = RowOf("none", 0, 0, first - 1, words.encode("<think>")[0])
    for _ in range(2):  # again after a preemption that took all that was computed
        made.step([prompt, prompt._replace(request_id="some", row=1, slot=1)], FakeTaps([0.0, 0.0]))
        assert made.forces == [Force(0, 0, first - 1, Forced(handoff[0]))]
    for place, token in enumerate(handoff):
        made.step([RowOf("none", 0, 0, first + place, token)], FakeTaps([0.9]))
        expected = Forced(handoff[place + 1]) if place + 1 < len(handoff) else made.forces[0].what
        assert [force.what for force in made.forces] == [expected]
    made.left(["none", "some"])
    made.flush()
    assert complete(events)
    (stopped,) = [event for event in events if isinstance(event, Stopped)]
    assert (stopped.tokens, stopped.decision.reason, stopped.decision.position) == (0, "budget", 0)
    closed = {event.identity.key: event for event in events if isinstance(event, Closed)}["none"]
    assert (closed.reasoning_tokens, closed.handoff_tokens) == (0, len(handoff))


def test_a_first_token_that_was_masked_is_tried_again_at_the_next_boundary() -> None:
    made, words, events = runtime()
    first = enter(made, words, "r", mode="off", budget=0)
    two, wait = words.ids(" two", " wait")
    made.step([RowOf("r", 0, 0, first - 1, words.encode("<think>")[0])], FakeTaps([0.0]))
    made.step([RowOf("r", 0, 0, first, two)], FakeTaps([0.0]))
    assert not made.forces
    made.step([RowOf("r", 0, 0, first + 1, wait)], FakeTaps([0.0]))
    assert [force.what.token for force in made.forces] == [words.encode(PROFILE.handoff_write)[0]]
    assert [event.tokens for event in events if isinstance(event, Stopped)] == [0, 2]
    assert sum(isinstance(event, Blocked) for event in events) == 1


def test_hidden_states_leave_as_they_are() -> None:
    made, words, events = runtime(stream=Stream((0, 1), "bfloat16"), score_here=False)
    enter(made, words, "r", mode="off")
    made.step([RowOf("r", 0, 0, 1, words.ids(" wait")[0])], FakeTaps([0.5]))
    (scored,) = [event for event in events if isinstance(event, Scored)]
    assert (scored.dtype, scored.scores) == ("bfloat16", {})
    assert torch.frombuffer(bytearray(scored.hidden), dtype=torch.bfloat16).tolist() == [0.5] * 4
    assert as_bytes(torch.tensor([[1.5]]), "float32") == [torch.tensor([1.5]).numpy().tobytes()]


def test_a_token_that_was_never_seen_ends_the_control_of_its_request_only() -> None:
    made, words, _ = runtime()
    wait = words.ids(" wait")[0]
    enter(made, words, "gap")
    enter(made, words, "fine")
    made.step([RowOf("gap", 0, 0, 4, wait), RowOf("fine", 1, 1, 1, wait)], FakeTaps([0.9, 0.9]))
    assert made.errors == 1
    assert "never seen" in (made.tracked["gap"].uncontrolled or "")
    assert [force.row for force in made.forces] == [1]


def test_an_event_sink_that_fails_is_no_harm() -> None:
    made, words, events = runtime()

    def broken(_: Any) -> None:
        raise OSError("gone")

    made.sinks.insert(0, broken)
    enter(made, words, "r")
    made.left(["r"])
    made.flush()
    assert [type(event) for event in events] == [Opened, Closed]
    assert made.errors == 1


LOGITS = torch.tensor([[1.0, 2.0, 3.0], [4.0, -torch.inf, 6.0], [7.0, 8.0, 9.0]])


def test_forcing_leaves_one_token_and_never_raises_a_masked_one() -> None:
    forces = [
        Force(0, 5, 10, Forced(1)),
        Force(1, 6, 11, Forced(1)),
        Force(2, 7, 12, Forced(None, frozenset({2}))),
    ]
    by_row = LOGITS.clone()
    apply_at_rows(by_row, forces)
    assert by_row[0].tolist() == [-torch.inf, 2.0, -torch.inf]
    assert by_row[1].tolist() == LOGITS[1].tolist()
    assert by_row[2].tolist() == pytest.approx([7.0, 8.0, LOCKED])
    order = torch.tensor([2, 0, 1])  # another order, as the rejection sampler's slices
    by_place = LOGITS[order].clone()
    apply_at_places(by_place, torch.tensor([7, 5, 6]), torch.tensor([12, 10, 11]), forces)
    assert torch.equal(by_place, by_row[order])
    elsewhere = LOGITS.clone()
    apply_at_places(elsewhere, torch.tensor([5, 6, 7]), torch.tensor([11, 12, 13]), forces)
    assert torch.equal(elsewhere, LOGITS)
