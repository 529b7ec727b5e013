"""The cells of the fault matrix: one fault at one moment of one request, what the client saw, and the verdict.

Knows the fake upstream and what a client may see: the right answer, or an error that says so. A clean end with text
lost, an error behind a finish_reason, a broken connection and a status that is not the upstream's are wrong.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from desist.proxy import Settings, create_app
from desist.proxy.settings import StreamSettings, UpstreamSettings
from tests.fakes.server import HTTP, live_server
from tests.fakes.upstream import FakeUpstream, Fault, served

__all__ = ["Bench", "Cell", "Seen", "all_cells", "bench", "judge", "see"]

Phase = Literal["before the cut", "between, once", "between, always", "after", "no cut"]
PHASES: tuple[Phase, ...] = ("before the cut", "between, once", "between, always", "after", "no cut")
BUDGET = 8
THOUGHTS = ("word ",) * 60
NATURAL = ("word ",) * 2  # thinking that ends before the budget, the tokens of its tags included
CONTINUED, ANSWER = (
    ("Zwölf ", "mal ", "drei 🤖 ", "ist ", "36."),
    ("It is ", "36 ", "🤖, ", *("and ",) * 7, "no ", "more."),
)
_WAIT_S = 0.25
_OPENAI = b'{"error": {"message": "told so", "type": "BadRequestError", "param": null, "code": %d}}'
_OLD = b'{"object": "error", "message": "told so", "type": "BadRequestError", "param": null, "code": %d}'
_HTML = b"<html><body>down</body></html>"


def _status(status: int, body: bytes = b"") -> Fault:
    return Fault("status", status=status, body=body or _OPENAI % status, headers={"retry-after": "7"})


#: Faults that strike before the headers, and the statuses by which a client may hear of them.
EARLY: Mapping[str, tuple[Fault, tuple[int, ...]]] = {
    "connection refused": (Fault("refused"), (502,)),
    "400, error object": (_status(400), (400,)),
    "400, older shape": (_status(400, _OLD % 400), (400,)),
    "404, detail": (_status(404, b'{"detail": "told so"}'), (404,)),
    "422, plain string": (_status(422, b'{"error": "told so"}'), (422,)),
    "429": (_status(429), (429,)),
    "500, no body": (_status(500, b" "), (500,)),
    "503, error object": (_status(503), (503,)),
    "503, HTML": (_status(503, _HTML), (503,)),
    "HTML with 200": (Fault("html"), (502,)),
    "empty with 200": (Fault("empty"), (502,)),
    "redirect": (Fault("redirect"), (502,)),
    "no gzip, called gzip": (Fault("garbage_gzip"), (502,)),
    "reset before headers": (Fault("reset"), (502,)),
    "closed before headers": (Fault("kill"), (502,)),
    "stall before headers": (Fault("stall"), (504,)),
}
#: Faults inside the stream.
INSIDE: Mapping[str, tuple[Fault, tuple[int, ...]]] = {
    "reset in the stream": (Fault("reset"), (502,)),
    "killed in the stream": (Fault("kill"), (502,)),
    "ends without finish": (Fault("end"), (502,)),
    "[DONE] without finish": (Fault("done"), (502,)),
    "stall in the stream": (Fault("stall"), (504,)),
    "half an event": (Fault("half_event"), (502,)),
    "half a character": (Fault("half_character"), (502,)),
    "broken character": (Fault("bad_utf8"), (502,)),
    "event is no JSON": (Fault("not_json"), (502,)),
    "error event": (Fault("error_event"), (400,)),
    "error event, older shape": (Fault("old_error_event"), (400,)),
    "error event, plain string": (Fault("plain_error_event"), (502,)),
    "gzip cut off": (Fault("cut_gzip"), (502,)),
}
#: What is no fault at all, and must not be taken for one.
HARMLESS: Mapping[str, Fault] = {
    "gzip": Fault("gzip"),
    "characters in halves": Fault("split_bytes"),
}


@dataclass(frozen=True)
class Cell:
    """`name` of the fault at `phase`; `ids`: the upstream can give token ids."""

    name: str
    phase: Phase
    stream: bool
    ids: bool = False

    @property
    def fault(self) -> Fault:
        call = {"between, once": 1, "between, always": "continuation", "after": "continuation"}.get(
            self.phase, 0
        )
        if self.name in HARMLESS:
            return Fault(HARMLESS[self.name].kind, call)  # type: ignore[arg-type]
        fault = (EARLY.get(self.name) or INSIDE[self.name])[0]
        if self.name in EARLY:
            after = None
        else:
            after = {"before the cut": 4, "after": 2, "no cut": len(NATURAL) + 6}.get(self.phase, 0)
        return Fault(fault.kind, call, after, fault.status, fault.body, fault.headers)  # type: ignore[arg-type]

    @property
    def statuses(self) -> tuple[int, ...]:
        """Those of a correct error; empty: nothing is wrong here."""
        return () if self.name in HARMLESS else (EARLY.get(self.name) or INSIDE[self.name])[1]

    @property
    def cut(self) -> bool:
        return self.phase != "no cut"

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.phase}, {'stream' if self.stream else 'whole'}{', ids' if self.ids else ''}"
        )


def all_cells(ids: bool = False) -> list[Cell]:
    """Every fault at every moment at which it can happen, streamed and not."""
    made = []
    for name in (*EARLY, *INSIDE, *HARMLESS):
        for phase in PHASES:
            if name in EARLY and phase in ("after", "no cut"):
                continue  # nothing is begun there any more
            if name == "connection refused" and phase == "between, once":
                continue  # a server that is gone stays so
            if name in HARMLESS and phase == "between, once":
                continue
            made += [Cell(name, phase, stream, ids) for stream in (True, False)]
    return made


@dataclass
class Bench:
    """A fake upstream and proxies before it, used for one cell after the other; `hasty` waits less."""

    fake: FakeUpstream
    base: str
    hasty: str


@contextmanager
def bench() -> Iterator[Bench]:
    """A fresh pair."""
    fake = FakeUpstream()
    with ExitStack() as servers:
        url = servers.enter_context(served(fake))
        yield Bench(fake, *(servers.enter_context(_proxy(url, wait_s)) for wait_s in (30.0, _WAIT_S)))


@contextmanager
def _proxy(url: str, wait_s: float = 30.0) -> Iterator[str]:
    upstream = UpstreamSettings(url=url, self_test=False, first_byte_s=wait_s, idle_s=wait_s)
    settings = Settings(
        engine="upstream",
        upstream=upstream,
        stream=StreamSettings(reasoning_field="reasoning", heartbeat_s=0),
    )
    with live_server(create_app(settings)) as base:
        yield base


@dataclass(frozen=True)
class Seen:
    """What the client saw. `status`: that of the error if there was one; `faults`: what no client should see."""

    status: int
    told: str = ""
    reasoning: str = ""
    content: str = ""
    finish: str | None = None
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.faults:
            return "; ".join(self.faults)
        return f"error {self.status}" if self.told else "the answer"


def see(cell: Cell, at: Bench) -> Seen:
    """Run one cell. A refused connection needs servers of its own."""
    if cell.name != "connection refused":
        return _ask(cell, at.fake, at.hasty if "stall" in cell.name else at.base)
    if cell.phase == "before the cut":
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            with _proxy(f"http://127.0.0.1:{closed.getsockname()[1]}") as base:
                return _ask(cell, FakeUpstream(), base)
    with bench() as own:
        return _ask(cell, own.fake, own.base)


def _ask(cell: Cell, fake: FakeUpstream, base: str) -> Seen:
    fake.__init__(  # type: ignore[misc]
        thoughts=THOUGHTS if cell.cut else NATURAL,
        answer=ANSWER,
        continued=CONTINUED,
        faults=() if cell.phase == "between, always" and cell.name == "connection refused" else (cell.fault,),
        token_ids=cell.ids,
        stall_s=_WAIT_S * 3,
        stop_listening=fake.stop_listening,
    )
    if cell.name == "connection refused":
        fake.faults = (Fault("refused", 1),)
    body = {
        "messages": [{"role": "user", "content": "12 * 3?"}],
        "stream": cell.stream,
        "max_tokens": 400,
        "desist": {"budget": BUDGET},
    }
    try:
        reply = HTTP.post(f"{base}/v1/chat/completions", json=body)
    except httpx.HTTPError as error:
        return Seen(0, faults=(f"the connection broke: {type(error).__name__}",))
    if reply.status_code != 200:
        return _early_error(reply)
    return _streamed(reply.text) if cell.stream else _whole(reply.json())


def _early_error(reply: httpx.Response) -> Seen:
    try:
        error = reply.json()["error"]
        told = error["message"]
    except (ValueError, KeyError, TypeError):
        return Seen(reply.status_code, faults=(f"{reply.status_code} without an error object",))
    wrong = () if isinstance(told, str) and told else ("an error without a message",)
    return Seen(reply.status_code, str(told), faults=wrong)


def _whole(body: dict[str, Any]) -> Seen:
    choice = body["choices"][0]
    message = choice["message"]
    return Seen(200, "", message.get("reasoning") or "", message["content"] or "", choice["finish_reason"])


def _streamed(text: str) -> Seen:
    events = [each.removeprefix("data: ") for each in text.split("\n\n") if each and not each.startswith(":")]
    faults = []
    if not events or events[-1] != "[DONE]" or events.count("[DONE]") != 1:
        faults.append("no [DONE] at the end")
    told, status, reasoning, content, finishes = "", 200, "", "", []
    for event in events:
        if event == "[DONE]":
            continue
        chunk = json.loads(event)
        if "error" in chunk:
            if told:
                faults.append("two error events")
            told, status = chunk["error"]["message"], chunk["error"].get("status") or 0
            continue
        if told:
            faults.append("text after the error event")
        for choice in chunk["choices"]:
            delta = choice["delta"]
            reasoning += delta.get("reasoning") or ""
            content += delta.get("content") or ""
            if choice.get("finish_reason"):
                finishes.append(choice["finish_reason"])
    if told and finishes:
        faults.append("an error and a finish_reason")
    if not told and len(finishes) != 1:
        faults.append(f"{len(finishes)} finish reasons and no error")
    return Seen(status, told, reasoning, content, finishes[0] if finishes else None, tuple(faults))


def judge(cell: Cell, seen: Seen) -> str | None:
    """Why what was seen is wrong, or None if it is right."""
    if seen.faults:
        return "; ".join(seen.faults)
    answer = "".join(CONTINUED if cell.cut else ANSWER)
    thoughts = "".join(THOUGHTS if cell.cut else NATURAL)
    kept = seen.reasoning.partition("I have enough")[0].rstrip()
    if not thoughts.startswith(kept):
        return f"reasoning {seen.reasoning!r} is not what the model thought"
    if seen.told:
        if not cell.statuses:
            return f"an error where nothing was wrong: {seen.told}"
        if seen.status not in cell.statuses:
            return f"status {seen.status}, not {' or '.join(map(str, cell.statuses))}"
        return (
            None if answer.startswith(seen.content) else f"content {seen.content!r} is not what was written"
        )
    if seen.finish != "stop":
        return f"finish_reason {seen.finish!r} for a whole answer"
    if seen.content != answer:
        return f"a clean end, but content {seen.content!r}"
    if not cell.cut and seen.reasoning != thoughts:
        return f"a clean end, but reasoning {seen.reasoning!r}"
    return None
