"""The body of POST /v1/responses, as far as it must be understood. Unknown fields are kept and passed on.

What OpenAI's own servers do with state or tools of theirs, and this one cannot, is refused and never ignored:
`request` says which.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from desist.proxy.intake.schemas import Count, DesistField

__all__ = ["FormatField", "ReasoningField", "ResponsesBody", "TextField"]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class ReasoningField(_Open):
    """`effort` is a budget by name, as everywhere; `summary` is taken note of: thinking is given whole."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class FormatField(_Open):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None
    description: str | None = None


class TextField(_Open):
    format: FormatField | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesBody(_Open):
    """Body of POST /v1/responses."""

    model: str | None = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextField | None = None
    reasoning: ReasoningField | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    truncation: str | None = None
    background: bool | None = None
    stream_options: dict[str, Any] | None = None
    user: str | None = None
    desist: DesistField | None = None
