"""The wire: every message comes back as it went out, a stranger is refused, and no field is renamed."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller.core import Action, Decision, StopReason
from desist.proxy.engines.vllm import wire
from desist.proxy.engines.vllm.wire import (
    Batch,
    Blocked,
    Closed,
    Command,
    CommandDone,
    Event,
    Hello,
    Identity,
    Opened,
    Ping,
    Reload,
    Scored,
    SetMode,
    StopNow,
    Stopped,
    Told,
    decode_batch,
    decode_command,
    encode,
)

texts = st.text(max_size=12)
counts = st.integers(0, 2**40)
floats = st.floats(allow_nan=False)
identities = st.builds(Identity, texts, counts, counts)
tolds = st.builds(
    Told,
    st.sampled_from([str(action) for action in Action]),
    st.sampled_from([str(reason) for reason in StopReason]),
    counts,
    st.none() | counts,
    st.none() | floats,
    st.booleans(),
)
optional_text, optional_bytes = st.none() | texts, st.none() | st.binary(max_size=16)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        Hello, counts, texts, texts, texts, counts, texts, optional_text,
        st.lists(counts, max_size=4).map(tuple), counts, st.lists(texts, max_size=3).map(tuple),
        st.dictionaries(texts, texts, max_size=3), texts, st.booleans(), optional_text,
    ),
    st.builds(Opened, identities, counts, texts, optional_text),
    st.builds(
        Scored, identities, counts, counts, counts, counts, texts, texts,
        st.dictionaries(texts, floats, max_size=3), tolds, st.booleans(), optional_bytes, optional_text,
    ),
    st.builds(Stopped, identities, counts, tolds, counts, st.lists(counts, max_size=5).map(tuple)),
    st.builds(Blocked, identities, counts, counts, texts),
    st.builds(
        Closed, identities, counts, counts, counts, counts, texts,
        st.none() | tolds, st.none() | tolds, optional_text, optional_bytes,
    ),
    st.builds(CommandDone, texts, st.booleans(), texts),
)  # fmt: skip
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        StopNow, texts, texts, st.none() | identities, texts, st.none() | counts, st.none() | floats,
        st.booleans(),
    ),
    st.builds(SetMode, texts, st.sampled_from(["off", "shadow", "active"])),
    st.builds(
        Reload, texts, optional_text, optional_text, st.none() | st.lists(texts, max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(Ping, texts),
)  # fmt: skip


@given(st.builds(Batch, counts, floats, counts, counts, st.lists(events, max_size=5)))
@settings(max_examples=300)
def test_a_batch_comes_back_as_it_went_out(batch: Batch) -> None:
    back = decode_batch(encode(batch))
    assert back == batch
    assert [type(event) for event in back.events] == [type(event) for event in batch.events]


@given(commands)
@settings(max_examples=200)
def test_a_command_comes_back_as_it_went_out(command: Command) -> None:
    back = decode_command(encode(command))
    assert back == command
    assert type(back) is type(command)


@given(
    st.builds(
        Decision,
        st.sampled_from(Action),
        st.sampled_from(StopReason),
        counts,
        st.none() | counts,
        st.none() | floats,
        st.booleans(),
    )
)
def test_a_decision_comes_back_from_what_was_told(decision: Decision) -> None:
    assert Told.of(decision).decision() == decision


@pytest.mark.parametrize("told", [Told("halt", "probe", 3), Told("stop", "whim", 3)])
def test_a_decision_of_another_release_is_refused(told: Told) -> None:
    with pytest.raises(ValueError, match=r"halt|whim"):
        told.decision()


@given(st.binary(max_size=64))
def test_noise_raises_one_kind_of_error(noise: bytes) -> None:
    for decode in (decode_batch, decode_command):
        with contextlib.suppress(msgspec.DecodeError):
            decode(noise)


def test_unknown_tags_are_refused_with_their_name() -> None:
    with pytest.raises(msgspec.ValidationError, match="halt"):
        decode_command(msgspec.msgpack.encode({"type": "halt", "id": "1"}))
    batch = {"seq": 0, "ts": 0.0, "rank": 0, "dropped": 0, "events": [{"type": "sung", "n": 1}]}
    with pytest.raises(msgspec.ValidationError, match="sung"):
        decode_batch(msgspec.msgpack.encode(batch))
    with pytest.raises(msgspec.ValidationError):  # an event is no command
        decode_command(encode(CommandDone("1", True, "")))


def test_a_field_added_by_a_later_release_is_passed_over() -> None:
    assert decode_command(msgspec.msgpack.encode({"type": "ping", "id": "1", "when": 3})) == Ping("1")


@pytest.mark.parametrize("cap", ["full", "", "Active", None])
def test_the_kill_switch_takes_known_modes_only(cap: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_command(msgspec.msgpack.encode({"type": "mode", "id": "1", "cap": cap}))


#: What stands on the wire, in order; "=" marks a field with a default. A changed line breaks running
#: servers of another release: add fields at the end, with defaults, or raise WIRE_VERSION.
WRITTEN = {
    Identity: "[] key prompt= choice=",
    Told: "[] action reason position index= score= certified=",
    Hello: "hello wire version vllm runner rank decide stream taps hidden_size scorers fingerprints cap "
    "outside commands= parser=",
    Opened: "open identity prompt_tokens mode uncontrolled=",
    Scored: "scored identity n index position tokens kind text scores decision held= hidden= dtype=",
    Stopped: "stopped identity n decision tokens handoff",
    Blocked: "blocked identity n position why",
    Closed: "closed identity n tokens reasoning_tokens handoff_tokens stop_reason decision= shadow= "
    "uncontrolled= token_hidden=",
    CommandDone: "done command ok message",
    Batch: "- seq ts rank dropped events",
    StopNow: "stop id key identity= reason= index= score= certified=",
    SetMode: "mode id cap",
    Reload: "reload id probe= rom= certificates= force=",
    Ping: "ping id",
}


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: str(kind.__name__))
def test_no_field_is_renamed_or_moved(kind: type[msgspec.Struct]) -> None:
    config = kind.__struct_config__
    assert config.tag_field in (None, "type")
    fields = [each.encode_name + "=" * (not each.required) for each in msgspec.structs.fields(kind)]
    assert " ".join(["[]" if config.array_like else str(config.tag or "-"), *fields]) == WRITTEN[kind]


def test_the_list_of_fields_is_whole() -> None:
    structs = {
        value
        for value in vars(wire).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == wire.__name__
    }
    assert structs == set(WRITTEN)
    assert wire.WIRE_VERSION == 1


def test_bytes_of_one_batch() -> None:
    stopped = Stopped(Identity("k", 1, 2), 3, Told("stop", "probe", 9, 4, 0.5, True), 9, (7, 8))
    assert encode(Batch(5, 1.5, 0, 0, [stopped])).hex() == (
        "85a373657105a27473cb3ff8000000000000a472616e6b00a764726f7070656400a66576656e747391"
        "86a474797065a773746f70706564a86964656e7469747993a16b0102a16e03"
        "a86465636973696f6e96a473746f70a570726f62650904cb3fe0000000000000c3"
        "a6746f6b656e7309a768616e646f6666920708"
    )
