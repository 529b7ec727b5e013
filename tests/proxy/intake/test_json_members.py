"""Members of JSON objects are taken out or replaced, and nothing else of the text is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.proxy.intake.json_members import edit_members

KEEP, REMOVE = None, b""


def without(text: bytes, *names: str) -> bytes:
    return edit_members(text, lambda name: REMOVE if name in names else KEEP)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (b'{"desist": {"mode": "off"}}', b"{}"),
        (b'{ "desist" : 1 , "a" : 2 }', b'{ "a" : 2 }'),
        (b'{"a":2,"desist":[1,{"x":"}]"}]}', b'{"a":2}'),
        (b'{"a": 1.0e5,\n\t"desist": "x\\"y, }",\n "b": [ ]}', b'{"a": 1.0e5,\n\t"b": [ ]}'),
        (b'{"a": 1, "desist": 1, "desist": 2}', b'{"a": 1}'),
        (b'{"desist": 1, "a": 1, "desist": 2 }', b'{"a": 1 }'),
        (b'{"d\\u0065sist": 1, "a": "desist"}', b'{"a": "desist"}'),
        (b'{"a": {"desist": 1}}', b'{"a": {"desist": 1}}'),
        (b'\xef\xbb\xbf {"desist": null, "a": 1}\n', b'\xef\xbb\xbf {"a": 1}\n'),
        (b'{"a": "\\\\", "desist": "\\\\"}', b'{"a": "\\\\"}'),
    ],
)
def test_a_member_is_taken_out_and_no_other_byte(text: bytes, left: bytes) -> None:
    assert without(text, "desist") == left


def test_a_value_is_replaced_where_it_stands() -> None:
    text = b'{"x":0 , "model" :  "alias" , "n": 1e2}'
    changed = edit_members(text, lambda name: b'"real"' if name == "model" else KEEP)
    assert changed == b'{"x":0 , "model" :  "real" , "n": 1e2}'
    both = edit_members(b'{"model":"m","desist":{}}', lambda n: {"model": b'"r"', "desist": REMOVE}[n])
    assert both == b'{"model":"r"}'


@pytest.mark.parametrize("text", [b"[1]", b"", b"  ", b'{"a"', b'{"a": [1', b'{"a" 1 2}', b"{1: 2}"])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        without(text, "a")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", 'q"', "\\"]), values, max_size=6),
    st.sets(st.sampled_from(["a", "b", "c", "d", 'q"', "\\"])),
    st.sampled_from([None, 0, 2, "\t"]),
    st.booleans(),
)
def test_what_is_left_means_the_same(
    whole: dict[str, Any], gone: set[str], indent: int | None, escaped: bool
) -> None:
    text = json.dumps(whole, indent=indent, ensure_ascii=escaped).encode()
    kept = {name: value for name, value in whole.items() if name not in gone}
    assert json.loads(without(text, *gone)) == kept
    assert without(text) == text
    replaced = edit_members(text, lambda name: b"[0]" if name in gone else KEEP)
    assert json.loads(replaced) == {name: [0] if name in gone else value for name, value in whole.items()}
