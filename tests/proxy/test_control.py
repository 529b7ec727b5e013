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
from desist.proxy.access.tenants import EVERYONE, Tenant
from desist.proxy.answering.estimates import StepTable
from desist.proxy.control import ControlResolver, OperatingPoint, needs_of
from desist.proxy.errors import ApiError
from desist.proxy.intake.schemas import ChatBody, parse_alpha
from desist.proxy.settings import ControlSettings

MESSAGES = [{"role": "user", "content": "x"}]


def point(
    alpha: str, loss: str = "consistency", answer: Any = "write", lam: float | None = 0.9
) -> OperatingPoint:
    return OperatingPoint(Fraction(alpha), loss, answer, Policy(lam=lam, certified=lam is not None), alpha)


def resolver(*points: OperatingPoint, **defaults: Any) -> ControlResolver:
    return ControlResolver(ControlSettings(**defaults), points)


def resolve(
    made: ControlResolver,
    headers: dict[str, str] | None = None,
    sampling: Sampling | None = None,
    tenant: Tenant = EVERYONE,
    passes_through: bool = False,
    cap: Any = "active",
    **body: Any,
) -> Any:
    own = ChatBody.model_validate({"messages": MESSAGES, **body}).desist
    return made.resolve(
        body,
        own.said() if own else {},
        headers or {},
        sampling or Sampling(),
        tenant=tenant,
        passes_through=passes_through,
        cap=cap,
    )


def test_precedence_of_mode() -> None:
    made = resolver(point("0.05"), mode="shadow")
    assert resolve(made).control.mode == "shadow"
    assert resolve(made, headers={"x-desist-mode": "active"}).control.mode == "active"
    assert resolve(made, headers={"x-desist-mode": "active"}, desist={"mode": "off"}).control.mode == "off"
    assert resolve(made, desist={"mode": "off"}).control.policy.lam is None


def test_precedence_of_budget() -> None:
    made = resolver(budget=70)
    assert resolve(made).control.budget == 70
    assert resolve(made, reasoning_effort="minimal").control.budget == 128
    assert resolve(made, reasoning_effort="high").control.budget is None
    assert resolve(made, reasoning_effort="low", thinking_token_budget=50).control.budget == 50
    assert resolve(made, thinking_token_budget=50, desist={"budget": 9}).control.budget == 9
    assert resolve(made, thinking_token_budget=50, desist={"budget": None}).control.budget == 50
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


TENANT = Tenant("t", mode="shadow", alpha=Fraction("0.05"), budget=1000)


def refused(*arguments: Any, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        resolve(*arguments, **body)
    return caught.value


def test_a_client_may_tighten_what_its_key_has() -> None:
    made = resolver(point("0.1"), point("0.05"), point("0.02"))
    lowered = resolve(made, tenant=TENANT)
    assert (lowered.control.mode, lowered.point.name, lowered.control.budget) == ("shadow", "0.05", 1000)
    assert lowered.budget_by == "tenant"
    assert resolve(made, tenant=TENANT, desist={"mode": "off"}).control.mode == "off"
    assert resolve(made, tenant=TENANT, desist={"alpha": 0.02}).point.name == "0.02"
    assert resolve(made, tenant=TENANT, thinking_budget=999).control.budget == 999
    effort = resolve(made, tenant=Tenant(budget=1000), reasoning_effort="high")
    assert (effort.control.budget, effort.budget_by) == (1000, "tenant")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"desist": {"mode": "active"}}, "desist.mode"),
        ({"headers": {"x-desist-mode": "active"}}, "x-desist-mode"),
        ({"desist": {"alpha": 0.06}}, "desist.alpha"),
        ({"headers": {"x-desist-alpha": "1/19"}}, "x-desist-alpha"),
        ({"desist": {"budget": 1001}}, "desist.budget"),
        ({"thinking_token_budget": 1001}, "thinking_token_budget"),
        ({"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
        ({"headers": {"x-desist-budget": "-1"}}, "x-desist-budget"),
    ],
)
def test_a_client_may_never_loosen_what_its_key_has(said: dict[str, Any], field: str) -> None:
    error = refused(resolver(point("0.05")), tenant=TENANT, **said)
    assert (error.status, error.param) == (403, field)


@given(
    st.sampled_from(["off", "shadow", "active"]),
    st.none() | st.integers(0, 50),
    st.fixed_dictionaries(
        {},
        optional={
            "thinking_token_budget": st.integers(-1, 60),
            "reasoning_effort": st.sampled_from(["none", "low", "high"]),
            "desist": st.fixed_dictionaries(
                {},
                optional={
                    "mode": st.sampled_from(["off", "shadow", "active"]),
                    "budget": st.integers(-1, 60),
                    "effort": st.sampled_from(["low", "high"]),
                },
            ),
        },
    ),
    st.booleans(),
)
def test_nothing_gets_above_a_ceiling(
    ceiling: Any, budget: int | None, body: dict[str, Any], passes_through: bool
) -> None:
    tenant = Tenant("t", mode=ceiling, budget=budget)
    try:
        made = resolve(
            resolver(point("0.05"), budget=55), tenant=tenant, passes_through=passes_through, **body
        )
    except ApiError as error:
        status = error.status
    else:
        status = 200
    if status != 200:
        assert status == 403
        return
    assert tenant.allows_mode(made.control.mode)
    assert tenant.allows_budget(made.control.budget)


def test_mode_off_leaves_the_fields_of_others_to_the_server_behind() -> None:
    made = resolver(budget=70)
    body: dict[str, Any] = {
        "thinking_token_budget": -2,
        "reasoning_effort": "ultra",
        "desist": {"mode": "off"},
    }
    assert resolve(made, passes_through=True, **body).control.budget is None
    assert refused(made, **body).param == "thinking_token_budget"
    assert (
        resolve(made, passes_through=True, **(body | {"desist": {"mode": "off", "budget": 3}})).control.budget
        == 3
    )


def test_an_effort_is_a_budget_in_active_mode_alone() -> None:
    made = resolver(budget=70)
    for mode in ("off", "shadow"):
        assert resolve(made, desist={"mode": mode}, reasoning_effort="low").control.budget is None
    assert resolve(made, desist={"mode": "active"}, reasoning_effort="low").control.budget == 1024


@pytest.mark.parametrize(
    ("limit", "asked", "budget"),
    [
        (100, 500, 75),
        (100, 75, 75),
        (100, 76, 75),
        (100, 10**9, 75),
        (4096, 4096, 3840),
        (1, 5, 0),
        (2, 5, 1),
    ],
)
def test_R44_a_budget_leaves_room_for_the_answer_and_says_so(limit: int, asked: int, budget: int) -> None:
    made = resolve(resolver(), sampling=Sampling(max_tokens=limit), thinking_token_budget=asked)
    assert made.control.budget == budget
    assert bool(made.notices) == (asked != budget)
    assert made.budget_by == ("max_tokens" if asked != budget else "thinking_token_budget")


def test_R44_no_room_is_taken_from_a_request_without_a_budget() -> None:
    made = resolve(resolver(point("0.05")), sampling=Sampling(max_tokens=100))
    assert (made.control.budget, made.notices) == (None, ())


def test_a_threshold_without_a_certificate_is_not_ignored() -> None:
    assert refused(resolver(), desist={"threshold": 0.5}).param == "desist.threshold"
    assert refused(resolver(point("0.05", lam=None)), headers={"x-desist-threshold": "0.5"}).status == 400
    assert refused(resolver(point("0.05")), desist={"threshold": 0.5, "mode": "off"}).status == 400


def test_how_thinking_is_shown_is_one_of_three() -> None:
    made = resolver()
    assert resolve(made).reasoning_format is None
    for body, how in (
        ({"include_reasoning": False}, "none"),
        ({"reasoning": {"exclude": True}}, "none"),
        ({"separate_reasoning": False}, "inline"),
        ({"reasoning_format": "deepseek"}, "field"),
        ({"reasoning_format": "none"}, "inline"),
        ({"reasoning_format": "hidden"}, "none"),
        ({"include_reasoning": True, "reasoning": {"exclude": True}}, "none"),
        ({"include_reasoning": False, "desist": {"reasoning_format": "field"}}, "field"),
    ):
        assert resolve(made, **body).reasoning_format == how
    assert resolve(made, headers={"x-desist-reasoning-format": "inline"}).reasoning_format == "inline"
    assert refused(made, reasoning_format="fast").param == "reasoning_format"


def test_a_kill_switch_takes_back_all_that_is_the_servers_and_refuses_nobody() -> None:
    made = resolver(point("0.05"), budget=70)
    for cap in ("shadow", "off"):
        held = resolve(made, cap=cap, desist={"mode": "active", "alpha": 0.05}, reasoning_effort="low")
        assert (held.control.mode, held.control.budget) == (cap, None)
        assert cap in str(held.uncontrolled)
        assert resolve(made, cap=cap).control.budget is None
        assert resolve(made, cap=cap, desist={"budget": 5}).control.budget == 5
        assert resolve(made, cap=cap, tenant=Tenant(budget=9)).control.budget == 9
    assert resolve(made, cap="shadow", desist={"mode": "off"}).uncontrolled is None
