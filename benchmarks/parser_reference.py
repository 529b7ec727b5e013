"""What a text with think tags or channels means, read as a whole: the oracle of the parser's tests.

Written a second time, with regular expressions, from the rules as docs/profiles.md states them. Shares no code
with the parser and takes of a profile only its texts.
"""

from __future__ import annotations

import re

from desist.controller import ModelProfile

__all__ = ["Reference"]

_BLANK = re.compile(r"[ \t\n\r\f\v]*")


class Reference:
    """The parser's rules once more, as regular expressions. `split` gives (reasoning, content) of a text."""

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile
        opening, closing = re.escape(profile.think_open), re.escape(profile.think_close)
        call = {
            "any": "",
            "name": r"(?=[A-Za-z_])",
            "markup": r"(?=[ \t\n\r\f\v]{0,8}(?:[{\[]|<[A-Za-z_]))",
        }[profile.tool_call_form]
        tool = profile.tool_call_open
        ends = f"(?P<call>{re.escape(tool)}{call})|" if tool else ""
        self._head = re.compile(f"{_BLANK.pattern}(?:(?P<open>{opening})|(?P<close>{closing}))")
        self._lead = re.compile(f"(?:{_BLANK.pattern}{opening})*{_BLANK.pattern}")
        self._end = re.compile(f"{ends}(?P<close>{closing})")
        self._tool_end = profile.tool_call_close if tool else None

    def split(self, text: str, start: str) -> tuple[str, str]:
        """The reasoning and the content of a whole text."""
        if self._profile.style == "harmony":
            return _harmony(text, start)
        reasoning, at, state = "", 0, start
        while True:
            if state != "opened":
                head = self._head.match(text, at)
                if head is None:
                    break
                at, state = head.end(), "opened" if head["open"] else "closed"
                continue
            lead = self._lead.match(text, at)
            at = lead.end() if lead else at
            end = self._end.search(text, at)
            if end is None:
                return reasoning + text[at:], ""
            reasoning += text[at : end.start()]
            if end["close"] is None:
                return reasoning, self._after_call(text[end.start() :])
            at, state = end.end(), "closed"
        rest = text[at:]
        return reasoning, rest if state == "before" else rest.lstrip(" \t\n\r\f\v")

    def _after_call(self, text: str) -> str:
        """The answer after a call in thinking, without the block's own close tag."""
        tool, close = self._profile.tool_call_open or "", self._profile.think_close
        if self._tool_end is None:
            return text
        at = 0
        while True:
            end = text.find(self._tool_end, at + len(tool))
            if end < 0:
                return text
            at = end + len(self._tool_end)
            shut, again = text.find(close, at), text.find(tool, at)
            if again < 0 or 0 <= shut < again:
                return text if shut < 0 else text[:shut] + text[shut + len(close) :]
            at = again


_END = re.compile(r"<\|(?:end|call|return)\|>")
_HEADER = re.compile(r"(?:(?!<\|message\|>).){0,512}<\|message\|>", re.DOTALL)
_HEADS = ("<|start|>", "<|channel|>", "<|message|>")
_AFTER = {
    "analysis": re.compile(r"<\|(?:end|call|return|start|channel)\|>"),
    "shown": re.compile(r"<\|(?:end|call|return|start)\|>"),
    "call": re.compile(r"<\|(?:end|call|return|start)\|>"),
}


def _harmony(text: str, start: str) -> tuple[str, str]:
    """Messages one by one. `state`: what comes next, a header, a message's text, or what stands between."""
    out = {"analysis": "", "shown": "", "call": ""}
    shown: list[str] = []
    at, state = 0, {"before": "first", "opened": "analysis", "closed": "between"}[start]
    while at < len(text):
        if state == "first":
            if not text.startswith((*_HEADS, "to="), _skipped(text, at)):
                return out["analysis"], text[at:]
            state = "header"
        elif state == "between":
            at = _skipped(text, at)
            end = _END.match(text, at)
            if end is not None:
                at = end.end()
            else:
                state = "header" if text.startswith(_HEADS, at) else "shown"
        elif state == "header":
            header = _HEADER.match(text, at)
            if header is None:
                rest = text[at:]
                cut_off = len(rest) < 512 + len("<|message|>") and any(head in rest for head in _HEADS)
                return out["analysis"], "".join(shown) + ("" if cut_off else rest)
            at, state = header.end(), _channel(header[0])
            shown += [header[0]] if state == "call" else []
        else:
            at = _skipped(text, at) if state == "analysis" else at
            found = _AFTER[state].search(text, at)
            until = found.start() if found else len(text)
            shown += [] if state == "analysis" else [text[at:until]]
            out[state] += text[at:until]
            at = until
            if found is not None and found[0] in _HEADS:
                state = "header"
            elif found is not None:
                shown += [found[0]] if state == "call" else []
                at, state = found.end(), "between"
    return out["analysis"], "".join(shown)


def _skipped(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _channel(header: str) -> str:
    words = header.removesuffix("<|message|>").partition("<|channel|>")[2].split()
    if "to=" in header:
        return "call"
    return "analysis" if words and words[0].partition("<")[0] == "analysis" else "shown"
