"""Tenants: a key's ceilings hold over all that a client may write; watch and audits are apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.controller.core import Policy
from desist.data.schema import Sampling
from desist.proxy import Settings, SettingsError, create_app, load_settings
from desist.proxy.access.tenants import Tenant, lower_mode
from desist.proxy.control import ControlResolver, OperatingPoint
from desist.proxy.errors import ApiError
from desist.proxy.intake.schemas import DesistField
from desist.proxy.live.points import of_group
from desist.proxy.settings import ControlSettings, KeySettings, MonitorSettings, TenantSettings
from tests.fakes.audited_engine import AuditedEngine
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server, wait_for
from tests.proxy.monitor.test_monitoring import POINT, metric, traces

MODES = ("off", "shadow", "active")
POINTS = tuple(
    OperatingPoint(Fraction(alpha), "consistency", "write", Policy(lam=0.9, certified=True), alpha)
    for alpha in ("0.1", "0.05", "0.02")
)


def asked(**own: Any) -> dict[str, Any]:
    said: dict[str, Any] = DesistField.model_validate(own).said()
    return said


def control(tenant: Tenant, own: dict[str, Any], body: dict[str, Any], **defaults: Any) -> Any:
    made = ControlResolver(ControlSettings(**defaults), POINTS)
    return made.resolve(body, asked(**own), {}, Sampling(), tenant=tenant)


tenants = st.builds(
    Tenant,
    name=st.just("t"),
    mode=st.sampled_from(MODES),
    alpha=st.sampled_from([None, Fraction(1, 10), Fraction(1, 20), Fraction(1, 50), Fraction(1, 1000)]),
    budget=st.sampled_from([None, 0, 10, 1000]),
)
owns = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(MODES),
        "alpha": st.sampled_from(["0.1", "0.05", "0.02", "0.5"]),
        "budget": st.sampled_from([-1, 0, 5, 10, 11, 5000]),
    },
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "thinking_token_budget": st.sampled_from([-1, 0, 7, 2000]),
        "reasoning_effort": st.sampled_from(["low", "high", "none"]),
        "thinking": st.sampled_from([{"type": "enabled", "budget_tokens": 3000}, {"type": "disabled"}]),
    },
)


@given(tenants, owns, bodies, st.sampled_from(MODES), st.sampled_from([None, 50, 4000]))
def test_a_client_may_tighten_never_loosen(
    tenant: Tenant, own: dict[str, Any], body: dict[str, Any], mode: Any, budget: int | None
) -> None:
    """Whatever is written: within the ceilings, or refused with a reason that names a field."""
    refused: ApiError | None = None
    try:
        found = control(tenant, own, body, mode=mode, budget=budget)
    except ApiError as error:
        refused = error
    if refused is not None:
        assert refused.status in (400, 403)
        assert refused.param
        return
    assert tenant.allows_mode(found.control.mode)
    assert tenant.allows_budget(found.control.budget)
    if found.point is not None:
        assert tenant.allows_alpha(found.point.alpha)
    if "mode" in own:
        assert found.control.mode == own["mode"]  # not lowered in silence: refused, or as asked


@given(tenants, st.sampled_from(MODES), st.sampled_from([None, 50, 4000]))
def test_who_asks_for_nothing_is_never_refused(tenant: Tenant, mode: Any, budget: int | None) -> None:
    found = control(tenant, {}, {}, mode=mode, budget=budget)
    assert found.control.mode == lower_mode(mode, tenant.mode)
    assert tenant.allows_budget(found.control.budget)


@dataclass(frozen=True)
class Grouped:
    group: str | None
    alpha: Fraction = Fraction(1, 20)
    loss: str = "consistency"
    answer_mode: Any = "write"
    voided: tuple[str, ...] = ()

    def policy(self, lam: float | None = None, /) -> Policy:
        return Policy(lam=0.9, certified=True)


def test_a_group_has_its_own_certificates_and_never_another_groups() -> None:
    algebra, geometry, whole = (
        OperatingPoint.of(Grouped(group), name=str(group)) for group in ("algebra", "geometry", None)
    )
    assert of_group((algebra, geometry, whole), "algebra") == [algebra]
    assert of_group((algebra, whole), "geometry") == [whole]
    assert of_group((algebra,), "geometry") == []
    assert of_group((algebra, whole), None) == (algebra, whole)
    made = ControlResolver(ControlSettings(), (algebra, geometry, whole))
    found = made.resolve({}, {}, {}, Sampling(), tenant=Tenant("t", group="geometry"))
    assert found.point is geometry


KEYS = {"strict": "k-strict", "free": "k-free", "apart": "k-apart"}


def settings(**more: Any) -> Settings:
    return Settings(
        api_keys=tuple(KeySettings(key=key, tenant=name) for name, key in KEYS.items()),  # type: ignore[arg-type]
        tenants={
            "strict": TenantSettings(mode="shadow", budget=100, alpha="0.02", audits=False),
            "free": TenantSettings(),
            "apart": TenantSettings(separate_drift=True),
        },
        **more,
    )


def ask(base: str, who: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "2 + 2?"}], **fields}
    headers = {"Authorization": f"Bearer {KEYS[who]}"}
    return HTTP.post(f"{base}/v1/chat/completions", json=body, headers=headers)


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with live_server(create_app(settings(), engine=FakeEngine(), certificates=POINTS)) as found:
        yield found


def test_a_key_brings_its_tenants_ceilings(base: str) -> None:
    told = ask(base, "strict").json()["desist"]
    assert (told["mode"], told["budget"], told["alpha"]) == ("shadow", 100, 0.02)
    assert ask(base, "free").json()["desist"]["mode"] == "active"
    assert ask(base, "strict", desist={"budget": 5}).json()["desist"]["budget"] == 5
    reply = ask(base, "strict", desist={"mode": "active"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (403, "desist.mode")
    reply = ask(base, "strict", desist={"alpha": "0.1"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (403, "desist.alpha")


def test_audits_are_left_out_for_who_opted_out() -> None:
    engine = AuditedEngine(traces=[[0.9, 0.1]])
    made = settings(monitor=MonitorSettings(audit_rate=1.0))
    made = made.model_copy(update={"tenants": made.tenants | {"strict": TenantSettings(audits=False)}})
    with live_server(create_app(made, engine=engine, certificates=[POINT])) as base:
        for who in ("strict", "free", "strict", "free"):
            assert ask(base, who).status_code == 200
        assert [request.audit for request in engine.requests] == [False, True, False, True]
        wait_for(lambda: metric(base, 'desist_audits_total{verdict="same"}') == 2)


def test_a_drift_of_one_tenant_is_not_the_others() -> None:
    drifted = traces(2, 200, power=2.5)
    engine = AuditedEngine(traces=drifted)
    with live_server(create_app(settings(), engine=engine, certificates=[POINT])) as base:
        for _ in range(150):
            ask(base, "apart")
        assert ask(base, "apart").json()["desist"]["mode"] == "shadow"
        assert ask(base, "free").json()["desist"]["mode"] == "active"
        watched = HTTP.get(f"{base}/readyz").json()["details"]["monitor"]
        assert watched["c-of-apart"]["alarm"] is not None
        assert watched["c"]["alarm"] is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a/b": {}}, "letters, digits"),
        ({"": {}}, "letters, digits"),
        ({"t": {"alpha": "2"}}, r"tenants\.t\.alpha is '2'.*above 0 and below 1"),
        ({"t": {"budget": -1}}, r"tenants\.t\.budget is -1"),
        ({"t": {"modus": "off"}}, r"tenants\.t\.modus is 'off': not a known setting. Did you mean mode\?"),
    ],
)
def test_tenants_that_are_none(value: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(None, {"tenants": value}, {})


def test_a_tenant_is_made_exactly() -> None:
    made = TenantSettings(alpha=0.1, mode="shadow", group="g").tenant("t")  # type: ignore[arg-type]
    assert made == Tenant("t", "shadow", Fraction(1, 10), group="g")
    assert replace(made, alpha=None).allows_alpha(Fraction(9, 10))
