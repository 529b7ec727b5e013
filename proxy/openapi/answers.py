"""What responses hold, as JSON schemas: what a client may rely on, no more.

Knows the objects of the routes as they leave. Objects may hold further fields, those of the server behind
too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ANSWERS"]

Schema = dict[str, Any]
_TEXT, _COUNT, _FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
_TEXT_OR_NONE = {"type": ["string", "null"]}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_ERROR = _object(
    {"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NONE, "code": {"type": ["string", "integer", "null"]}}
)
_HEAD = {"id": _TEXT, "created": _COUNT, "model": _TEXT}
_THINKING = {"reasoning": _TEXT_OR_NONE, "reasoning_content": _TEXT_OR_NONE}
_DESIST = {"desist": _ref("Desist")}
_MODEL = _object({"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT})

ANSWERS: Mapping[str, Schema] = {
    "Error": {
        **_object({"error": {**_ERROR, "required": ["message"]}}),
        "description": "A failure, OpenAI's shape.",
    },
    "Usage": _object(
        {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
        {"completion_tokens_details": _object({"reasoning_tokens": _COUNT})},
    ),
    "Desist": {
        **_object(
            {
                "mode": {"enum": ["off", "shadow", "active"]},
                "stop_reason": _TEXT_OR_NONE,
                "certified": _FLAG,
                "generated_tokens": _COUNT,
                "reasoning_tokens": _COUNT,
                "answer_tokens": _COUNT,
            }
        ),
        "description": "What was done with the thinking, and what it cost.",
    },
    "ChatCompletion": _object(
        {
            **_HEAD,
            "object": {"const": "chat.completion"},
            "choices": _list(
                _object(
                    {
                        "index": _COUNT,
                        "message": _object(
                            {"role": {"const": "assistant"}, "content": _TEXT_OR_NONE}, _THINKING
                        ),
                        "finish_reason": _TEXT,
                    }
                )
            ),
            "usage": _ref("Usage"),
        },
        _DESIST,
    ),
    "Completion": _object(
        {
            **_HEAD,
            "object": {"const": "text_completion"},
            "choices": _list(_object({"index": _COUNT, "text": _TEXT, "finish_reason": _TEXT}, _THINKING)),
            "usage": _ref("Usage"),
        },
        _DESIST,
    ),
    "Response": _object(
        {
            "id": _TEXT,
            "object": {"const": "response"},
            "created_at": _COUNT,
            "status": {"enum": ["completed", "incomplete", "in_progress", "failed"]},
            "model": _TEXT,
            "output": _list(
                _object({"id": _TEXT, "type": {"enum": ["reasoning", "message", "function_call"]}})
            ),
            "usage": {
                "oneOf": [
                    {"type": "null"},
                    _object(
                        {
                            "input_tokens": _COUNT,
                            "output_tokens": _COUNT,
                            "total_tokens": _COUNT,
                            "output_tokens_details": _object({"reasoning_tokens": _COUNT}),
                        }
                    ),
                ]
            },
            "store": _FLAG,
        },
        _DESIST,
    ),
    "ItemList": _object({"object": {"const": "list"}, "data": _list({"type": "object"}), "has_more": _FLAG}),
    "Deleted": _object({"id": _TEXT, "object": {"const": "response"}, "deleted": {"const": True}}),
    "Model": _MODEL,
    "ModelList": _object({"object": {"const": "list"}, "data": _list(_ref("Model"))}),
    "Stopped": _object(
        {
            "id": _TEXT,
            "object": {"const": "desist.stop"},
            "choices": _COUNT,
            "stopped": _COUNT,
            "over": _COUNT,
            "refused": _COUNT,
        }
    ),
    "Mode": _object(
        {"object": {"const": "desist.mode"}, "cap": {"enum": ["off", "shadow", "active"]}},
        {"default": _TEXT, "persistent": _FLAG, "failure": _TEXT},
    ),
    "Health": _object({"status": {"const": "ok"}, "version": _TEXT}),
    "Ready": _object(
        {"status": {"enum": ["ready", "unavailable"]}, "version": _TEXT, "engine": _TEXT, "mode": _TEXT}
    ),
}
