"""How a cut generation goes on: the way, the prompt of the second call, and the headers of every call.

Splices ids of prompt, kept thinking and hand-off, exactly as they were read; where there are none, texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from desist.controller.profile import ModelProfile
from desist.data.errors import UpstreamError
from desist.proxy.engines.base import GenerationRequest
from desist.proxy.engines.upstream.answer import Way
from desist.proxy.engines.upstream.bodies import handoff_after, ids_body, message_body, text_body
from desist.proxy.engines.upstream.encoding import Encoder
from desist.proxy.engines.upstream.run import UpstreamRun

__all__ = ["call_headers", "closed_again", "continuation", "has_handoff", "opens_thinking"]


async def continuation(run: UpstreamRun, encoder: Encoder) -> tuple[Way, dict[str, Any], int | None]:
    """How the answer is asked for: way, body, and the tokens of the hand-off where they are known."""
    request, profile, left = run.request, run.profile, run.left
    kept_ids = run.kept_ids if run.plan.ids else None
    if kept_ids is not None:
        found = await _spliced(run, kept_ids, encoder)
        if found is not None:
            prompt, handoff_tokens = found
            return "ids", ids_body(request, left, prompt), handoff_tokens
    if request.messages is None:
        if not isinstance(request.prompt, str):
            raise UpstreamError("the upstream gave no token ids to continue a prompt of ids from.", 502)
        return "text", text_body(request, profile, left, opened=run.opened_by_prompt), None
    return "message", message_body(request, profile, left), None


async def _spliced(
    run: UpstreamRun, kept_ids: Sequence[int], encoder: Encoder
) -> tuple[tuple[int, ...], int] | None:
    """(ids to continue from, tokens of the hand-off among them); None where the hand-off has no ids."""
    cut, request, profile = run.cut, run.request, run.profile
    assert cut is not None
    headers, model = call_headers(request, "ids"), request.model
    rest = cut.rest
    if cut.ids == 0:  # nothing that was generated is kept, so that the block may not be open yet
        opening = await encoder.encode(model, profile.think_open, headers)
        if opening is None:
            return None
        if not _holds(kept_ids[-len(opening) - 3 :], opening):
            rest = f"{profile.think_open}\n{rest}"
    handoff = handoff_after(profile, request, run.kept)
    ids = await encoder.encode(model, rest + handoff, headers)
    alone = ids if not rest else await encoder.encode(model, handoff, headers)
    if ids is None or alone is None:
        return None
    return (*kept_ids, *ids), len(alone)


async def closed_again(
    run: UpstreamRun, way: Way, body: Mapping[str, Any], wasted: int, encoder: Encoder
) -> dict[str, Any] | None:
    """The second call once more, after a block that was opened again and closed at once.

    `wasted`: tokens that the call before has spent. None where the block's tags have no ids.
    """
    request, profile = run.request, run.profile
    block = f"{profile.think_open}\n\n{profile.think_close}\n\n"
    left = {
        name: max(1, body[name] - wasted)
        for name in ("max_tokens", "max_completion_tokens")
        if isinstance(body.get(name), int)
    }
    if way == "ids":
        ids = await encoder.encode(request.model, block, call_headers(request, "ids"))
        return None if ids is None else {**body, **left, "prompt": [*body["prompt"], *ids]}
    if way == "text":
        return {**body, **left, "prompt": body["prompt"] + block}
    *earlier, last = body["messages"]
    return {**body, **left, "messages": [*earlier, {**last, "content": last["content"] + block}]}


async def has_handoff(request: GenerationRequest, profile: ModelProfile, encoder: Encoder) -> bool:
    """Whether the hand-off has ids, so that a cut can go on from ids."""
    text = profile.handoff(request.control.answer)
    return await encoder.encode(request.model, text, call_headers(request, "ids")) is not None


async def opens_thinking(request: GenerationRequest, profile: ModelProfile, encoder: Encoder) -> bool | None:
    """Whether a prompt of token ids opens thinking; None for other prompts, which tell it themselves."""
    prompt, control = request.prompt, request.control
    if not isinstance(prompt, tuple) or (control.mode == "off" and control.budget is None):
        return None
    opening = await encoder.encode(request.model, profile.think_open, call_headers(request, "ids"))
    return opening is not None and _holds(prompt[-len(opening) - 2 :], opening)


def call_headers(request: GenerationRequest, call: str = "") -> Mapping[str, str]:
    """The client's headers for one call. Calls share no request id: some servers make it their own."""
    given = request.headers.get("x-request-id")
    number = request.request_id.rpartition("/")[2]
    if given is None or (number in ("0", request.request_id) and not call):
        return request.headers
    marks = ([number] if number not in ("0", request.request_id) else []) + ([call] if call else [])
    return {**request.headers, "x-request-id": "-".join([given, *marks])}


def _holds(ids: Sequence[int], wanted: Sequence[int]) -> bool:
    size = len(wanted)
    return any(tuple(ids[at : at + size]) == tuple(wanted) for at in range(len(ids) - size + 1))
