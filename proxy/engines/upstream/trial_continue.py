"""How a stopped generation can be continued on a server: from ids, or from a last message left open.

A chat template may take thinking out of old assistant turns, so that a continued message is shown to be
rendered as it must be, id by id, before it is relied on.
"""

from __future__ import annotations

from desist.proxy.engines.upstream.seen import Seen
from desist.proxy.engines.upstream.trial_thinking import Found
from desist.proxy.engines.upstream.trials import Trials

__all__ = ["look_at_continuation", "look_at_final_message"]

_KEPT = 12  # tokens of the first answer that are kept
_COUNTING = "One, two, three,"
_MORE = 8  # tokens of the continuation


async def look_at_continuation(trials: Trials, found: Found, first: Seen) -> None:
    """/completions with the ids of the prompt and of what was generated."""
    kept = first.ids[:_KEPT]
    counting = {"prompt": _COUNTING, "content": _COUNTING}
    ids = [*first.prompt_ids, *kept] if first.prompt_ids else await trials.tokens(counting)
    if isinstance(ids, str) or not ids:
        found.notes.append("continuation: no ids to continue from (neither return_token_ids nor /tokenize)")
        return
    body = {"model": trials.model, "prompt": ids, "max_tokens": _MORE, "stream": True, **trials.optional}
    seen = await trials.ask(body, "/completions")
    problem = seen.failure
    if problem is None and not seen.generated:
        problem = "nothing was generated"
    if problem is None and seen.prompt_ids and list(seen.prompt_ids) != ids:
        problem = f"the server made {len(seen.prompt_ids)} other ids of our {len(ids)}"
    found.values["prompt_continuation"] = problem is None
    if problem is not None:
        found.notes.append(f"continuation: /completions does not go on from ids: {problem}")


async def look_at_final_message(trials: Trials, found: Found, first: Seen) -> None:
    """Whether `continue_final_message` renders what was generated unchanged."""
    found.values["final_message"] = False
    head = first.head(_KEPT)
    asked = {"add_generation_prompt": False, "continue_final_message": True, "add_special_tokens": False}
    prompt = trials.prompt()
    if head is None or not first.prompt_ids:
        found.notes.append("final message: without token ids it cannot be shown how one is rendered")
        return
    text, kept = head
    opening, handoff = trials.profile.think_open, trials.profile.handoff("write")
    if not first.reasoning:
        text = text.lstrip().removeprefix(opening).lstrip()
    handoff = handoff.lstrip(" ") if text[-1:].isspace() else handoff
    text = f"{opening}\n{text}{handoff}"  # as `message_body` writes it
    messages = [*prompt["messages"], {"role": "assistant", "content": text}]
    rendered = await trials.tokens({**prompt, "messages": messages, **asked})
    if isinstance(rendered, str):
        found.notes.append(f"final message: it cannot be shown how one is rendered: {rendered}")
        return
    ours = [*first.prompt_ids, *kept]
    if rendered[: len(ours)] == ours:
        found.values["final_message"] = True
        return
    same = next((n for n, (a, b) in enumerate(zip(rendered, ours, strict=False)) if a != b), len(rendered))
    found.notes.append(
        f"final message: the chat template changes a continued message from token {same} of {len(ours)} on: "
        "it is not used"
    )
