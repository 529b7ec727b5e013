"""The inside of one tool call in a model's own markup: a name and its parameters.

The forms that Qwen, Hermes and the coder models write within `<tool_call>`: `<function=NAME>` with
`<parameter=KEY>` texts, or a JSON object. Whoever reads an answer's calls, live or afterwards, reads them
here; where a call begins and ends, and what is done with it, is the caller's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Parameters", "function_form"]

_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class Parameters(NamedTuple):
    """A call whose parameters are texts: their types are known to the tool's schema alone."""

    name: str
    texts: dict[str, str]


def function_form(inner: str) -> Parameters | None:
    """The call in `<function=NAME>...</function>` (which may be unclosed); None where it is none."""
    match = _FUNCTION.fullmatch(inner)
    if match is None:
        return None
    return Parameters(match[1], {key.strip(): text for key, text in _PARAMETER.findall(match[2])})
