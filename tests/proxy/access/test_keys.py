"""Keys: files of them, who is let in on which path, and names of a proxy that asks for none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.data.errors import ControlError
from desist.proxy import Settings, SettingsError, create_app, load_settings
from desist.proxy.access.keys import Key, Keyring, checked_key, is_exposed, read_key_file, read_secret_file
from desist.proxy.lifecycle.serve import serve
from desist.proxy.settings import is_loopback
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server

KEYS = st.text(
    alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), min_size=1
)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@given(st.lists(st.tuples(KEYS, st.none() | KEYS), min_size=1, max_size=8))
def test_a_written_file_is_read_back(tmp_path_factory: pytest.TempPathFactory, keys: list[Any]) -> None:
    path = tmp_path_factory.mktemp("keys") / "keys"
    lines = ["# all of them", ""]
    lines += [f"  {key}{' ' + tenant if tenant else ''}  # note" for key, tenant in keys]
    path.write_text("\n".join(lines))
    assert read_key_file(path) == tuple(Key(key, tenant) for key, tenant in keys)


@given(
    st.lists(KEYS, min_size=1, max_size=6, unique=True), KEYS, st.sampled_from(["Bearer", "bearer", "BEARER"])
)
def test_only_a_whole_known_key_is_found(known: list[str], shown: str, scheme: str) -> None:
    ring = Keyring(Key(key, str(place)) for place, key in enumerate(known))
    for place, key in enumerate(known):
        assert ring.find(f"{scheme} {key}") == Key(key, str(place))
        assert ring.find(key) is None
        assert ring.find(f"Basic {key}") is None
        if key[:-1] not in known:
            assert ring.find(f"{scheme} {key[:-1]}") is None
    assert (ring.find(f"{scheme} {shown}") is not None) == (shown in known)
    assert not Keyring(())
    assert Keyring(()).find(f"Bearer {shown}") is None


def test_a_key_is_never_shown() -> None:
    assert "hush" not in repr(Key("hush", "a"))
    assert "hush" not in repr(Keyring([Key("hush")]).__dict__)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no key"),
        ("# nothing\n\n", "holds no key"),
        ("k1 team extra", "line 1, has 3 words"),
        ("ok\nsch\u00e4tz", "line 2: a key holds spaces or characters beyond ASCII"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ControlError, match=words) as caught:
        read_key_file(path)
    assert "sch\u00e4tz" not in str(caught.value)
    with pytest.raises(SettingsError, match="api_key_file"):
        load_settings(None, {"api_key_file": str(path)}, {})


def test_a_secret_file_holds_one_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("one\n")
    assert read_secret_file(path) == "one"
    path.write_text("one\ntwo\n")
    with pytest.raises(ControlError, match="one key and nothing else"):
        read_secret_file(path)
    with pytest.raises(ControlError, match="cannot be read"):
        read_secret_file(tmp_path / "none")
    path.chmod(0o600)
    assert not is_exposed(path)
    path.chmod(0o640)
    assert is_exposed(path)


@pytest.mark.parametrize("key", ["", "   ", "a b", "\u00fc", "a\x00b"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="a key"):
        checked_key(key)
    for settings in ({"api_keys": [key]}, {"operator_keys": [key]}):
        with pytest.raises(SettingsError):
            load_settings(None, settings, {})


def test_keys_from_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("filed team\n")
    settings: dict[str, Any] = {
        "api_keys": ["set", {"key": "named", "tenant": "team"}],
        "api_key_file": str(path),
    }
    made = load_settings(None, settings | {"tenants": {"team": {}}}, {})
    assert made.client_keys == (Key("set"), Key("named", "team"), Key("filed", "team"))
    listed = load_settings(None, {}, {"DESIST_API_KEYS": "a, b", "DESIST_OPERATOR_KEYS": '["op"]'})
    assert [key.secret for key in listed.client_keys] == ["a", "b"]
    assert [key.secret for key in listed.operators] == ["op"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api_keys": [{"key": "k", "tenant": "who"}]}, "names the tenant 'who'"),
        ({"api_keys": ["k"], "operator_keys": ["k"]}, "an operator key is a client key too"),
        (
            {
                "api_keys": [{"key": "k", "tenant": "a"}, {"key": "k", "tenant": "b"}],
                "tenants": {"a": {}, "b": {}},
            },
            "belongs to two tenants",
        ),
        (
            {"upstream": {"url": "http://h", "api_key": "a", "api_key_file": "f"}},
            "both api_key and api_key_file",
        ),
        ({"upstream": {"url": "http://h", "api_key": "a", "forward_authorization": True}}, "Leave one out"),
        ({"upstream": {"url": "http://h", "api_key_file": "/none"}}, "cannot be read"),
    ],
)
def test_keys_that_contradict(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(None, settings, {})


def test_the_upstream_key_is_one_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "up"
    path.write_text("# of the server\nbehind\n")
    made = load_settings(None, {"upstream": {"url": "http://h", "api_key_file": str(path)}}, {})
    assert made.upstream is not None
    assert made.upstream.key == "behind"
    assert "behind" not in str(made.shown()) + repr(made)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("third\n")
    keys: Any = ["first", "second"]
    settings = Settings(api_keys=keys, api_key_file=path, operator_keys=("boss",))  # type: ignore[arg-type]
    with live_server(create_app(settings, engine=FakeEngine(), certificates=[])) as base:
        yield base


PATHS = [
    ("GET", "/"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("POST", "/pause"),
    ("POST", "/abort_requests"),
    ("GET", "/openapi.json"),
    ("POST", "/desist/v1/mode"),
    ("POST", "/desist/v1/requests/abc/stop"),
    ("GET", "//v1/models"),
    ("GET", "/v1/models/"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "headers", [{}, bearer("thir"), {"Authorization": "Basic first"}, {"Authorization": "Bearer"}]
)
def test_every_client_route_asks_for_a_key(
    locked: str, method: str, path: str, headers: dict[str, str]
) -> None:
    reply = HTTP.request(method, locked + path, headers=headers, json=CHAT if method == "POST" else None)
    assert reply.status_code == 401
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize("key", ["first", "second", "third"])
def test_any_of_the_keys_opens(locked: str, key: str) -> None:
    reply = HTTP.post(f"{locked}/v1/chat/completions", json=CHAT, headers=bearer(key))
    assert reply.status_code == 200
    assert HTTP.get(f"{locked}/nowhere", headers=bearer(key)).status_code == 404


def test_health_and_counts_are_free(locked: str) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert HTTP.get(locked + path).status_code == 200


def test_an_operator_key_opens_what_is_the_operators(locked: str) -> None:
    ask = {"mode": "active"}
    assert HTTP.post(f"{locked}/desist/v1/mode", json=ask, headers=bearer("boss")).status_code == 200
    assert HTTP.post(f"{locked}/desist/v1/mode", json=ask, headers=bearer("first")).status_code == 401
    assert HTTP.post(f"{locked}/v1/chat/completions", json=CHAT, headers=bearer("boss")).status_code == 401


@pytest.fixture(scope="module")
def unlocked() -> Iterator[str]:
    settings = Settings(allowed_hosts=("desk.local",))
    with live_server(create_app(settings, engine=FakeEngine(), certificates=[])) as base:
        yield base


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "desk.local"}, 200),
        ({"Host": "[::1]:8100"}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost.evil.example:8100"}, 403),
        ({"Host": "10.0.0.1"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1@evil.example"}, 403),
    ],
)
def test_an_open_proxy_is_called_by_its_own_names_only(
    unlocked: str, headers: dict[str, str], status: int
) -> None:
    for path in ("/v1/models", "/readyz", "/metrics"):
        assert HTTP.get(unlocked + path, headers=headers).status_code == status
    assert HTTP.get(f"{unlocked}/healthz", headers=headers).status_code == 200


def test_names_do_not_matter_where_keys_are_asked_for(locked: str) -> None:
    headers = bearer("first") | {"Host": "api.example", "Origin": "https://app.example"}
    assert HTTP.get(f"{locked}/v1/models", headers=headers).status_code == 200


def test_operators_need_a_key_that_is_set(unlocked: str) -> None:
    reply = HTTP.post(f"{unlocked}/desist/v1/mode", json={"mode": "shadow"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "no_operator_keys")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_a_start_in_the_open_without_a_key_is_refused(host: str) -> None:
    with pytest.raises(ControlError, match=r"no client key is asked for.*allow_public"):
        serve(Settings(host=host, port=0), engine=FakeEngine())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST", "a.localhost", "[::1]"]
)
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "localhost.example", "1.2.3.4", "127.0.0.1.example"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_a_header_of_any_bytes_is_answered(locked: str) -> None:
    for value in (b"Bearer \xff\xfe", b"Bearer " + os.urandom(64).hex().encode() * 50, b"\xc3\xa9"):
        reply = httpx.get(f"{locked}/v1/models", headers=[(b"authorization", value)])
        assert reply.status_code == 401
