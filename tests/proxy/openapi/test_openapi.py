"""The OpenAPI document: true to the routes, and a source of requests that none of them may fail on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from desist.proxy import Settings, create_app
from desist.proxy.openapi.document import document
from desist.proxy.settings import LimitSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.raw_upstream import FrontEngine, RawUpstream, front
from tests.fakes.server import live_server

OPERATIONS = [
    (path, method) for path, item in document()["paths"].items() for method in item if path != "/openapi.json"
]
# What cannot be told in a schema: which model names, ids and budgets there are, and that unknown fields may
# come. (Keys have a test of their own.)
BEYOND = ("positive_data_acceptance", "negative_data_rejection", "ignored_auth")
KEYS = {"authorization": "Bearer client"}


@pytest.fixture(scope="module", params=["own", "handed on"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def base(kind: str) -> Iterator[str]:
    limits = LimitSettings(max_choices=4)
    keys: Any = {"api_keys": ("client",), "operator_keys": ("operator",), "limits": limits}
    if kind == "own":
        app = create_app(Settings(**keys), engine=FakeEngine(), certificates=[])
        with live_server(app) as address:
            yield address
        return
    with live_server(RawUpstream()) as direct:
        ours, engine = front(direct, **keys)
        with live_server(create_app(ours, engine=engine, certificates=[])) as address:
            yield address


@pytest.fixture(scope="module")
def described(base: str) -> Any:
    return schemathesis.openapi.from_url(f"{base}/openapi.json", headers=KEYS)


@pytest.mark.parametrize(
    "examples", [60, pytest.param(200, marks=pytest.mark.extended)], ids=["some", "many"]
)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["good", "bad"])
@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=[f"{m} {p}" for p, m in OPERATIONS])
def test_no_request_breaks_a_route_or_its_description(
    path: str, method: str, mode: GenerationMode, examples: int, described: Any, kind: str
) -> None:
    if kind != "own" and path not in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        pytest.skip("it does not know whether a server stands behind")
    operation = described[path][method.upper()]
    headers = {"authorization": "Bearer operator"} if path == "/desist/v1/mode" else KEYS
    # What a server answers to a request that is passed on untouched is that server's affair.
    beyond = BEYOND if kind == "own" else (*BEYOND, "response_schema_conformance")
    excluded = [each for each in schemathesis.checks.CHECKS.get_all() if each.__name__ in beyond]
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.path_parameters):
        pytest.skip("it takes nothing that could be bad")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        case.call_and_validate(headers=headers, excluded_checks=excluded, timeout=20)

    check()


def test_every_route_asks_for_the_key_that_it_says(base: str) -> None:
    with httpx.Client(base_url=base) as http:
        for path, item in document()["paths"].items():
            for method, operation in item.items():
                url = re.sub(r"{\w+}", "x", path)
                wanted = 401 if operation.get("security") else 200
                assert http.request(method, url).status_code == wanted, (method, path)
                foreign = {"authorization": "Bearer another"}
                assert http.request(method, url, headers=foreign).status_code == wanted, (method, path)
                if wanted == 401:
                    assert http.request(method, url).json()["error"]["code"] == "invalid_api_key"


def test_every_route_is_described_and_nothing_else() -> None:
    app = create_app(Settings(), engine=FakeEngine(), certificates=[])
    routes = {
        (re.sub(r":\w+}", "}", route.path), method.lower())  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    told = {(path, method) for path, item in document()["paths"].items() for method in item}
    assert told == routes


def test_references_and_names_are_sound() -> None:
    whole = document(passed_on=("/v1/embeddings", "/v1/files/*"))
    names = set(re.findall(r"#/components/schemas/(\w+)", str(whole)))
    assert names <= set(whole["components"]["schemas"])
    ids = [operation["operationId"] for item in whole["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids))
    assert "/v1/embeddings" in whole["paths"]
    assert not any("*" in path for path in whole["paths"])
    properties = whole["components"]["schemas"]["ChatBody"]["properties"]
    assert {"thinking_token_budget", "reasoning_effort", "desist", "messages"} <= set(properties)


def test_it_asks_for_a_key_and_can_be_switched_off() -> None:
    with (
        live_server(create_app(Settings(api_keys=("k",)), engine=FakeEngine(), certificates=[])) as base,
        httpx.Client(base_url=base) as http,
    ):
        assert http.get("/openapi.json").status_code == 401
        told = http.get("/openapi.json", headers={"authorization": "Bearer k"})
        assert told.json()["openapi"].startswith("3.1")
        assert told.json()["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    with (
        live_server(create_app(Settings(openapi=False), engine=FakeEngine(), certificates=[])) as base,
        httpx.Client(base_url=base) as http,
    ):
        assert http.get("/openapi.json").json()["error"]["code"] == "path_not_found"


def test_what_is_passed_on_is_named_where_there_is_a_server_behind() -> None:
    settings_, engine = front("http://127.0.0.1:9")
    assert isinstance(engine, FrontEngine)
    with live_server(create_app(settings_, engine=engine, certificates=[])) as base:
        told = httpx.get(f"{base}/openapi.json").json()["paths"]
    assert "/v1/embeddings" in told
    assert told["/v1/models"]["get"]["security"] == []
