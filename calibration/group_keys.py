"""The group of a problem, from what is known before it is run: never from scores, answers or lengths of runs.

The same functions give a request its group when it comes in, so a certificate is found for it.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["GROUPINGS", "LENGTH_EDGES", "Grouping", "group_key", "length_band", "prompt_text", "script_of"]

Grouping = Literal["group", "model", "dataset", "prompt-length", "language"]
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)

LENGTH_EDGES: tuple[int, ...] = (400, 2000)
"""Characters of the prompt at which a longer band begins. Fixed beforehand."""

_LETTERS = 500  # letters looked at: enough to tell a script


def group_key(by: Grouping, edges: Sequence[int] = LENGTH_EDGES) -> Callable[[Trace], str]:
    """The function from a trace to its group. It raises CalibrationError where a trace does not tell.

    "language" is what `provenance.language` says, else the script that the prompt is written in.
    """
    if by not in GROUPINGS:
        raise CalibrationError(f"unknown grouping {by!r}. Choose one of {', '.join(GROUPINGS)}.")
    if by == "prompt-length":
        return lambda trace: length_band(prompt_text(trace), edges)
    if by == "language":
        return lambda trace: str(trace.provenance.get("language") or script_of(prompt_text(trace)))

    def key(trace: Trace) -> str:
        found = {"group": trace.group, "model": trace.model, "dataset": trace.dataset}[by]
        if not found:
            raise CalibrationError(
                f"trace {trace.trace_id} has no {by}. Give every trace one, or group otherwise."
            )
        return found

    return key


def prompt_text(trace: Trace) -> str:
    """What the user asked, as text: the problem, else the prompt's messages."""
    if trace.problem.strip():
        return trace.problem
    if isinstance(trace.prompt, str):
        return trace.prompt
    return "\n".join(str(message.get("content", "")) for message in trace.prompt or ())


def length_band(text: str, edges: Sequence[int] = LENGTH_EDGES) -> str:
    """The band of a prompt by its characters: "<400", "400-1999", ">=2000" for the default edges."""
    place = bisect_right(edges, len(text))
    if place == 0:
        return f"<{edges[0]}"
    return f">={edges[-1]}" if place == len(edges) else f"{edges[place - 1]}-{edges[place] - 1}"


def script_of(text: str) -> str:
    """The script of most letters ("latin", "cyrillic", "han", "japanese", ...), "none" without letters.

    Kana beside Chinese characters make a text Japanese.
    """
    letters = [letter for letter in text if letter.isalpha()][:_LETTERS]
    counts = Counter(_script(letter) for letter in letters)
    if counts["hiragana"] + counts["katakana"] > 0.1 * len(letters) > 0:
        return "japanese"
    return counts.most_common(1)[0][0] if counts else "none"


def _script(letter: str) -> str:
    name = unicodedata.name(letter, "other").split(" ")[0].lower()
    return "han" if name == "cjk" else name
