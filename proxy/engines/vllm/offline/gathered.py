"""The plugin's events of one generation, gathered: is all there, and which hidden state belongs where.

Knows the wire's events and array shapes; nothing of jobs, texts or vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from desist.controller import Boundary
from desist.data.errors import EngineError
from desist.proxy.engines.vllm.wire import Closed, Event, Scored

__all__ = ["Gathered", "Watched"]

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Watched:
    """What the plugin was asked for: the taps at boundaries, one tap at every token, each `width` wide."""

    taps: tuple[int, ...]
    token_tap: int | None
    width: int

    def __bool__(self) -> bool:
        return bool(self.taps) or self.token_tap is not None


@dataclass(slots=True)
class Gathered:
    """Events of one generation."""

    watched: Watched
    scored: list[Scored] = field(default_factory=list)
    closed: Closed | None = None
    _numbers: list[int] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        """Take in an event of this generation."""
        if isinstance(event, Closed):
            self.closed = event
        elif (number := getattr(event, "n", None)) is not None:
            self._numbers.append(number)
            if isinstance(event, Scored):
                self.scored.append(event)

    def missing(self) -> str | None:
        """What is not there, although the generation has ended; None if nothing."""
        closed, watched = self.closed, self.watched
        if closed is None:
            return "its end was not told"
        if closed.uncontrolled is not None:
            return closed.uncontrolled
        if self._numbers != list(range(closed.n)):
            return f"{closed.n} events were made, those with the numbers {self._numbers} came"
        want = 4 * len(watched.taps) * watched.width
        wrong = [found for each in self.scored if (found := len(each.hidden or b"")) != want]
        if watched.taps and wrong:
            return f"a hidden state has {wrong[0]} bytes where {want} were asked for"
        if watched.token_tap is not None:
            kept, tokens = len(closed.token_hidden or b""), closed.reasoning_tokens
            if kept != 4 * watched.width * tokens:
                return f"{kept} bytes of hidden states came for {tokens} reasoning tokens"
        return None

    def hidden(self, boundary: Boundary, tokens: int) -> Rows:
        """The hidden state [K*D] at a boundary that the text has after `tokens` generated tokens.

        Raises `EngineError` where the plugin saw none or another one there.
        """
        told = next((each for each in self.scored if each.tokens == tokens), None)
        found = None if told is None else (told.index, told.position, told.kind, told.text)
        if told is None or found != (boundary.index, boundary.position, boundary.kind, boundary.text):
            raise _disagree(f"{found} after {tokens} tokens", str(boundary))
        return np.frombuffer(told.hidden or b"", np.float32)

    def require(self, boundaries: Sequence[Boundary], tokens: int) -> None:
        """Raise `EngineError` unless these are all boundaries before the last of `tokens` tokens."""
        told = sum(each.tokens < tokens for each in self.scored)
        if told != len(boundaries):
            raise _disagree(f"{told} boundaries", f"{len(boundaries)} of them")

    def token_rows(self, tokens: int) -> Rows | None:
        """The hidden states [tokens, D] of the first reasoning tokens, where they are kept."""
        if self.closed is None or self.watched.token_tap is None or not self.closed.token_hidden:
            return None
        return np.frombuffer(self.closed.token_hidden, np.float32).reshape(-1, self.watched.width)[:tokens]


def _disagree(told: str, there: str) -> EngineError:
    return EngineError(
        f"the plugin told {told}, where the text has {there}: the plugin in vLLM has another version or "
        "another profile than this process."
    )
