"""The first call of a generation: chunks in, deltas out, and where thinking stands when it ends or is cut.

Knows thinking, token counts and what was generated as ids. The stop machine decides, `TextWatch` finds the
place. Does not talk to anyone; what comes after a cut is read by `answer`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from desist.controller.core import Action, Control, Decision, Mode, StopReason
from desist.controller.loops import LoopDetector
from desist.controller.machine import StopMachine
from desist.controller.profile import ModelProfile
from desist.data.errors import EngineError, UpstreamError
from desist.proxy.engines.base import Delta, Finished, GenerationRequest, Usage
from desist.proxy.engines.upstream.bodies import Continued, estimated_tokens
from desist.proxy.engines.upstream.counts import TokenCounts
from desist.proxy.engines.upstream.cut import Cut, TextWatch
from desist.proxy.engines.upstream.plan import Plan, native_budgets
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.reasoning import Piece, ThinkSplitter
from desist.proxy.settings import UpstreamSettings

__all__ = ["UpstreamRun", "estimated_prompt"]

_SLACK = 8  # tokens that a native budget may be late before thinking is cut here


class UpstreamRun:
    """The first call. `stopped`: thinking was cut, or ended without an answer that is still owed.

    `opened`: whether the prompt opens thinking, where that is known better than its text tells.
    """

    def __init__(
        self,
        request: GenerationRequest,
        settings: UpstreamSettings,
        profile: ModelProfile,
        plan: Plan,
        *,
        min_answer_tokens: int,
        loops: bool,
        opened: bool | None = None,
    ) -> None:
        self.request, self.profile, self.plan = request, profile, plan
        self.handoff_tokens = estimated_tokens(
            profile.handoff(request.control.answer), settings.chars_per_token
        )
        self._chars_per_token = settings.chars_per_token
        self.counts = TokenCounts(settings.chars_per_token)
        chat, control = request.messages is not None, request.control
        # A text completion that nobody asked to control stays as it is, tags included.
        parsed = chat and plan.parses
        raw = not chat and ((control.mode == "off" and plan.budget is None) or bool(request.body.get("echo")))
        told, thinks = _start(request, profile, settings, plan.opens)
        opened = told if opened is None else opened
        self.opened_by_prompt = opened and not chat
        self._splitter = None if raw or parsed else ThinkSplitter.of(profile, opened=opened and thinks)
        self.native: int | None = None
        self._watch: TextWatch | None = None
        self._limited = False
        self._hard: int | None = None
        self.uncontrolled: str | None = None
        if thinks and not raw:
            self._set_watch(min_answer_tokens, loops)
        by_text = plan.known and plan.message and not plan.ids if chat else plan.text and opened
        self.closed_at_once = self._watch is not None and self._hard == 0 and by_text
        self.prompt_ids: tuple[int, ...] = ()
        self._ids: list[int] = []
        self._all_ids = True  # every text came with its ids
        self._needs_ids = not (plan.message or plan.text)  # there is no other way to go on
        self._tells_ids = bool(request.body.get("return_token_ids"))
        self._saw_reasoning = self._answered = False
        self._blank = True  # of content, only white space came
        self._pending: list[tuple[int, dict[str, Any]]] = []  # choice fields of text that is held back
        self._read = self._shown = 0  # characters of reasoning
        self.finish: str | None = None
        self._stop_string = False
        self.extra: dict[str, Any] = {}

    def _set_watch(self, min_answer_tokens: int, loops: bool) -> None:
        request, plan = self.request, self.plan
        control = replace(request.control, budget=plan.budget)
        limit = request.sampling.max_tokens
        machine = self._machine(control, limit, min_answer_tokens)
        wanted = machine.soft_limit
        if wanted is not None and plan.native is not None:
            late = replace(control, budget=wanted + _SLACK)
            backstop = self._machine(late, None, min_answer_tokens)
            last = (backstop.hard_limit or 0) + self.handoff_tokens + 1
            if limit is None or last <= limit:
                machine, self.native = backstop, wanted
        elif not plan.known:  # the server may obey a budget of the client's by itself
            own = [value for value in native_budgets(request.body).values() if value is not None]
            self.native = min(own, default=None)
        self._limited = machine.soft_limit is not None
        self._hard = machine.hard_limit
        if not plan.can_cut:
            if self._limited and (plan.native is None or self.native is None):
                self.uncontrolled = plan.why
            return
        finds = LoopDetector() if loops and request.control.mode != "off" else None
        self._watch = TextWatch(machine, self.profile.cues, finds)

    def _machine(self, control: Control, limit: int | None, min_answer_tokens: int) -> StopMachine:
        return StopMachine(
            control,
            max_tokens=limit,
            min_answer_tokens=min_answer_tokens,
            handoff_tokens=self.handoff_tokens,
        )

    @property
    def watched(self) -> bool:
        """Whether thinking may be cut here."""
        return self._watch is not None

    @property
    def counts_needed(self) -> bool:
        """Whether tokens must be counted while the answer runs."""
        return self._watch is not None and self._limited

    @property
    def wants_ids(self) -> bool:
        """Whether token ids are asked for: where a cut may come of itself."""
        active = self.request.control.mode == "active" or (self._watch is not None and self._limited)
        return self._watch is not None and self.plan.ids and active

    @property
    def cut(self) -> Cut | None:
        return self._watch.cut if self._watch is not None else None

    @property
    def stopped(self) -> bool:
        return self.closed_at_once or self.cut is not None

    @property
    def at_once(self) -> Decision | None:
        """The stop of thinking that was never begun."""
        return Decision(Action.STOP, StopReason.BUDGET, 0) if self.closed_at_once else None

    @property
    def kept(self) -> str:
        return self._watch.kept if self._watch is not None else ""

    @property
    def left(self) -> Continued:
        """What the second call has to know."""
        return Continued(self.kept, self.counts.generated + self.handoff_tokens)

    @property
    def kept_ids(self) -> tuple[int, ...] | None:
        """Ids of prompt and kept generation, as far as they are known exactly; None: they are not."""
        prompt = self.prompt_ids
        if not prompt and isinstance(self.request.prompt, tuple):
            prompt = self.request.prompt
        if self.cut is None or not prompt or not self._all_ids:
            return None
        return (*prompt, *self._ids[: self.cut.ids])

    def cap(self, mode: Mode) -> None:
        """Use no mode above `mode` from now on. A cut that was taken stands."""
        if self._watch is not None:
            self._watch.cap(mode)

    def stop(self) -> bool:
        """Close thinking by hand; False where it is over, or cannot be cut."""
        if self._watch is None or self.stopped or self._answered or self.finish is not None:
            return False
        self._watch.ask(StopReason.MANUAL)
        return True

    def feed(self, chunk: Chunk) -> list[Delta]:
        """Deltas of a chunk of the first call."""
        out: list[Delta] = []
        before = self.counts.generated
        self.counts.read(chunk)
        self._note(chunk)
        if chunk.reasoning and self._splitter is not None:
            held = self._splitter.finish()
            self._splitter = None  # the server parses thinking itself: tags in its content are text
            self._show(held, chunk, before, out)
        pieces = [Piece("reasoning", chunk.reasoning)] if chunk.reasoning else []
        if self._splitter is not None and not self._splitter.thinking:
            before = 0  # should thinking open in this chunk, its tag is in none before it
        if chunk.content:
            plain = [Piece("content", chunk.content)]
            pieces += plain if self._splitter is None else self._splitter.feed(chunk.content)
        if self._needs_ids and self._cannot_go_on():
            self._watch = None
        extra = self._choice_extra(chunk)
        if extra:
            told = sum(len(piece.text) for piece in pieces if piece.channel == "reasoning")
            self._pending.append((self._read + told, extra))
        self._show(pieces, chunk, before, out)
        if self.stopped:
            self._release(out)
            return out
        if chunk.delta_extra:
            if chunk.delta_extra.get("tool_calls") or chunk.delta_extra.get("function_call"):
                self._flush(out)
                self._answered = True
            out.append(Delta("content", "", extra=chunk.delta_extra))
        self._release(out)
        return out

    def end(self) -> list[Delta]:
        """What was held back, when the call has ended by itself. Raises `UpstreamError` if it broke off."""
        out: list[Delta] = []
        wasted = self._ends_in_tag() and self._owes_an_answer()
        pieces = self._splitter.finish() if self._splitter and not wasted else []
        self._show(pieces, None, self.counts.generated, out)
        if self.stopped:
            return out
        self._flush(out)
        self._release(out)
        if self.finish is None:
            raise UpstreamError(
                "the upstream ended its stream without a finish_reason. Look at its log.", 502
            )
        if self._owes_an_answer() and self._watch is not None:
            self._watch.close(StopReason.NATURAL if self.finish == "stop" else StopReason.BUDGET)
        return out

    def finished(self) -> Finished:
        """The end event of a generation that needed no second call."""
        if self.finish is None:
            raise EngineError(
                "asked for the end of a generation that goes on. This is a fault of the engine."
            )
        reasoning, answer = self.counts.split()
        reason = StopReason.NONE
        by: Literal["upstream"] | None = None
        if self._saw_reasoning:
            cut_short = self.finish == "length" and self._blank and not self._answered
            reason = StopReason.LENGTH if cut_short else StopReason.NATURAL
            if (
                self.native is not None
                and reasoning >= self.native + min(0, self.plan.offset)
                and not cut_short
            ):
                reason, by = StopReason.BUDGET, "upstream"
        prompt, told = estimated_prompt(self, self._chars_per_token)
        usage = Usage(
            prompt, reasoning, answer, estimated=not (told and self.counts.exact and self.counts.split_exact)
        )
        shadow = self._watch.shadow_loop if self._watch is not None else None
        return Finished(
            self.finish, reason, usage, None, shadow,
            uncontrolled=self.uncontrolled, extra=self.extra or None, budget_by=by,
        )  # fmt: skip

    def _cannot_go_on(self) -> bool:
        """Whether a cut would now be the end: ids were the only way, and they do not come."""
        watch = self._watch
        if watch is None or watch.cut is not None:
            return False
        if self._all_ids and (self.prompt_ids or isinstance(self.request.prompt, tuple) or not self._ids):
            return False
        self.uncontrolled = (
            "the server gives no token ids, and there is no other way to continue this request"
        )
        return True

    def _ends_in_tag(self) -> bool:
        """Whether the limit fell into the tag that opens thinking, before anything else was written."""
        if self._splitter is None or self.finish != "length" or self._saw_reasoning or not self._blank:
            return False
        held = self._splitter.held.strip()
        return self._watch is not None and bool(held) and self.profile.think_open.startswith(held)

    def _owes_an_answer(self) -> bool:
        """Whether thinking ended without an answer although there is room for one.

        A limit that its tags alone used up leaves room too: they are thrown away.
        """
        if self._answered or not self._blank or self._stop_string or self._watch is None:
            return False
        if not self._limited and self.request.control.mode != "active":
            return False
        if self.finish == "length":
            limit = self.request.sampling.max_tokens
            return self._limited and limit is not None and self.counts.reasoning < limit
        return self.finish == "stop" and self._saw_reasoning

    def _show(self, pieces: list[Piece], chunk: Chunk | None, before: int, out: list[Delta]) -> None:
        ids = chunk.token_ids if chunk is not None and len(pieces) == 1 else ()
        for channel, text in pieces:
            if channel == "content":
                self._flush(out)
                self._release(out)
                self._blank = self._blank and not text.strip()
                self._answered = self._answered or not self._blank
                out.append(Delta("content", text, ids))
                continue
            watch = self._watch
            if not self._saw_reasoning and watch is not None:
                watch.begin(min(before, len(self._ids)))
            self._saw_reasoning = True
            self._read += len(text)
            self.counts.reasoned(text, alone=len(pieces) == 1)
            shown = text if watch is None else self._pushed(watch, text)
            self._shown += len(shown)
            if shown:
                self._release(out, up_to=self._shown - len(shown))
                out.append(Delta("reasoning", shown, ids if shown == text else ()))
            if watch is not None and watch.cut is not None:
                return

    def _pushed(self, watch: TextWatch, text: str) -> str:
        whole = self._splitter is None or not self._splitter.held
        return watch.push(text, self.counts.reasoning, len(self._ids) if whole else None)

    def _flush(self, out: list[Delta]) -> None:
        if self._watch is not None and self._watch.cut is None and (text := self._watch.flush()):
            self._shown += len(text)
            out.append(Delta("reasoning", text))

    def _release(self, out: list[Delta], up_to: int | None = None) -> None:
        """Choice fields (logprobs, ...) whose text was shown."""
        limit = self._shown if up_to is None else up_to
        while self._pending and self._pending[0][0] <= limit:
            out.append(Delta("content", "", choice_extra=self._pending.pop(0)[1]))

    def _choice_extra(self, chunk: Chunk) -> dict[str, Any]:
        extra = dict(chunk.choice_extra)
        if self._tells_ids:
            if chunk.token_ids:
                extra["token_ids"] = list(chunk.token_ids)
            if chunk.prompt_ids and self.request.messages is None:
                extra["prompt_token_ids"] = list(chunk.prompt_ids)
        return extra

    def _note(self, chunk: Chunk) -> None:
        if chunk.finish_reason:
            self.finish = chunk.finish_reason
            if "stop_reason" not in chunk.choice_extra and self.finish == "stop" and self.request.stop:
                self._stop_string = True  # a server that does not tell may have met one
        if chunk.choice_extra and isinstance(chunk.choice_extra.get("stop_reason"), str):
            self._stop_string = True
        if chunk.token_ids:
            self._ids += chunk.token_ids
        elif chunk.reasoning or chunk.content:
            self._all_ids = False
        if chunk.prompt_ids:
            self.prompt_ids = chunk.prompt_ids
        if chunk.extra:
            extra = dict(chunk.extra)
            if not self._tells_ids:
                extra.pop("prompt_token_ids", None)
            self.extra |= extra


def estimated_prompt(run: UpstreamRun, chars_per_token: float) -> tuple[int, bool]:
    """(tokens of the prompt, whether they were counted and not estimated)."""
    if run.prompt_ids:
        return len(run.prompt_ids), True
    if (told := run.counts.prompt) is not None:
        return told, True
    request = run.request
    if isinstance(request.prompt, tuple):
        return len(request.prompt), True
    text = request.prompt if request.prompt is not None else "".join(map(_text_of, request.messages or ()))
    return max(1, estimated_tokens(text, chars_per_token)), False


def _text_of(message: Any) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


def _start(
    request: GenerationRequest, profile: ModelProfile, settings: UpstreamSettings, opens: bool
) -> tuple[bool, bool]:
    """(whether the prompt opens thinking, whether the model thinks at all), as far as the request tells."""
    if request.messages is None:
        prompt = request.prompt if isinstance(request.prompt, str) else ""
        return profile.after_prompt(prompt).thinking, True
    start = profile.start(request.template)
    given = any(request.template.get(name) is False for name in profile.thinking_switch)
    if given:
        return False, False
    return opens or settings.thinking_opened_by_template or start == "opened", True
