"""What an upstream's capabilities mean to whoever uses the proxy, in plain words.

Knows `Capabilities` and how the engine goes by them. Tries nothing out.
"""

from __future__ import annotations

from collections.abc import Iterable

from desist.proxy.doctor.findings import Finding, State
from desist.proxy.engines.upstream.capabilities import Capabilities

__all__ = ["TOPICS", "told_by_upstream"]

#: What can be asked for by name, beside "budget".
TOPICS = (
    "thinking",
    "token ids",
    "continuation",
    "final message",
    "native budget",
    "running usage",
    "reasoning tokens",
    "choices",
    "tools",
    "streaming",
    "cancel",
)
_WAYS = {
    "prompt_ids": (
        "a stopped request goes on from token ids through /v1/completions",
        "what was thought is kept id by id, with the prefix cached; thinking and tool calls are parsed here",
    ),
    "final_message": (
        "a stopped request goes on as a last assistant message that is left open",
        "the chat template was seen to keep it unchanged",
    ),
    "text": (
        "a stopped request goes on from text",
        "the server encodes the text anew: a template that strips thinking may lose what was thought, and "
        "requests with tools or a schema are not stopped",
    ),
}


def told_by_upstream(seen: Capabilities) -> list[Finding]:
    """A finding for each capability, then the conflicts, which all fail."""
    notes = _Notes(seen.notes)
    if not seen.examined:
        return [Finding("trials", "fails", notes.of("start"), "nothing is known of this server")]
    found = [
        _thinking(seen, notes),
        _streaming(seen, notes),
        _simple("token ids", seen.token_ids, "return_token_ids is honoured on chat", "none come", notes,
                off="counts come from usage, and a stop goes on from text"),
        _continuation(seen, notes),
        _simple("final message", seen.final_message, "one that is continued is rendered unchanged", "", notes,
                off="" if seen.way == "prompt_ids" else "not used to go on after a stop"),
        _native(seen, notes),
        _simple("running usage", seen.running_usage, "chunks carry token counts", "none while it runs", notes,
                off="" if seen.token_ids else "budgets are counted by characters (upstream.chars_per_token)",
                topic=""),
        _simple("reasoning tokens", seen.usage_details, "usage tells them", "usage does not tell them", notes,
                off="desist counts them itself", topic="usage"),
        _simple("choices", seen.choices, "n > 1 works", "", notes, off="requests with n > 1 fail upstream"),
        _simple("tools", seen.tools, "requests with tools are taken", "", notes,
                on="a request with tools is stopped only where the stop can go on from token ids"
                if seen.way == "prompt_ids" else "requests with tools are not stopped: they would be lost",
                off="requests with tools fail upstream"),
        _cancel(seen, notes),
        *_tags(seen, notes),
    ]  # fmt: skip
    return found + [_conflict(each) for each in seen.conflicts]


class _Notes:
    """Notes by what they are about."""

    def __init__(self, notes: Iterable[str]) -> None:
        self._by: dict[str, list[str]] = {}
        for note in notes:
            topic, _, text = note.partition(": ")
            self._by.setdefault(topic, []).append(text)

    def of(self, topic: str) -> str:
        return "; ".join(self._by.get(topic, ()))

    def after(self, topic: str) -> str:
        told = self.of(topic)
        return f" ({told})" if told else ""


def _simple(
    what: str, works: bool, yes: str, no: str, notes: _Notes, *, on: str = "", off: str = "",
    topic: str | None = None,
) -> Finding:  # fmt: skip
    told = notes.of(what if topic is None else topic)
    seen = yes if works else "; ".join(filter(None, (no, told))) or "not seen"
    return Finding(what, "on" if works else "off", seen, on if works else off)


def _thinking(seen: Capabilities, notes: _Notes) -> Finding:
    told = notes.of("thinking")
    if not seen.thinks:
        return Finding("thinking", "off", told or "none was seen", "there is nothing to stop")
    where = f"field {seen.reasoning_field!r}" if seen.parses_reasoning else "between tags in the content"
    opens = "; the chat template opens the block" if seen.template_opens else ""
    return Finding("thinking", "on", f"{where}{opens}{notes.after('thinking')}",
                   "clients get it in the field that stream.reasoning_field names")  # fmt: skip


def _streaming(seen: Capabilities, notes: _Notes) -> Finding:
    if seen.streams:
        return Finding("streaming", "on", "answers come as events")
    return Finding("streaming", "off", notes.of("streaming"), "budgets and stops have no effect")


def _continuation(seen: Capabilities, notes: _Notes) -> Finding:
    how, means = _WAYS[seen.way]
    state: State = "off" if seen.way == "text" else "on"
    return Finding("continuation", state, how + notes.after("continuation"), means)


def _native(seen: Capabilities, notes: _Notes) -> Finding:
    if seen.native_budget is not None:
        told = f"{seen.native_budget} binds (8 and 20 tokens were tried){notes.after('native budget')}"
        means = "the server closes thinking itself; desist watches, and cuts where it does not"
        return Finding("native budget", "on", told, means)
    means = "budgets are enforced by desist: it leaves the first call and goes on after the hand-off"
    return Finding("native budget", "off", notes.of("native budget") or "not tried", means)


def _cancel(seen: Capabilities, notes: _Notes) -> Finding:
    if seen.cancels:
        return Finding("cancel", "on", "the server ends a request whose client left", "a stop saves compute")
    if seen.cancels is None:
        told = notes.of("cancel") or "not tried"
        return Finding("cancel", "off", told, "unknown whether a stop saves compute")
    return Finding(
        "cancel", "off", "the server goes on generating after its client left",
        "a stop saves waiting, not compute: look for a proxy between that reads ahead",
    )  # fmt: skip


def _tags(seen: Capabilities, notes: _Notes) -> list[Finding]:
    told = notes.of("tags")
    return [Finding("tags", "on", told)] if told else []


def _conflict(text: str) -> Finding:
    topic, _, told = text.partition(": ")
    means = "thinking and answers are mixed up until this is mended"
    return Finding(f"{topic} conflict", "fails", told, means)
