"""How a request's control is resolved: precedence, exact alphas, aliases."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.controller.core import Policy
from desist.data.errors import CalibrationError
from desist.data.schema import BoundaryRecord, Sampling, Trace
from desist.proxy.control import ControlResolver, OperatingPoint, needs_of
from desist.proxy.errors import ApiError
from desist.proxy.estimates import StepTable
from desist.proxy.schemas import ChatBody, parse_alpha
from desist.proxy.settings import ControlSettings

MESSAGES = [{"role": "user", "content": "x"}]


def point(
    alpha: str, loss: str = "consistency", answer: Any = "write", lam: float | None = 0.9
) -> OperatingPoint:
    return OperatingPoint(Fraction(alpha), loss, answer, Policy(lam=lam, certified=lam is not None), alpha)


def resolver(*points: OperatingPoint, **defaults: Any) -> ControlResolver:
    return ControlResolver(ControlSettings(**defaults), points)


def resolve(
    made: ControlResolver, header: str | None = None, sampling: Sampling | None = None, **body: Any
) -> Any:
    return made.resolve(
        ChatBody.model_validate({"messages": MESSAGES, **body}), sampling or Sampling(), header
    )


def test_precedence_of_mode() -> None:
    made = resolver(point("0.05"), mode="shadow")
    assert resolve(made).control.mode == "shadow"
    assert resolve(made, header="active").control.mode == "active"
    assert resolve(made, header="active", desist={"mode": "off"}).control.mode == "off"
    assert resolve(made, desist={"mode": "off"}).control.policy.lam is None


def test_precedence_of_budget() -> None:
    made = resolver(budget=70)
    assert resolve(made).control.budget == 70
    assert resolve(made, reasoning_effort="minimal").control.budget == 128
    assert resolve(made, reasoning_effort="high").control.budget is None
    assert resolve(made, reasoning_effort="low", thinking_token_budget=50).control.budget == 50
    assert resolve(made, thinking_token_budget=50, desist={"budget": 9}).control.budget == 9
    assert resolve(made, thinking_token_budget=50, desist={"budget": None}).control.budget is None
    assert resolve(made, thinking_token_budget=50, desist={}).control.budget == 50


class Covers:
    """A certificate at 0.5 that covers the thresholds 0.6 and 0.7 as well."""

    alpha, loss, answer_mode, voided = Fraction("0.05"), "harm", "write", ()

    def policy(self, lam: float | None = None, /) -> Policy:
        if lam not in (None, 0.6, 0.7):
            raise CalibrationError(f"threshold {lam} is not covered by this certificate.")
        return Policy(lam=lam or 0.5, certified=True)


def test_a_request_may_ask_for_a_covered_higher_threshold_never_for_a_lower_one() -> None:
    made = resolver(OperatingPoint.of(Covers()))  # type: ignore[arg-type]
    assert resolve(made).control.policy.lam == 0.5
    higher = resolve(made, desist={"threshold": 0.6}).control.policy
    assert (higher.lam, higher.certified) == (0.6, True)
    for lam in (0.4, 0.65):
        with pytest.raises(ApiError, match="not covered") as refused:
            resolve(made, desist={"threshold": lam})
        assert refused.value.param == "desist.threshold"


@pytest.mark.parametrize(
    "alias",
    [
        lambda n: {"thinking_token_budget": n},
        lambda n: {"thinking_budget": n},
        lambda n: {"reasoning": {"max_tokens": n}},
        lambda n: {"thinking": {"type": "enabled", "budget_tokens": n}},
        lambda n: {"desist": {"budget": n}},
    ],
)
def test_one_meaning_for_all_aliases(alias: Any) -> None:
    made = resolver(budget=70)
    assert resolve(made, **alias(0)).control.budget == 0
    assert resolve(made, **alias(12)).control.budget == 12
    assert resolve(made, **alias(10**9)).control.budget == 10**9
    assert resolve(made, **alias(-1)).control.budget is None
    for bad in (-2, True, "12", 12.5, 1e9):
        with pytest.raises(ValueError, match=r"budget|max_tokens"):
            resolve(made, **alias(bad))


def test_the_servers_budget_is_for_active_requests_the_clients_for_all() -> None:
    made = resolver(budget=70)
    for mode in ("off", "shadow"):
        assert resolve(made, desist={"mode": mode}).control.budget is None
        assert resolve(made, desist={"mode": mode, "budget": 5}).control.budget == 5


def test_alpha_equal_else_next_stricter_else_refused() -> None:
    made = resolver(point("0.05"), point("0.02", "harm"), point("0.1"))
    assert resolve(made).point.name == "0.05"
    assert resolve(made, desist={"alpha": 0.02}).point.name == "0.02"
    assert resolve(made, desist={"alpha": "1/20"}).point.name == "0.05"
    assert resolve(made, desist={"alpha": 0.09}).point.name == "0.05"
    assert resolve(made, desist={"alpha": 0.5}).point.name == "0.1"
    with pytest.raises(
        ApiError, match=r"'desist.alpha' is 0.01: .*0.05 \(consistency\), 0.02 \(harm\)"
    ) as caught:
        resolve(made, desist={"alpha": 0.01})
    assert (caught.value.status, caught.value.param) == (400, "desist.alpha")
    assert resolve(resolver(point("0.05"), point("0.02"), alpha="0.02")).point.name == "0.02"
    assert "no certificate" in resolve(resolver(point("0.05"), alpha="0.01")).uncontrolled
    with pytest.raises(ApiError, match="none is loaded"):
        resolve(resolver(), desist={"alpha": 0.05})


@given(st.integers(1, 999), st.lists(st.integers(1, 999), min_size=1, max_size=5))
def test_never_a_looser_certificate(asked: int, certified: list[int]) -> None:
    made = resolver(*(point(f"{alpha}/1000") for alpha in certified))
    stricter = [alpha for alpha in certified if alpha <= asked]
    if stricter:
        assert resolve(made, desist={"alpha": f"{asked}/1000"}).point.alpha == Fraction(max(stricter), 1000)
    else:
        with pytest.raises(ApiError):
            resolve(made, desist={"alpha": f"{asked}/1000"})


def test_answer_mode_chooses_and_marks() -> None:
    both = resolver(point("0.05"), point("0.04", answer="extract"))
    assert resolve(both, desist={"answer": "extract"}).point.name == "0.04"
    lone = resolve(resolver(point("0.05")), desist={"answer": "extract"})
    assert lone.control.policy.certified is False
    assert "calibrated for answer 'write'" in lone.uncertified


def test_another_sampler_is_uncertified() -> None:
    made = resolver(point("0.05"))
    assert resolve(made).control.policy.certified is True
    assert resolve(made, sampling=Sampling(seed=4, max_tokens=9)).control.policy.certified is True
    other = resolve(made, sampling=Sampling(temperature=0.5))
    assert other.control.policy.certified is False
    assert "temperature 0.5" in other.uncertified


def test_uncontrolled_says_why() -> None:
    assert "no certificate is loaded" in resolve(resolver()).uncontrolled
    assert resolve(resolver(), desist={"budget": 4}).uncontrolled is None
    assert "never stops" in resolve(resolver(point("0.05", lam=None))).uncontrolled
    assert resolve(resolver(), desist={"mode": "off"}).uncontrolled is None


def test_effort_map_is_a_setting() -> None:
    assert resolve(resolver(efforts={"tiny": 3}), reasoning_effort="tiny").control.budget == 3
    assert resolve(resolver(efforts={}), reasoning_effort="anything").control.budget is None
    with pytest.raises(ApiError, match="Send one of: tiny"):
        resolve(resolver(efforts={"tiny": 3}), reasoning={"effort": "low"})


@given(st.one_of(st.floats(), st.integers(), st.text(max_size=12), st.booleans(), st.none()))
def test_alpha_is_exact_or_refused(value: Any) -> None:
    try:
        alpha = parse_alpha(value)
    except ValueError:
        return
    assert 0 < alpha < 1
    assert alpha == Fraction(str(value))


def test_needs() -> None:
    assert needs_of(Policy(lam=0.5)) == {"hidden"}
    assert needs_of(Policy(lam=None)) == frozenset()
    assert needs_of(Policy(scorer="position", lam=0.5)) == {"text"}


def test_estimates_from_traces(tmp_path: Any) -> None:
    traces = [
        Trace("t", "p", "m", "q", "r", "a", length, 3, boundaries=tuple(
            BoundaryRecord(i, position, 0, "cue") for i, position in enumerate(range(10, length, 10))))
        for length in (40, 60, 100)
    ]  # fmt: skip
    table = StepTable.from_traces(traces, steps=1000)
    assert table.remaining_tokens(0) is None
    assert table.remaining_tokens(10) == pytest.approx((30 + 50 + 90) / 3)
    table.save(tmp_path / "t.json")
    assert StepTable.load(tmp_path / "t.json") == table
    assert table.remaining_tokens(10**6) == table.remaining[-1]
