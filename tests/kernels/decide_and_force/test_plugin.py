"""The plugin's own control of a request and the device's, side by side: same stops, same forced tokens.

Real tags, cues, paragraphs and split characters. What the device is told of a token comes from a second
detector, which reads every token, as the token automaton does; the plugin's reads no hand-off.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import Action, BoundaryDetector, Control, ModelProfile, Policy, StopReason
from desist.kernels.boundary_score.flags import Flag
from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import SlotControl, Verdict, decide
from desist.proxy.engines.vllm.inside.tracked import Request, Tracked
from desist.proxy.engines.vllm.wire import Identity, StopNow
from tests.fakes.vocabulary import FakeVocabulary
from tests.kernels.decide_and_force.cases import Kept, Token, kept, step_of

PROFILE = ModelProfile(
    name="test", handoff_write=" so\n</think>\n\n", kinds=("cue", "paragraph"), tool_call_open=None
)
PIECES = (
    "one",
    " two",
    " wait",
    "\n\n",
    " hmm",
    " three",
    ".",
    " so",
    "\n",
    "é".encode()[:1],
    "é".encode()[1:],
)
DRAFTS = 3
RULES = {
    StopReason.PROBE: Verdict.SCORE,
    StopReason.BUDGET: Verdict.BUDGET,
    StopReason.MANUAL: Verdict.ASKED,
    StopReason.NONE: Verdict(0),
}
ACTIONS = {Action.STOP: Verdict.STOP, Action.HOLD: Verdict.HOLD, Action.CONTINUE: Verdict(0)}


class Case(NamedTuple):
    """One request: its rules, the tokens that its model writes, and per step the number of drafts and how
    many of them guess what is forced. `masked` tokens cannot be forced; step `asked` tells it to stop."""

    control: Control
    stream: list[int]
    drafts: list[tuple[int, int]]
    masked: frozenset[int]
    asked: int | None


def vocabulary() -> FakeVocabulary:
    words = FakeVocabulary(tags=("<think>", "</think>"))
    words.ids(*PIECES)
    return words


@st.composite
def cases(draw: st.DrawFn) -> Case:
    policy = Policy(
        lam=draw(st.sampled_from((None, 0.25, 0.5, 0.75))),
        patience=draw(st.integers(1, 2)),
        warmup_tokens=draw(st.sampled_from((0, 4))),
        ema=draw(st.sampled_from((1.0, 0.3))),
    )
    mode = draw(st.sampled_from(("off", "shadow", "active")))
    control = Control(mode, policy, draw(st.sampled_from((None, 1, 6, 11))))  # type: ignore[arg-type]
    tokens = st.integers(1, len(PIECES) + 1)  # all but the opening tag
    return Case(
        control,
        draw(st.lists(tokens, min_size=1, max_size=30)),
        draw(st.lists(st.tuples(st.integers(0, DRAFTS), st.integers(0, DRAFTS)), min_size=1, max_size=6)),
        frozenset(draw(st.lists(tokens, max_size=2))),
        draw(st.sampled_from((None, None, 3, 8))),
    )


class Both:
    """The request under both controls. The device's slot is 0."""

    def __init__(self, case: Case, impl: Impl) -> None:
        self.case, self.impl, self.words = case, impl, vocabulary()
        self.prompt = self.words.encode("one<think>")
        request = Request("r", self.prompt, 60)
        self.one = Tracked.of(request, Identity("k"), PROFILE, self.words, case.control, min_answer_tokens=8)
        self.detector = BoundaryDetector.from_prompt(PROFILE, self.words, self.prompt)
        self.world: Kept = kept(1, DRAFTS + 2, handoff=16)
        machine, policy = self.one.session.machine, case.control.policy
        rules = SlotControl(
            case.control.mode, policy.lam, policy.ema, policy.patience, policy.warmup_tokens,
            machine.soft_limit, machine.hard_limit, self.one.handoff, tuple(self.one.session.locked_ids),
        )  # fmt: skip
        self.world.settings.enter(0, rules)
        self.world.state.enter(0, len(self.prompt) - 1)
        self.written = 0

    def step(self, out: list[int], drafts: list[int]) -> list[int]:
        """One step: the tokens after its rows, as far as they are taken. Both must agree on all rows."""
        first = len(self.prompt) + len(out) - 1
        self.detector.rewind(len(out) - 1)
        expected, told = [], []
        for number, token in enumerate((out[-1], *drafts)):
            row = self._told(token, first + number)
            told.append(row)
            expected.append(self._plugin(first + number, token, row.score))
        asked_at = self.one.session.machine.asked_at
        if asked_at is not None:
            self.world.settings.ask(0, asked_at)
        decided = decide(*step_of((0, first, told)), *self.world, impl=self.impl)
        found = zip(
            *(column.tolist() for column in (decided.verdict, decided.forced, decided.locked)), strict=True
        )
        for number, (verdict, forced, locked) in enumerate(found):
            shadow = Verdict(verdict) == Verdict.SCORE  # a stop that mode "shadow" does not make
            said = Verdict(0) if shadow else Verdict(verdict)
            assert (said, forced, locked) == expected[number], f"row {first + number}, tokens {out} {drafts}"
        after: list[int] = []
        for number, forced in enumerate(decided.forced.tolist()):
            after.append(self.next(forced))
            if number < len(drafts) and drafts[number] != after[-1]:
                break
        self.one.commit(len(out) + len(after) - 1)
        return after

    def _told(self, token: int, position: int) -> Token:
        """What the device is told of a row."""
        before = self.detector.position
        boundary = self.detector.push(token)
        flags = Flag(0) if self.detector.mid_character else Flag.WHOLE
        if self.detector.thinking:
            flags |= Flag.THINKING | (Flag.BOUNDARY if boundary else Flag(0))
        if self.detector.position > before:
            flags |= Flag.COUNTED
        score = (position * 37 + token * 11) % 5 / 4  # any fixed rule; 0.25, 0.5 and 0.75 are thresholds too
        return Token(token, int(flags), self.detector.position, -1, score)

    def _plugin(self, position: int, token: int, score: float) -> tuple[Verdict, int, bool]:
        """Verdict, forced token and whether ids are locked, by the plugin."""
        one = self.one
        n = position - len(self.prompt) + 1
        reading = one.take(position, token)
        verdict = Verdict.WITHDRAWN if one._undone and one._undone[-1][0] == n else Verdict(0)
        if reading is not None:
            scores = {"probe": score} if reading.boundary else {}
            decision = one.decide(reading.boundary, scores)
            verdict |= ACTIONS[decision.action] | RULES[decision.reason]
        elif one.stop_at is not None and one.session.machine.stopped is not None:
            verdict |= Verdict.STOPPED | RULES[one.session.machine.stopped.reason]
        must = one.forced()
        return verdict, -1 if must.token is None else must.token, bool(must.locked)

    def next(self, forced: int) -> int:
        """What is sampled: the forced token, or the model's own where it is masked."""
        if forced >= 0 and forced not in self.case.masked:
            return forced
        self.written += 1
        return self.case.stream[(self.written - 1) % len(self.case.stream)]


def run(case: Case, impl: Impl, tokens: int = 45) -> None:
    both = Both(case, impl)
    out = [both.next(-1)]
    for number in range(tokens):
        if len(out) >= tokens:
            break
        if number == case.asked:
            both.one.stop_now(StopNow("1", "k"))
        count, right = case.drafts[number % len(case.drafts)]
        stop = both.one.stop_at
        done = 0 if stop is None else len(out) - stop
        guesses = (*both.one.handoff[done : done + right], *case.stream, *case.stream)
        out += both.step(out, list(guesses[:count]))


@settings(deadline=None, max_examples=150, print_blob=True)
@given(cases())
def test_the_specification_decides_as_the_plugin_does(case: Case) -> None:
    run(case, "torch")


@settings(deadline=None, max_examples=8, print_blob=True)
@given(cases())
def test_the_kernel_decides_as_the_plugin_does(case: Case) -> None:
    run(case, "triton", 20)


def test_the_cases_reach_every_verdict() -> None:
    """The property is not empty: one fixed request sees a stop, its withdrawal, a hand-off and its end."""
    words = vocabulary()
    stream = words.ids(" wait", "one", " two", "\n\n", "é".encode()[:1], "é".encode()[1:])
    case = Case(Control("active", Policy(lam=0.25), 30), stream, [(3, 3), (0, 0)], frozenset(), 5)
    both, out = Both(case, "torch"), [stream[0]]
    while len(out) < 40:
        out += both.step(out, stream[:2])
    told = both.world.ring.copy_out().records(0)
    assert any(Verdict.STOP in record.verdict for record in told)
    assert any(Verdict.WITHDRAWN in record.verdict for record in told)
    assert both.world.settings.words.dtype == torch.int32
    assert words.token_bytes(both.one.handoff[0]) == b" so"


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_character_is_not_cut(impl: Impl) -> None:
    words = vocabulary()
    half, rest = words.ids("é".encode()[:1], "é".encode()[1:])
    case = Case(Control("off", Policy(), 1), [half, rest], [(1, 0)], frozenset(), None)
    run(case, impl, 12)
