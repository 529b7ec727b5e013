"""The seam between the proxy and whatever generates tokens.

An engine turns one `GenerationRequest` into a stream of events: `Delta`* then exactly one `Finished`
(or it raises an `EngineError`). Closing the stream early (`aclose`) stops the generation. The proxy
knows nothing else of an engine; tests put a fake of twenty lines in its place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from desist.controller.core import Control, Decision, StopReason
from desist.data.schema import Message, Sampling

__all__ = [
    "Audited",
    "Auditing",
    "Batching",
    "Delta",
    "Engine",
    "Event",
    "Finished",
    "GenerationRequest",
    "ModelCard",
    "Need",
    "ScoredBoundary",
    "Stopping",
    "Usage",
]

Need = Literal["text", "logprobs", "hidden", "forced_answer", "continuations"]
# "stop" or "length"; an upstream engine hands on whatever its server said ("tool_calls", ...).
FinishReason = str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One choice of one request. Exactly one of `messages` and `prompt` is given.

    `extra` holds request fields that the proxy does not know; an upstream engine passes them on
    untouched. `template` holds chat_template_kwargs (for example enable_thinking). `body` is the whole
    request body as the client sent it and `headers` those of its headers that may go on (lower case):
    an engine that hands requests on starts from them and changes only what it must. `audit`: beside a stop
    by score the request also runs on; see `Auditing`.
    """

    request_id: str
    model: str
    sampling: Sampling
    control: Control
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    top_k: int | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    audit: bool = False


class Delta(msgspec.Struct, frozen=True):
    """Newly generated text of one channel. `token_ids` is empty where the engine cannot tell them.

    `extra` holds further fields of the message delta (tool_calls, ...) and `choice_extra` of the choice
    (logprobs, ...) that the proxy hands on as they are.
    """

    channel: Literal["reasoning", "content"]
    text: str
    token_ids: tuple[int, ...] = ()
    extra: Mapping[str, Any] | None = None
    choice_extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ScoredBoundary:
    """A boundary that was scored and what was decided there (or would have been, in shadow)."""

    index: int
    position: int
    kind: str
    text: str
    scores: Mapping[str, float]
    decision: Decision


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one choice. `handoff_tokens` were forced, not sampled; they count as generated.

    `rewound_tokens` were generated and thrown away (closing by abort and continuation), `reprefill_tokens`
    were read a second time for the continuation (a prefix cache makes them cheap); they are no prompt tokens
    of the client's. `estimated`: some count rests on characters, because the server told none.
    """

    prompt_tokens: int
    reasoning_tokens: int
    answer_tokens: int
    handoff_tokens: int = 0
    rewound_tokens: int = 0
    reprefill_tokens: int = 0
    estimated: bool = False

    @property
    def completion_tokens(self) -> int:
        """Everything generated and paid for."""
        return self.reasoning_tokens + self.answer_tokens + self.handoff_tokens + self.rewound_tokens


@dataclass(frozen=True, slots=True)
class Finished:
    """End of one choice. `decision` is the stop (None if thinking ended by itself).

    `shadow` is the first stop that shadow mode would have made. `uncontrolled` says why the trace was
    passed through unscored although control was asked for (None: it was scored). `extra` holds further
    fields of the whole response (system_fingerprint, ...) that the proxy hands on as they are. `budget_by`:
    whose limit ended thinking where several act (stop reason "budget"); None: there is one, or none fired.
    """

    finish_reason: FinishReason
    stop_reason: StopReason
    usage: Usage
    decision: Decision | None = None
    shadow: Decision | None = None
    boundaries: tuple[ScoredBoundary, ...] = ()
    uncontrolled: str | None = None
    extra: Mapping[str, Any] | None = None
    budget_by: Literal["proxy", "upstream"] | None = None


Event = Delta | Finished


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What GET /v1/models tells of one served model."""

    model_id: str
    max_model_len: int | None = None
    owned_by: str = "desist"


class Engine(Protocol):
    """What the proxy asks of an engine."""

    @property
    def offers(self) -> frozenset[Need]: ...

    async def start(self) -> None:
        """Load what is needed. Called once, before the first request."""

    async def close(self) -> None:
        """Stop everything that runs. Requests in flight end with an EngineError."""

    async def ready(self) -> str | None:
        """None if requests can be served, else the reason why not (for /readyz)."""

    async def models(self) -> tuple[ModelCard, ...]: ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]: ...


class Batching(Protocol):
    """What an engine offers besides `generate` where several events come at once."""

    def batches(self, request: GenerationRequest) -> AsyncGenerator[list[Event], None]:
        """The events of `generate`, those that are ready at the same time as one list; none waits for
        another.

        An empty list says that the generation is alive although nothing can be shown yet.
        """


@dataclass(frozen=True, slots=True)
class Audited:
    """An audited request that has come to both its ends. The texts are for the judge only, never kept.

    `decision`: the stop by score; None: there was none, the client has the full run's answer. `client_answer`
    and `client_tokens` are what the client got, `full_answer` and `full_tokens` those of the run that went
    on; `extra_tokens` were generated for the audit alone.
    """

    request_id: str
    decision: Decision | None
    client_answer: str
    full_answer: str
    client_tokens: int
    full_tokens: int
    extra_tokens: int


class Stopping(Protocol):
    """What an engine offers besides where the thinking of a running request can be ended by hand."""

    async def stop(self, request_id: str) -> bool:
        """End the thinking of one running choice, at the next place where that is clean, in any mode.

        `request_id` as in its `GenerationRequest`. False: its thinking is over, or it is not there. Raises
        `EngineError` where this choice cannot be stopped, saying why.
        """


class Auditing(Protocol):
    """What an engine offers besides where it can audit.

    A request with `audit` is served as any other; where a score stops it, a copy goes on from there with the
    same sampler and the prefix that was read, at the lowest priority.
    """

    def tell_audits(self, told: Callable[[Audited], None]) -> None:
        """Call `told` on the event loop for each audited request that came to its ends.

        One whose client left, or whose engine failed, is never told of.
        """

    @property
    def audits_running(self) -> int:
        """Copies that go on, or wait to."""
