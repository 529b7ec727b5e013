"""How a server hands thinking on: in which field, or between which tags; and where its settings contradict.

Knows what an answer showed and the profile that was chosen for the model. A parser that waits for a tag
which the model does not write puts every answer into the reasoning field, or all thinking into the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from desist.controller.profiles import PROFILES
from desist.proxy.engines.upstream.seen import Seen
from desist.proxy.engines.upstream.trials import Trials

__all__ = ["LONG", "Found", "first_answer", "look_at_tags", "look_at_thinking"]

#: Tokens of the longest trial: enough to see that a model thinks, and that a small budget shortens it.
LONG = 192
_TAIL = 64  # tokens at the end of a prompt that tell whether thinking is open
_REFUSED = (400, 422)


@dataclass
class Found:
    """What was found out so far, as the fields of `Capabilities`. `opened`: how content is to be read."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    opened: bool = False


async def first_answer(trials: Trials, found: Found) -> Seen:
    """The answer that all else is compared with. What a strict server refuses is left out from here on."""
    usage = {"include_usage": True}
    ladder: list[tuple[str, dict[str, Any]]] = [
        ("", {"temperature": 0, "return_token_ids": True,
              "stream_options": usage | {"continuous_usage_stats": True}}),
        ("return_token_ids", {"temperature": 0, "stream_options": usage | {"continuous_usage_stats": True}}),
        ("continuous_usage_stats", {"temperature": 0, "stream_options": usage}),
        ("temperature", {"stream_options": usage}),
        ("stream_options", {}),
    ]  # fmt: skip
    names = ("max_tokens", "max_completion_tokens")
    seen = Seen(trials.chars_per_token)
    for trials.limit_name in names:
        for _, trials.optional in ladder:
            seen = await trials.ask(trials.body(LONG))
            if seen.status not in _REFUSED:
                break
        if seen.status not in _REFUSED:
            break
    left_out = [name for name, fields in ladder if name and fields is not ladder[0][1]]
    left_out = left_out[: [fields for _, fields in ladder].index(trials.optional)]
    told = seen.usage.get("completion_tokens")
    if isinstance(told, int) and told > 0 and seen.reasoning + seen.raw:
        trials.chars_per_token = len(seen.reasoning + seen.raw) / told
    if left_out and seen.failure is None:
        found.notes.append(f"usage: the server refuses requests with {', '.join(left_out)}")
    return seen


async def look_at_thinking(trials: Trials, found: Found, first: Seen) -> None:
    """Fields, tags and counts of the first answer."""
    profile, parses = trials.profile, bool(first.reasoning)
    opens = await _template_opens(trials, first)
    found.opened = not parses and bool(
        opens if opens is not None else trials.settings.thinking_opened_by_template or profile.template_opens
    )
    reasoning, _ = first.split(profile, opened=found.opened)
    told = first.told_reasoning()
    found.values |= {
        "reasoning_field": first.said_in,
        "parses_reasoning": parses,
        "thinks": bool(reasoning),
        "template_opens": opens,
        "token_ids": bool(first.ids and first.prompt_ids),
        "running_usage": first.runs,
        "usage_details": bool(told),
        "streams": first.streams,
    }
    _usual(trials, found, first, reasoning, told)
    _contradictions(trials, found, first, opens)
    await _thinking_off(trials, found)


def _usual(trials: Trials, found: Found, first: Seen, reasoning: str, told: int | None) -> None:
    """What is told of a server on which nothing is wrong."""
    if not first.streams:
        found.notes.append("streaming: the server answers in one piece: nothing can be stopped early")
    if not reasoning:
        found.notes.append(
            "thinking: the model did not think on the trial, so that neither tags nor budgets could be tried"
        )
    elif told == 0:
        found.notes.append("usage: the server tells 0 reasoning tokens though it sent reasoning: not used")
    if first.mixed:
        found.notes.append("thinking: one chunk held reasoning and answer at once; it is sent on as two")
    if not first.reasoning and reasoning:
        tag = trials.profile.think_close
        how = "the server does not parse thinking: tags are in the content and are split off here"
        found.notes.append(f"tags: {how} ({trials.profile.think_open} {tag})")
    if first.ids and not first.prompt_ids:
        found.notes.append("token ids: the output's ids come, but not the prompt's: nothing to continue from")


def _contradictions(trials: Trials, found: Found, first: Seen, opens: bool | None) -> None:
    """Settings of the server, or of desist, that do not fit each other or the model."""
    profile, settings, tell = trials.profile, trials.settings, found.conflicts.append
    close, done = profile.think_close, first.finish in ("stop", "tool_calls")
    if first.reasoning and close in first.reasoning:
        tell(
            f"parser: the reasoning field holds {close!r}: the server's reasoning parser looks for another "
            "end tag. Give it the --reasoning-parser of this model, or take --reasoning-config away"
        )
    elif first.reasoning and close in first.raw:
        tell(
            f"parser: {close!r} stands in the content though the server parses reasoning: its parser and its "
            "think strings (--reasoning-config) contradict each other. Use one of them"
        )
    elif first.reasoning and done and not first.raw.strip():
        tell(
            "parser: the whole answer came as reasoning and the content is empty: the server's parser never "
            "saw the end of thinking. Its --reasoning-parser or --reasoning-config does not fit the model "
            f"({close!r} is expected here)"
        )
    if first.reasoning and settings.thinking_opened_by_template:
        tell(
            "parser: upstream.thinking_opened_by_template is set, but the server parses thinking itself: an "
            "answer without thinking would be taken for reasoning. Leave it out"
        )
    declared = settings.thinking_opened_by_template or profile.template_opens
    if not first.reasoning and opens and not declared:
        found.notes.append(
            "tags: the chat template opens the thinking block and the server does not parse it, which desist "
            "knows only from this test. Set upstream.thinking_opened_by_template: true, or name the model's "
            "upstream.profile, so that requests before its end are read right too"
        )
    others = _tags_of_others(trials, first)
    if others:
        tell(others)


def _tags_of_others(trials: Trials, first: Seen) -> str | None:
    """The model writes tags that another profile knows."""
    ours = trials.profile
    if ours.think_close in first.raw or ours.think_open in first.raw:
        return None
    known = {each.name: each for each in PROFILES.values() if each.style == "tags"}
    for name, other in known.items():
        for tag in (other.think_close, other.think_open.strip()):
            if tag in first.raw and tag not in (ours.think_close, ours.think_open.strip()):
                return (
                    f"tags: the model writes {tag!r}, but profile '{ours.name}' looks for "
                    f"{ours.think_open!r} and {ours.think_close!r}: thinking would be read "
                    f"as answer. Set upstream.profile, for example to '{name}'"
                )
    return None


async def _template_opens(trials: Trials, first: Seen) -> bool | None:
    """Whether a prompt ends inside an open thinking block, by its ids, else by what the model wrote."""
    profile = trials.profile
    ids: Sequence[int] | str = first.prompt_ids
    if not ids:
        ids = await trials.tokens({**trials.prompt(), "add_generation_prompt": True})
    tail = await trials.text_of(ids[-_TAIL:]) if ids and not isinstance(ids, str) else None
    if tail is not None:
        return profile.after_prompt(tail).thinking
    close, opening = first.raw.find(profile.think_close), first.raw.find(profile.think_open)
    if not first.reasoning and close >= 0:
        return opening < 0 or opening > close
    return None


async def _thinking_off(trials: Trials, found: Found) -> None:
    """With thinking switched off the answer must come as content."""
    switch = trials.profile.thinking_switch
    if not switch or not found.values["parses_reasoning"]:
        return
    body = trials.body(48, problem="Say: good morning.", chat_template_kwargs={switch[0]: False})
    seen = await trials.ask(body)
    if seen.failure is None and seen.reasoning and not seen.raw.strip() and seen.finish == "stop":
        found.conflicts.append(
            f"parser: with {switch[0]} false the whole answer comes as reasoning and the content is empty. "
            "Another --reasoning-parser is needed on the server"
        )


async def look_at_tags(trials: Trials, found: Found) -> None:
    """Whether the close tag is one token, for whoever looks for a single id."""
    close = trials.profile.think_close.strip()
    ids = await trials.tokens({"prompt": close, "content": close, "add_special_tokens": False})
    if isinstance(ids, str):
        return
    found.values["close_tag_tokens"] = len(ids) or None
    if len(ids) > 1:
        found.notes.append(
            f"tags: {close!r} is {len(ids)} tokens with this tokenizer: whoever looks for one id never finds "
            "it; desist matches the text over the borders of tokens and chunks"
        )
