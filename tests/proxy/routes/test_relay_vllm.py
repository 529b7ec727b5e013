"""Every path that the installed vLLM serves is either one that may be listed, or one that never can be."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from desist.proxy.relay.paths import DEFAULT_PATHS, GENERATING, is_forbidden
from desist.proxy.settings import RelaySettings

_ROUTES = frozenset({
    "get", "post", "put", "delete", "patch", "head", "route", "api_route", "add_api_route", "add_route",
    "websocket", "mount", "Mount", "APIRoute",
})  # fmt: skip
#: Reads, or computes once and keeps nothing. A path that is in no list is a new one: decide what it is.
HARMLESS = frozenset({
    *DEFAULT_PATHS,
    *GENERATING,
    "/tokenize", "/detokenize", "/tokenizer_info", "/version", "/health", "/ping", "/ready", "/readyz",
    "/static", "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses",
    "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/v1/messages/count_tokens",
    "/v1/chat/completions/render", "/v1/completions/render", "/v1/responses/render", "/v1/messages/render",
    "/cohere/v2/chat/render", "/v1/chat/completions/derender", "/v1/completions/derender",
})  # fmt: skip


def folder(package: str, *below: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed, so that there are no routes to read")
    return Path(found.origin).parent.joinpath(*below)


def routes(place: Path) -> set[str]:
    """Paths in the sources below `place`, where routers are told of them."""
    found = set()
    for file in place.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            keywords = [each.value for each in node.keywords if each.arg == "path"]
            for value in (*node.args[:1], *keywords):
                if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
                    continue
                if value.value.startswith("/") and (name in _ROUTES or name.startswith("register_")):
                    found.add(value.value)
    return found


def test_every_path_of_vllm_is_known_and_the_dangerous_ones_cannot_be_listed() -> None:
    served = routes(folder("vllm", "entrypoints"))
    assert {"/v1/chat/completions", "/tokenize", "/abort_requests", "/collective_rpc"} <= served
    assert {path for path in served if not is_forbidden(path)} <= HARMLESS
    for path in served:
        if is_forbidden(path):
            with pytest.raises(ValueError, match="never passed on"):
                RelaySettings(paths=(path,))
    assert not any(is_forbidden(path) for path in HARMLESS)


def test_adapters_of_sagemaker_cannot_be_loaded_through_the_proxy() -> None:
    """vLLM adds this library's routes where it is installed."""
    place = folder("model_hosting_container_standards", "sagemaker", "lora")
    source = "".join(file.read_text(encoding="utf-8") for file in place.rglob("*.py"))
    assert 'path="/adapters"' in source
    for path in ("/adapters", "/adapters/x", "/adapters/*"):
        with pytest.raises(ValueError, match="never passed on"):
            RelaySettings(paths=(path,))


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/version", "/v1/messages", "/v1/files/*"])
def test_what_is_harmless_can_be_listed(path: str) -> None:
    assert RelaySettings(paths=(path,)).paths == (path,)
