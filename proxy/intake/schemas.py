"""Request bodies as pydantic models: what the proxy must understand of them, and no more.

Unknown fields are allowed and kept untouched in the raw body; our own options live in the one field
`desist`, where unknown keys are refused. Types are strict: `true` is no number and `"12"` no integer. What
the ecosystem's fields say about thinking is read by `desist.proxy.controls`, not here.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from desist.proxy.controls import values
from desist.proxy.controls.values import parse_alpha

__all__ = ["Alpha", "ChatBody", "CommonBody", "CompletionBody", "DesistField", "parse_alpha"]

_MAX_SEED = 2**63


def _stops(value: object) -> object:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > 16 or not all(isinstance(t, str) and t for t in texts):
        raise ValueError("must be a non-empty text or a list of at most 16 of them")
    return tuple(texts)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**31 for item in value)


def _prompts(value: object) -> object:
    """Any of the four forms as a tuple of prompts, each a text or a tuple of token ids."""
    if isinstance(value, str) or (value and _is_ids(value)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must not be empty and must be a text, texts, token ids, or lists of token ids")
    if not all(item and (isinstance(item, str) or _is_ids(item)) for item in value):
        raise ValueError("every prompt must be a non-empty text or a non-empty list of token ids")
    return tuple(item if isinstance(item, str) else tuple(item) for item in value)


def _content(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return value
    raise ValueError("must be a text, a list of content parts (objects), or null")


Alpha = Annotated[Fraction, BeforeValidator(parse_alpha)]
Budget = Annotated[int, Field(ge=-1, lt=2**63)]
Count = Annotated[int, Field(ge=1, le=2**31)]


class _Open(BaseModel):
    """Allows and keeps unknown fields."""

    model_config = ConfigDict(extra="allow", strict=True, arbitrary_types_allowed=True)


class DesistField(BaseModel):
    """Our own options of one request. What they mean: `desist.proxy.controls.aliases.OWN`."""

    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)

    mode: Annotated[Literal["off", "shadow", "active"] | None, BeforeValidator(values.mode_value)] = None
    budget: Annotated[Budget | None, BeforeValidator(values.budget_value)] = None
    effort: Annotated[str | None, BeforeValidator(values.effort_value)] = None
    alpha: Alpha | None = None
    threshold: Annotated[float | None, BeforeValidator(values.threshold_value)] = None
    answer: Annotated[Literal["write", "extract"] | None, BeforeValidator(values.answer_value)] = None
    reasoning_format: Annotated[
        Literal["field", "inline", "none"] | None, BeforeValidator(values.format_value)
    ] = None
    object: Annotated[bool | None, BeforeValidator(values.flag_value)] = None

    def said(self) -> dict[str, Any]:
        """What it says, by name; null says nothing."""
        return {name: value for name, value in self if value is not None}


class StreamOptions(_Open):
    include_usage: bool | None = None


class CommonBody(_Open):
    """What chat and text completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    seed: Annotated[int, Field(ge=-_MAX_SEED, lt=_MAX_SEED)] | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops)] = ()
    max_tokens: Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    desist: DesistField | None = None


class ChatMessage(_Open):
    role: Annotated[str, Field(min_length=1)]
    content: Annotated[Any, BeforeValidator(_content)] = None


class ChatBody(CommonBody):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Count | None = None

    @property
    def limit(self) -> int | None:
        """The limit on reasoning and answer together, in tokens: servers differ, so the smaller counts."""
        given = [limit for limit in (self.max_completion_tokens, self.max_tokens) if limit is not None]
        return min(given, default=None)


class CompletionBody(CommonBody):
    """Body of POST /v1/completions. `prompt`: one entry per prompt, a text or token ids."""

    prompt: Annotated[tuple[str | tuple[int, ...], ...], BeforeValidator(_prompts)]

    @property
    def limit(self) -> int | None:
        return self.max_tokens
