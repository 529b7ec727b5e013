"""The fake's tokens: every text that it was given is one token, other text is cut into words.

As with real tokenizers, ids that were generated need not be the ids that encoding their text gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["HEADER", "SPECIALS", "Vocabulary", "without_thinking"]

SPECIALS = ("<think>", "</think>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
HEADER = "<|im_start|>assistant\n"
_CUT = re.compile("|".join(map(re.escape, SPECIALS)) + r"|\s*[^\s<]+|\s+|<")


class Vocabulary:
    """Grows as texts are met; ids stay."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._texts: list[str] = []
        for special in SPECIALS:
            self.token(special)

    def token(self, text: str) -> int:
        """The id of `text` as one token."""
        if text not in self._ids:
            self._ids[text] = len(self._texts) + 1000
            self._texts.append(text)
        return self._ids[text]

    def encode(self, text: str) -> list[int]:
        return [self.token(piece) for piece in _CUT.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; one that was never given out is `?`."""
        known = range(1000, 1000 + len(self._texts))
        return "".join(self._texts[each - 1000] if each in known else "?" for each in ids)

    def prompt(self, body: Mapping[str, Any], *, opened: bool, strips: bool) -> str:
        """The chat template: `opened`: it opens thinking; `strips`: it takes thinking out of old turns."""
        turns, continues = list(body["messages"]), bool(body.get("continue_final_message"))
        texts = []
        for number, turn in enumerate(turns):
            content = turn.get("content")
            text = content if isinstance(content, str) else str(content or "")
            if turn["role"] == "assistant" and strips:
                text = without_thinking(text)
            last = continues and number == len(turns) - 1
            texts.append(f"<|im_start|>{turn['role']}\n{text}" + ("" if last else "<|im_end|>\n"))
        if not continues and body.get("add_generation_prompt", True):
            thinks = (body.get("chat_template_kwargs") or {}).get("enable_thinking") is not False
            texts.append(HEADER + ("<think>\n" if opened and thinks else ""))
        return "".join(texts)


def without_thinking(text: str) -> str:
    """What a template that strips thinking keeps of an assistant's text."""
    return text.rpartition("</think>")[2].lstrip("\n")
