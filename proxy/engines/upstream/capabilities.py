"""What a server behind the proxy was seen to do, as far as the engine must know to choose its way.

Holds the findings of the self-test (`selftest.py`) and nothing that makes them. Fields keep to what was
observed: a server is never credited with what its documentation says.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Capabilities", "Way"]

Way = Literal["prompt_ids", "final_message", "text"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One model of one upstream server.

    `token_ids`: chat answers carry the ids of prompt and output when `return_token_ids` asks for them.
    `prompt_continuation`: /completions goes on from a prompt given as ids. `final_message`: the chat template
    renders a continued last assistant message so that our ids are an exact prefix (shown by /tokenize).
    `native_budget`: the request field whose budget was seen to bind ("thinking_token_budget",
    "chat_template_kwargs.thinking_budget", ...), None where none did; `native_offset`: by how many tokens
    the reasoning seen was longer than the budget (a closing sentence) or shorter (white space that the prompt
    writes after the open tag counts). `running_usage`: chunks carry usage
    while the answer runs; `usage_details`: the last usage tells reasoning tokens. `reasoning_field`: the
    message field that reasoning came in; `parses_reasoning`: whether the server takes it out of the content
    itself (False: tags are in the content, or the model did not think). `cancels`: the server stopped
    generating after its client left; None: it tells nothing by which to know. `choices`: n=2 gives two.
    `tools`: a request with tools is taken. `thinks`: the model thought on the trial. `template_opens`: the
    prompt ends inside an open thinking block; None: unknown. `close_tag_tokens`: tokens of the close tag;
    None: unknown. `streams`: answers come as events. `notes`: what failed or is odd, a sentence each, as
    "native budget: ..."; `conflicts`: the same for what makes answers wrong until it is mended.
    """

    token_ids: bool = False
    prompt_continuation: bool = False
    final_message: bool = False
    native_budget: str | None = None
    native_offset: int = 0
    running_usage: bool = False
    usage_details: bool = False
    reasoning_field: Literal["reasoning", "reasoning_content"] | None = None
    parses_reasoning: bool = False
    cancels: bool | None = None
    choices: bool = False
    tools: bool = False
    thinks: bool = False
    template_opens: bool | None = None
    close_tag_tokens: int | None = None
    streams: bool = True
    notes: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def examined(self) -> bool:
        """Whether the server answered at all, so that the other fields say something."""
        return not any(note.startswith("start:") for note in self.notes)

    @property
    def way(self) -> Way:
        """How a stopped generation is continued, best first."""
        if self.token_ids and self.prompt_continuation:
            return "prompt_ids"
        return "final_message" if self.final_message else "text"

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        told = asdict(self) | {"notes": list(self.notes), "conflicts": list(self.conflicts)}
        return told | {"way": self.way}
