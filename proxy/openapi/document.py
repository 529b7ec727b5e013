"""Describes the routes as an OpenAPI document: what they take, what they answer, what they ask for.

Bodies are described by the very models that check them; a test compares the paths with those of the app.
What is passed on to the server behind is that server's to describe: such paths are only named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from desist._version import __version__
from desist.proxy.controls.aliases import ALIASES
from desist.proxy.intake.schemas import ChatBody, CompletionBody
from desist.proxy.openapi.answers import ANSWERS
from desist.proxy.responses.schema import ResponsesBody
from desist.proxy.routes.mode import ModeBody

__all__ = ["document"]

_REF = "#/components/schemas/"
_BODIES: tuple[type[BaseModel], ...] = (ChatBody, CompletionBody, ResponsesBody, ModeBody)
_ID = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TEXTS = {"type": "array", "items": {"type": "string", "minLength": 1}}
_PROMPT = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {**_TEXTS, "minItems": 1},
        {"type": "array", "items": _ID, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": _ID, "minItems": 1}, "minItems": 1},
    ]
}
_STOP = {"anyOf": [{"type": "string", "minLength": 1}, {**_TEXTS, "maxItems": 16}, {"type": "null"}]}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]}
_THRESHOLD = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}]}
# What a validator takes, where the type behind it does not tell.
_TAKEN: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("ChatBody", "stop"): _STOP,
    ("CompletionBody", "stop"): _STOP,
    ("CompletionBody", "prompt"): _PROMPT,
    ("ChatMessage", "content"): _CONTENT,
    ("DesistField", "threshold"): _THRESHOLD,
    ("DesistField", "alpha"): {"description": "above 0, below 1, exact", "examples": [0.05, "1/20"]},
}
_KEY: list[dict[str, list[str]]] = [{"key": []}]
_OPERATOR: list[dict[str, list[str]]] = [{"operator_key": []}]


class _Schemas(GenerateJsonSchema):
    """Types that JSON has no word for are described as anything."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


def document(*, passed_on: tuple[str, ...] = (), asks_for_keys: bool = True) -> dict[str, Any]:
    """The document. `passed_on`: paths that go to the server behind; `/*` at an end stands for all below."""
    paths = {path: _with_failures(item) for path, item in _PATHS.items()}
    for path in passed_on:
        if not path.endswith("/*"):
            paths[path] = {"post": _passed_on(path)}
    if not asks_for_keys:
        for item in paths.values():
            for operation in item.values():
                if operation.get("security") == _KEY:
                    operation["security"] = []
    schemes = {
        "key": {"type": "http", "scheme": "bearer", "description": "a client key (setting api_keys)"},
        "operator_key": {"type": "http", "scheme": "bearer", "description": "setting operator_keys"},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "desist",
            "version": __version__,
            "description": "Ends a reasoning model's thinking when its answer has settled. OpenAI's routes, "
            "with the `desist` object for what is asked and told beyond them.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": schemes},
    }


def _schemas() -> dict[str, Any]:
    found: dict[str, Any] = dict(ANSWERS)
    for kind in _BODIES:
        schema = kind.model_json_schema(ref_template=_REF + "{model}", schema_generator=_Schemas)
        found |= schema.pop("$defs", {})
        found[kind.__name__] = schema
    for (name, field), taken in _TAKEN.items():
        found[name]["properties"][field] = dict(taken)
    for name in ("ChatBody", "CompletionBody"):
        for alias in ALIASES:
            told = {"description": f"{alias.kind} ({alias.origin}): {alias.takes}"}
            if len(alias.path) == 1:
                found[name]["properties"].setdefault(alias.name, told)
    return found


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF + name}}}


def _operation(
    name: str,
    told: str,
    answer: str,
    *,
    body: str | None = None,
    streams: bool = False,
    security: list[dict[str, list[str]]] = _KEY,
    parameters: tuple[str, ...] = (),
) -> dict[str, Any]:
    content = _json(answer)
    if streams:
        content["text/event-stream"] = {}  # no schema can tell that its events' data are JSON
    out: dict[str, Any] = {
        "operationId": name,
        "summary": told,
        "security": security,
        "responses": {"200": {"description": "Done.", "content": content}},
    }
    if parameters:
        out["parameters"] = [
            {"name": each, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for each in parameters
        ]
    if body is not None:
        out["requestBody"] = {"required": True, "content": _json(body)}
    return out


def _with_failures(item: Mapping[str, Any]) -> dict[str, Any]:
    """Every operation may fail in one shape; which statuses there are depends on the server behind too."""
    failure = {"description": "A failure, with its status.", "content": _json("Error")}
    return {
        method: {**operation, "responses": {"default": failure, **operation["responses"]}}
        for method, operation in item.items()
    }


def _passed_on(path: str) -> dict[str, Any]:
    return {
        "operationId": "passed_on" + path.replace("/", "_").replace("-", "_").replace(".", "_"),
        "summary": "Passed on to the server behind, untouched.",
        "security": _KEY,
        "responses": {"default": {"description": "Whatever that server answers."}},
    }


_UNREADY = {"description": "Not ready, and why.", "content": _json("Ready")}
_RESPONSE = ("response_id",)
_PATHS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "/v1/chat/completions": {
        "post": _operation("chat", "A chat completion.", "ChatCompletion", body="ChatBody", streams=True)
    },
    "/v1/completions": {
        "post": _operation(
            "complete", "A text completion.", "Completion", body="CompletionBody", streams=True
        )
    },
    "/v1/responses": {
        "post": _operation("respond", "A response.", "Response", body="ResponsesBody", streams=True)
    },
    "/v1/responses/{response_id}": {
        "get": _operation("get_response", "A kept response.", "Response", parameters=_RESPONSE),
        "delete": _operation("delete_response", "Forget a response.", "Deleted", parameters=_RESPONSE),
    },
    "/v1/responses/{response_id}/input_items": {
        "get": _operation("list_input_items", "What came before it.", "ItemList", parameters=_RESPONSE)
    },
    "/v1/responses/{response_id}/cancel": {
        "post": _operation(
            "cancel_response", "Refused: none run in the background.", "Response", parameters=_RESPONSE
        )
    },
    "/v1/models": {"get": _operation("list_models", "The models served.", "ModelList")},
    "/v1/models/{model_id}": {
        "get": _operation("get_model", "One of them.", "Model", parameters=("model_id",))
    },
    "/desist/v1/requests/{request_id}/stop": {
        "post": _operation(
            "stop_request",
            "End the thinking of a running request now.",
            "Stopped",
            parameters=("request_id",),
        )
    },
    "/desist/v1/mode": {
        "get": _operation("get_mode", "Where the kill switch stands.", "Mode", security=_OPERATOR),
        "post": _operation("set_mode", "Turn the kill switch.", "Mode", body="ModeBody", security=_OPERATOR),
    },
    "/healthz": {"get": _operation("healthz", "The process lives.", "Health", security=[])},
    "/health": {
        "get": _operation("health", "The same, by the name that others ask for.", "Health", security=[])
    },
    "/readyz": {
        "get": _operation("readyz", "Requests can be served.", "Ready", security=[])
        | {"responses": {"200": {"description": "Ready.", "content": _json("Ready")}, "503": _UNREADY}}
    },
    "/metrics": {
        "get": {
            "operationId": "metrics",
            "summary": "Counts for Prometheus.",
            "security": [],
            "responses": {
                "200": {"description": "Counts.", "content": {"text/plain": {"schema": {"type": "string"}}}}
            },
        }
    },
    "/openapi.json": {
        "get": {
            "operationId": "openapi",
            "summary": "This document.",
            "security": _KEY,
            "responses": {
                "200": {"description": "It.", "content": {"application/json": {"schema": {"type": "object"}}}}
            },
        }
    },
}
