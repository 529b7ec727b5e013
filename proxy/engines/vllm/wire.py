"""What plugin and proxy say to each other: events out of the engine, commands into it.

MessagePack structs with a tag each (msgspec), as vLLM's own KV events. Knows no sockets. Fields are only
ever added at the end, with defaults; `WIRE_VERSION` changes when a meaning does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from desist.controller.core import Action, Decision, StopReason

__all__ = [
    "WIRE_VERSION",
    "Batch",
    "Blocked",
    "Closed",
    "Command",
    "CommandDone",
    "Event",
    "Hello",
    "Identity",
    "Opened",
    "Ping",
    "Reload",
    "Scored",
    "SetMode",
    "StopNow",
    "Stopped",
    "Told",
    "decode_batch",
    "decode_command",
    "encode",
]

WIRE_VERSION = 1


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """One choice of one request: the client's key, the prompt's and the choice's number."""

    key: str
    prompt: int = 0
    choice: int = 0


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A `Decision` on the wire."""

    action: str
    reason: str
    position: int
    index: int | None = None
    score: float | None = None
    certified: bool = False

    @classmethod
    def of(cls, decision: Decision) -> Told:
        return cls(
            str(decision.action),
            str(decision.reason),
            decision.position,
            decision.index,
            decision.score,
            decision.certified,
        )

    def decision(self) -> Decision:
        """The decision again. Raises `ValueError` for an action or reason that this release does not know."""
        return Decision(
            Action(self.action),
            StopReason(self.reason),
            self.position,
            self.index,
            self.score,
            self.certified,
        )


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """Sent to each new subscriber and after each reload: what runs in the engine.

    `taps`: layers read (index from the front; the last one is after the final norm). `scorers`: names of
    the scores computed in the engine. `fingerprints`: those of the running model and its probes.
    `cap`: the highest mode that requests may use now. `outside`: whether commands that change requests
    are obeyed. `rank`: data-parallel rank. `parser`: the server's reasoning parser, empty without one.
    """

    wire: int
    version: str
    vllm: str
    runner: str
    rank: int
    decide: str
    stream: str | None
    taps: tuple[int, ...]
    hidden_size: int
    scorers: tuple[str, ...]
    fingerprints: dict[str, str]
    cap: str
    outside: bool
    commands: str | None = None
    parser: str = ""


class Opened(msgspec.Struct, tag="open", frozen=True):
    """A controlled request runs. `uncontrolled`: why nothing will be decided, if so."""

    identity: Identity
    prompt_tokens: int
    mode: str
    uncontrolled: str | None = None


class Scored(msgspec.Struct, tag="scored", frozen=True):
    """One boundary. `n` numbers the request's events from 0; `tokens` were generated up to here.

    `scores` may be empty (mode off with a stream, `decide: proxy`). `hidden`: the taps side by side, as the
    float type `dtype` ("float32" or "bfloat16") in native byte order; None unless streamed.
    """

    identity: Identity
    n: int
    index: int
    position: int
    tokens: int
    kind: str
    text: str
    scores: dict[str, float]
    decision: Told
    held: bool = False
    hidden: bytes | None = None
    dtype: str | None = None


class Stopped(msgspec.Struct, tag="stopped", frozen=True):
    """Thinking was stopped: the hand-off follows the first `tokens` generated ones."""

    identity: Identity
    n: int
    decision: Told
    tokens: int
    handoff: tuple[int, ...]


class Blocked(msgspec.Struct, tag="blocked", frozen=True):
    """A stop could not be carried out at `position` (a masked token); thinking runs on."""

    identity: Identity
    n: int
    position: int
    why: str


class Closed(msgspec.Struct, tag="closed", frozen=True):
    """The last event of a request, which had `n` numbered ones before. Counts as the plugin saw them.

    `tokens` were generated and read (the very last one is never read). `token_hidden`: rows [reasoning, D]
    float32 at the token tap, where one is kept.
    """

    identity: Identity
    n: int
    tokens: int
    reasoning_tokens: int
    handoff_tokens: int
    stop_reason: str
    decision: Told | None = None
    shadow: Told | None = None
    uncontrolled: str | None = None
    token_hidden: bytes | None = None


class CommandDone(msgspec.Struct, tag="done", frozen=True):
    """The answer to a command: what was done, or why not."""

    command: str
    ok: bool
    message: str


Event = Hello | Opened | Scored | Stopped | Blocked | Closed | CommandDone


class Batch(msgspec.Struct, frozen=True):
    """The events of one step. `seq` counts batches from 0, `dropped` the events lost for want of room."""

    seq: int
    ts: float
    rank: int
    dropped: int
    events: list[Event]


class StopNow(msgspec.Struct, tag="stop", frozen=True):
    """End the thinking of a request at its next token outside a hold-off zone.

    `identity` None with a `key`: all choices of that key. The other fields are what is reported.
    """

    id: str
    key: str
    identity: Identity | None = None
    reason: str = "manual"
    index: int | None = None
    score: float | None = None
    certified: bool = False


class SetMode(msgspec.Struct, tag="mode", frozen=True):
    """The kill switch: the highest mode that any request may use from now on."""

    id: str
    cap: Literal["off", "shadow", "active"]


class Reload(msgspec.Struct, tag="reload", frozen=True):
    """Load other probes and certificates; None keeps what is there. Same taps only."""

    id: str
    probe: str | None = None
    rom: str | None = None
    certificates: tuple[str, ...] | None = None
    force: bool = False


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """Answered at the next step or, on an idle engine, at once."""

    id: str


Command = StopNow | SetMode | Reload | Ping

encode = msgspec.msgpack.Encoder().encode
_batches = msgspec.msgpack.Decoder(Batch)
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def decode_batch(data: bytes) -> Batch:
    """Read a batch. Raises `msgspec.DecodeError`."""
    return _batches.decode(data)


def decode_command(data: bytes) -> Command:
    """Read a command. Raises `msgspec.DecodeError`."""
    return _commands.decode(data)
