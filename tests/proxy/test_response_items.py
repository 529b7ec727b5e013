"""Items of the Responses API: whatever order texts and calls come in, the events tell exactly the items."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from desist.proxy.answering.showing import Shown
from desist.proxy.responses.items import chat_messages
from desist.proxy.responses.output import Event, OutputItems

TEXTS = st.text(min_size=1, max_size=5)
CALLS = st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=3)), min_size=1, max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from(["reasoning", "content"]), TEXTS), max_size=12)


def pieces(steps: list[tuple[str, str]], calls: list[tuple[str, list[str]]]) -> list[Shown]:
    made = [Shown(text, "", {}) if kind == "reasoning" else Shown("", text, {}) for kind, text in steps]
    for index, (name, arguments) in enumerate(calls):
        head: dict[str, Any] = {
            "index": index,
            "id": f"c{index}",
            "function": {"name": name, "arguments": ""},
        }
        made.append(Shown("", "", {"tool_calls": [head]}))
        for piece in arguments:
            made.append(Shown("", "", {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    return made


def told(events: list[Event]) -> list[dict[str, Any]]:
    """The items as a client puts them together from the deltas alone."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append({"type": event["item"]["type"], "id": event["item"]["id"], "text": "", "open": True})
        elif kind.endswith(".delta"):
            item = items[event["output_index"]]
            assert (item["id"], item["open"]) == (event["item_id"], True)
            item["text"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == items[event["output_index"]]["text"]
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == items[event["output_index"]]["text"]
        elif kind == "output_item.done":
            items[event["output_index"]]["open"] = False
    assert not any(item["open"] for item in items)
    return items


@given(STEPS, st.just([]) | CALLS, st.booleans())
def test_events_and_items_hold_every_character_once_and_in_order(
    steps: list[tuple[str, str]], calls: list[tuple[str, list[str]]], complete: bool
) -> None:
    numbers = itertools.count()
    output = OutputItems(lambda: str(next(numbers)))
    events = [event for shown in pieces(steps, calls) for event in output.take(shown)]
    events += output.finish(complete=complete)
    items = told(events)
    assert [(item["type"], item["id"]) for item in output.items] == [(i["type"], i["id"]) for i in items]
    for kind, name in (("reasoning", "reasoning"), ("message", "content")):
        wanted = "".join(text for channel, text in steps if channel == name)
        assert "".join(item["text"] for item in items if item["type"] == kind) == wanted
    got = [item for item in output.items if item["type"] == "function_call"]
    assert [(item["name"], item["arguments"]) for item in got] == [(n, "".join(a)) for n, a in calls]
    states = [item["status"] for item in output.items]
    assert states[:-1] == ["completed"] * len(states[:-1])
    assert states[-1:] == (["completed" if complete else "incomplete"] if states else [])
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output.items


@given(STEPS, st.just([]) | CALLS)
def test_what_came_out_can_be_sent_back_in(
    steps: list[tuple[str, str]], calls: list[tuple[str, list[str]]]
) -> None:
    output = OutputItems(lambda: "x")
    for shown in pieces(steps, calls):
        for _ in output.take(shown):
            pass
    for _ in output.finish(complete=True):
        pass
    messages = chat_messages(output.items)
    assert {message["role"] for message in messages} <= {"assistant"}
    for name, channel in (("reasoning", "reasoning"), ("content", "content")):
        wanted = "".join(text for kind, text in steps if kind == channel)
        assert "".join(message.get(name) or "" for message in messages) == wanted
    sent = [call for message in messages for call in message.get("tool_calls", [])]
    assert [call["function"]["arguments"] for call in sent] == ["".join(a) for _, a in calls]


def test_whole_calls_without_an_index_stay_apart() -> None:
    calls = [{"id": "a", "function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g"}}]
    output = OutputItems(lambda: "new")
    for _ in output.take(Shown("", "", {"tool_calls": calls})):
        pass
    assert [(i["call_id"], i["name"], i["arguments"] or "") for i in output.items] == [
        ("a", "f", "{}"),
        ("call_new", "g", ""),
    ]
