"""Which choice of which prompt an internal request id stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.proxy.engines.vllm.identity import identity_of
from desist.proxy.engines.vllm.wire import Identity


@pytest.mark.parametrize(
    ("request_id", "prompt", "choice"),
    [
        ("chatcmpl-9af1c2-1b2c3d4e", 0, 0),
        ("1_chatcmpl-9af1c2-1b2c3d4e", 0, 1),
        ("12_chatcmpl-9af1c2-1b2c3d4e", 0, 12),
        ("cmpl-9af1c2-0-1b2c3d4e", 0, 0),
        ("cmpl-9af1c2-3-1b2c3d4e", 3, 0),
        ("2_cmpl-9af1c2-3-1b2c3d4e", 3, 2),
        ("2_cmpl-9af1c2-3", 3, 2),
        ("chatcmpl-9af1c2-3-1b2c3d4e", 0, 0),  # a chat has one prompt: the 3 is the client's own
        ("chatcmpl-1_cmpl-7-1b2c3d4e", 0, 0),  # only the outer parts are read
        ("5_6_cmpl-x-7-1b2c3d4e", 0, 0),
        ("3-1b2c3d4e", 0, 0),  # the offline API numbers its requests
        ("1_3-1b2c3d4e", 0, 1),
        ("1_3", 0, 1),
        ("my own id", 0, 0),
        ("", 0, 0),
    ],
)
def test_parts_of_an_id(request_id: str, prompt: int, choice: int) -> None:
    assert identity_of(request_id, "k") == Identity("k", prompt, choice)


@given(
    st.text("abcdef0123456789-_cmplht", max_size=20),
    st.integers(0, 99),
    st.integers(0, 99),
    st.text("0123456789abcdef", min_size=8, max_size=8),
)
def test_whatever_the_client_calls_its_request(own: str, prompt: int, choice: int, random: str) -> None:
    assert identity_of(f"{choice}_cmpl-{own}-{prompt}-{random}", "k") == Identity("k", prompt, choice)
    assert identity_of(f"cmpl-{own}-{prompt}-{random}", "k") == Identity("k", prompt, 0)
    assert identity_of(f"{choice}_chatcmpl-{own}-{random}", "k") == Identity("k", 0, choice)


def test_one_key_for_many_prompts_gets_the_next_free_number() -> None:
    taken: set[Identity] = set()
    for _ in range(3):
        taken.add(identity_of("1_7-1b2c3d4e", "k", taken.__contains__))
    assert taken == {Identity("k", 0, 1), Identity("k", 1, 1), Identity("k", 2, 1)}
    assert identity_of("1_7-1b2c3d4e", "other", taken.__contains__) == Identity("other", 0, 1)
