"""Rows that are passed over change nothing: same events and forces as when each row is looked at."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import BoundaryDetector, ModelProfile
from desist.controller.lexicon import lexicon
from desist.proxy.engines.vllm.inside.attention import Attention
from desist.proxy.engines.vllm.inside.evidence import RowOf
from desist.proxy.engines.vllm.wire import Event, Scored, StopNow
from tests.fakes.vllm_engine import complete, xargs
from tests.fakes.vocabulary import FakeVocabulary
from tests.proxy.engines.vllm.inside.test_runtime import FakeTaps, runtime

PIECES = (
    "one",
    " two",
    " wait",
    " hmm",
    "m",
    "\n",
    "\n\n",
    "$$",
    "{",
    '"',
    "</think>",
    "<think>",
    "é",
    b"\xc3",
)
DISTURBANCES = ("stop", "shadow", "off", None, None, None, None, None, None, None, None, None)
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["active", "shadow", "off"]),
        st.sampled_from([None, 0, 3, 12]),
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=40),
        st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=40, max_size=40),
    ),
    min_size=1,
    max_size=3,
)


class Served:
    """Requests in a batch, one token each a step; `all_rows`: look at each row, or where it matters only."""

    def __init__(self, requests: Any, *, all_rows: bool) -> None:
        self.all_rows = all_rows
        self.made, self.words, self.events = runtime()
        self.made.profile = self.profile = ModelProfile(
            "test", handoff_write=" so\n</think>\n\n", kinds=("cue", "paragraph"), cues=("wait", "hmm"),
            tool_call_open=None,
        )  # fmt: skip
        self.made.__post_init__()
        self.words.ids(*PIECES)
        self.ids: dict[str, list[int]] = {}
        self.plans: dict[str, list[int]] = {}
        self.scores: dict[str, list[float]] = {}
        self.looked = 0
        for number, (mode, budget, pieces, scores) in enumerate(requests):
            name = f"r{number}"
            control = {"mode": mode, "lam": 0.6} | ({} if budget is None else {"budget": budget})
            self.made.entered(name, self.words.encode("<think>"), 60, xargs(name, **control))
            self.ids[name], self.plans[name], self.scores[name] = [], self.words.ids(*pieces), scores
            self.sampled({name: self.plans[name].pop(0)})

    def sampled(self, tokens: dict[str, int]) -> None:
        for name, token in tokens.items():
            self.ids[name].append(token)
        self.made.attention.sampled(list(tokens), [[token] for token in tokens.values()])

    def step(self) -> list[Any]:
        """One step; what was forced, by request."""
        self.made.forces = []
        names = list(self.ids)
        wanted = set(names) if self.all_rows else set(self.made.attention.wanted)
        rows = []
        for row, name in enumerate(names):
            if name in wanted:
                ids, one = self.ids[name], self.made.tracked[name]
                missed = () if self.all_rows else ids[one.read : -1]
                rows.append(RowOf(name, row, row, len(ids), ids[-1], missed=missed))
        self.looked += len(rows)
        values = [self.scores[name][len(self.ids[name]) % 40] for name in names]
        if rows:
            self.made.step(rows, FakeTaps(values))
        else:
            self.made.tick()
        forced = {names[force.row]: force.what for force in self.made.forces}
        tokens: dict[str, int] = {}
        for name in names:
            what = forced.get(name)
            plan = self.plans[name]
            if what is not None and what.token is not None:
                tokens[name] = what.token
            elif plan:
                tokens[name] = plan.pop(0)
            else:
                self.leave(name)
        self.sampled(tokens)
        return sorted((name, what.token, sorted(what.locked)) for name, what in forced.items())

    def leave(self, name: str) -> None:
        ids = [*self.ids.pop(name), 0]  # the end token, which no row reads
        self.made.left([name], lambda _: () if self.all_rows else ids)

    def disturb(self, what: str) -> None:
        if what == "stop":
            self.made.stop_now(StopNow("c", "r0"))
        else:
            self.made.limit(what)  # type: ignore[arg-type]

    def told(self) -> dict[str, list[Event]]:
        """The events of each request, in order."""
        self.made.flush()
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.identity.key, []).append(event)
        return found


@settings(max_examples=300, deadline=None)
@given(requests=REQUESTS, disturbances=st.lists(st.sampled_from(DISTURBANCES), min_size=60, max_size=60))
def test_passing_rows_over_changes_nothing(requests: Any, disturbances: list[str | None]) -> None:
    every, some = Served(requests, all_rows=True), Served(requests, all_rows=False)
    for what in disturbances:
        if what is not None:
            every.disturb(what)
            some.disturb(what)
        assert every.step() == some.step()
        assert every.ids == some.ids
    for name in list(every.ids):
        every.leave(name)
        some.leave(name)
    assert every.told() == some.told()
    assert complete(some.events)
    assert every.made.errors == some.made.errors == 0
    assert some.looked <= every.looked


def test_plain_words_are_passed_over() -> None:
    requests = [("shadow", None, ["one", " two"] * 15 + [" wait"] + [" two"] * 5, [0.9] * 40)]
    every, some = Served(requests, all_rows=True), Served(requests, all_rows=False)
    for _ in range(36):
        every.step()
        some.step()
    assert (every.looked, some.looked) == (36, 1)


class Words:
    """Tokens below 10 are words, from 20 on line ends; the others say something."""

    def inert(self, token_id: int) -> str | None:
        return "word" if token_id < 10 else " " if token_id == 10 else None

    def ends_line(self, token_id: int) -> bool:
        return token_id >= 20


def test_a_preempted_request_stays_due_until_its_row_has_come() -> None:
    attention = Attention(Words())
    attention.follow("r", None)
    attention.sampled(["r"], [[11]])
    for _ in range(3):  # its row does not come: it was preempted
        attention.sampled([], [])
        assert list(attention.wanted) == ["r"]
    attention.seen("r")
    assert not attention.wanted


def test_an_alarm_is_never_late_and_a_later_one_replaces_it() -> None:
    attention = Attention(Words())
    attention.follow("r", 2)
    attention.follow("s", 5)
    seen = []
    for _ in range(6):
        seen.append(sorted(attention.wanted))
        attention.sampled(["r", "s"], [[1], [1]])
    assert seen == [[], [], ["r"], ["r"], ["r"], ["r", "s"]]
    attention.follow("r", None)
    attention.ignore("s")
    assert not attention.wanted


@pytest.mark.parametrize(
    ("said", "due"),
    [([1, 20], False), ([1, 20, 20], True), ([1, 20, 10, 20], True), ([1, 20, 1, 20], False), ([20], True),
     ([1, 14], True)],
)  # fmt: skip
def test_a_line_end_matters_only_where_its_line_may_be_blank(said: list[int], due: bool) -> None:
    attention = Attention(Words())
    attention.follow("r", None)
    for token in said:
        attention.sampled(["r"], [[token]])
    assert bool(attention.wanted) is due


def test_a_step_without_tokens_and_strangers_are_nothing() -> None:
    attention = Attention(Words())
    attention.follow("r", None)
    attention.sampled(["r", "stranger"], [[], [14]])
    assert not attention.wanted


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=200), st.data())
def test_skipping_says_what_pushing_says(pieces: list[Any], data: st.DataObject) -> None:
    words = FakeVocabulary()
    profile = ModelProfile("test", kinds=("cue", "paragraph"), cues=("wait", "hmm"))
    one, other = BoundaryDetector(profile, words), BoundaryDetector(profile, words)
    ids = words.ids(*pieces)
    quiet: list[int] = []
    for token in ids:
        found = one.push(token)
        if lexicon(profile, words).says_nothing(token):
            assert found is None
        if found is None and data.draw(st.booleans()):
            quiet.append(token)
            continue
        other.skip(quiet)
        quiet = []
        assert other.push(token) == found
    other.skip(quiet)
    assert (one.position, one.tokens, one.held, one.thinking) == (
        other.position, other.tokens, other.held, other.thinking,
    )  # fmt: skip
    if ids:
        back = data.draw(st.integers(0, len(ids)))
        one.rewind(back)
        other.rewind(back)
        assert (one.position, one.held) == (other.position, other.held)


@pytest.mark.parametrize("leaves", [True, False])
def test_shadow_scores_come_late_but_all(leaves: bool) -> None:
    """Sixteen boundaries are scored in one call, or fewer when a request ends or 64 steps have passed."""
    made, words, events = runtime()
    calls: list[int] = []
    probe = made.scoring.scorers.probe
    score = probe.score  # type: ignore[union-attr]
    probe.score = lambda rows: (calls.append(len(rows)), score(rows))[1]  # type: ignore[union-attr,method-assign]
    wait = words.ids(" wait")[0]
    for number in range(5):
        made.entered(f"r{number}", words.encode("<think>"), 200, xargs(f"r{number}", mode="shadow", lam=0.5))
    for position in (1, 2, 3):
        rows = [RowOf(f"r{number}", number, number, position, wait) for number in range(5)]
        made.step(rows, FakeTaps([0.1, 0.2, 0.3, 0.4, 0.9]))
    assert calls == []
    if leaves:
        made.left(["r4"])
    else:
        for _ in range(64):
            made.tick()
    made.flush()
    assert calls == [15]
    scored = [event for event in events if isinstance(event, Scored)]
    assert len(scored) == 15
    assert [event.tokens for event in scored if event.identity.key == "r4"] == [1, 2, 3]
    if leaves:
        assert events[-1].shadow.position == 1
