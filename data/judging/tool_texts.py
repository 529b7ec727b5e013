"""Tool calls out of an answer's text: the markups of model families, else JSON.

Knows where each markup's calls begin and end. A call that is opened and cannot be read makes the answer
unjudgeable: it is never passed over, and never taken for text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from desist.data.judging.json_values import LONGEST, NOTHING, TOO_LONG, find_json, read_json
from desist.data.judging.tool_values import Call, Untyped, arguments_of, calls_in
from desist.data.judging.verdict import Unjudgeable
from desist.data.tool_markup import function_form

__all__ = ["calls_of"]

_BAR = "\uff5c"  # the full-width bar of DeepSeek's tags

# Hermes, Qwen and GLM; Nemotron's and Granite's tags hold a list.
_BLOCK = re.compile(
    r"<(?:seed:)?tool_call>(.*?)(?:</(?:seed:)?tool_call>|\Z)"
    r"|<TOOLCALL>(.*?)(?:</TOOLCALL>|\Z)|<\|tool_call\|>(.*)\Z",
    re.DOTALL,
)
_NAME = re.compile(r"[\w.:-]+")
_GLM_PAIR = re.compile(r"([^<]*)</arg_key>\s*<arg_value>\n?(.*?)\n?</arg_value>\s*", re.DOTALL)
# MiniMax, DeepSeek's DSML: <invoke name="..."><parameter name="..." string="true">.
_INVOKE = re.compile(r'<([^\s<>]{0,20})invoke name="([^"<>]+)">')
_INVOKED = re.compile(r'<([^\s<>]{0,20})parameter name="([^"<>]+)"(?: string="(true|false)")?[^<>]*>')
_MISTRAL = re.compile(r"(?:([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*)?(?=[\[{])")
_FENCED = re.compile(r"\s*([^\s`]+)\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)
_KIMI_NAME = re.compile(r"\s*(?:functions\.)?([^\s<]+?)(?::\d+)?\s*")
_KIMI = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
_DEEPSEEK = tuple(f"<{_BAR}tool▁{part}{_BAR}>" for part in ("call▁begin", "call▁end", "sep"))
_ANY_MARKUP = re.compile(
    r"<[^\s<>]{0,20}tool[_▁]call|<TOOLCALL>|<function=|<[^\s<>]{0,20}invoke name=|\[TOOL_CALLS\]"
)
_UNREADABLE = "a tool call cannot be read"


def calls_of(text: str) -> list[Call]:
    """The tool calls of an answer, in their order; none where it calls nothing.

    Raises `Unjudgeable` where a call cannot be read.
    """
    if len(text) > LONGEST:
        raise Unjudgeable(TOO_LONG)
    if _ANY_MARKUP.search(text) is None:
        value = find_json(text)
        return (calls_in(value) if value is not NOTHING else None) or []
    for read in _READERS:
        if calls := list(read(text)):
            return calls
    raise Unjudgeable(_UNREADABLE)


def _inner(text: str, start: int, closer: str) -> tuple[str, int]:
    """What stands between `start` and the next `closer`, and where that ends."""
    end = text.find(closer, start)
    if end < 0:
        raise Unjudgeable(_UNREADABLE)
    return text[start:end], end + len(closer)


def _each(text: str, opener: str, closer: str) -> Iterator[str]:
    """What stands inside each pair of tags."""
    place = text.find(opener)
    while place >= 0:
        inner, place = _inner(text, place + len(opener), closer)
        yield inner
        place = text.find(opener, place)


def _tagged(text: str, opener: re.Pattern[str], word: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each opening tag with what it holds up to its own closing tag."""
    match = opener.search(text)
    while match is not None:
        inner, end = _inner(text, match.end(), f"</{match[1]}{word}>")
        yield match, inner
        match = opener.search(text, end)


def _blocks(text: str) -> Iterator[Call]:
    for match in _BLOCK.finditer(text):
        yield from _block(match[1] or match[2] or match[3] or "")


def _block(inner: str) -> list[Call]:
    if inner.count("<parameter=") > inner.count("</parameter>"):
        raise Unjudgeable(_UNREADABLE)
    if (form := function_form(inner)) is not None:
        return [Call(form.name, {key: Untyped(text) for key, text in form.texts.items()})]
    value = read_json(inner)
    calls = _glm(inner) if value is NOTHING else calls_in(value)
    if not calls:
        raise Unjudgeable(_UNREADABLE)
    return calls


def _glm(inner: str) -> list[Call] | None:
    name, *pairs = inner.split("<arg_key>")
    found = [_GLM_PAIR.fullmatch(pair) for pair in pairs]
    if not _NAME.fullmatch(name.strip()) or None in found:
        return None
    return [Call(name.strip(), {pair[1].strip(): Untyped(pair[2]) for pair in found if pair})]


def _functions(text: str) -> Iterator[Call]:
    for inner in _each(text, "<function=", "</function>"):
        yield from _block(f"<function={inner}</function>")


def _invokes(text: str) -> Iterator[Call]:
    for call, inner in _tagged(text, _INVOKE, "invoke"):
        given = {found[2]: _invoked(found[3], raw) for found, raw in _tagged(inner, _INVOKED, "parameter")}
        yield Call(call[2], given)


def _invoked(string: str | None, raw: str) -> Any:
    if string == "true":
        return raw
    return arguments_of(raw) if string == "false" else Untyped(raw.removeprefix("\n").removesuffix("\n"))


def _mistral(text: str) -> Iterator[Call]:
    for piece in text.split("[TOOL_CALLS]")[1:]:
        piece = piece.strip()
        match = _MISTRAL.match(piece)
        value = read_json(piece[match.end() :].removesuffix("</s>")) if match else NOTHING
        name = match[1] if match else None
        calls = None if value is NOTHING else [Call(name, value)] if name else calls_in(value)
        if not calls:
            raise Unjudgeable(_UNREADABLE)
        yield from calls


def _deepseek(text: str) -> Iterator[Call]:
    begin, end, separator = _DEEPSEEK
    for inner in _each(text, begin, end):
        before, _, after = inner.partition(separator)
        fenced = _FENCED.fullmatch(after)
        yield (
            Call(fenced[1], arguments_of(fenced[2])) if fenced else Call(before.strip(), arguments_of(after))
        )


def _kimi(text: str) -> Iterator[Call]:
    begin, end, separator = _KIMI
    for inner in _each(text, begin, end):
        name, found, arguments = inner.partition(separator)
        match = _KIMI_NAME.fullmatch(name)
        if match is None or not found:
            raise Unjudgeable(_UNREADABLE)
        yield Call(match[1], arguments_of(arguments))


_READERS: tuple[Callable[[str], Iterator[Call]], ...] = (
    _blocks,
    _invokes,
    _mistral,
    _deepseek,
    _kimi,
    _functions,
)
