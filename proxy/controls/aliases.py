"""The table of every field that says something about thinking: ours, our headers, and the ecosystem's.

One row a field: where it stands, which rule its value obeys, and what servers do with it by themselves. What
the proxy reads, what it sends on, what it refuses and docs/controls.md all come from these rows. Knows no
requests. vLLM: as read in its sources (0.32.0); SGLang, llama.cpp and OpenRouter: their sources and manuals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from desist.proxy.controls import values
from desist.proxy.controls.values import ReasoningFormat

__all__ = ["ALIASES", "CONTAINERS", "OWN", "Alias", "Kind", "Own", "dig"]

# budget: tokens · effort: a name · switch: thinking on or off · format: how thinking is shown
Kind = Literal["budget", "effort", "switch", "format"]


@dataclass(frozen=True, slots=True)
class Own:
    """A key of the `desist` object and its header. `says`: what it asks for."""

    name: str
    rule: Callable[[object], Any]
    takes: str
    says: str

    @property
    def header(self) -> str:
        return "x-desist-" + self.name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Alias:
    """A field of the ecosystem.

    `read`: its JSON value as a value of its kind; None: nothing was said. Raises `ValueError`. `servers`:
    what vLLM, SGLang, llama.cpp and OpenRouter do with it. `template`: the chat template itself obeys it.
    """

    path: tuple[str, ...]
    kind: Kind
    read: Callable[[object], Any]
    takes: str
    origin: str
    servers: tuple[str, str, str, str]
    template: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.path)


def dig(body: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The value at `path`; None where there is none, or something on the way is no object."""
    found: Any = body
    for part in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _worded(words: Mapping[str, Any]) -> Callable[[object], Any]:
    """A rule for texts with a meaning."""

    def read(value: object) -> Any:
        if value is None:
            return None
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return words[value]

    return read


def _shown_as(
    when_true: ReasoningFormat | None, when_false: ReasoningFormat | None
) -> Callable[[object], Any]:
    def read(value: object) -> Any:
        flag = values.flag_value(value)
        return None if flag is None else when_true if flag else when_false

    return read


def _think(value: object) -> bool | str | None:
    """Ollama's field: a switch or the name of an effort."""
    if value is None or isinstance(value, bool):
        return value
    try:
        return values.effort_value(value)
    except ValueError:
        raise ValueError("must be true, false or the name of an effort") from None


_TOKENS = "whole number; -1 no limit, 0 closes at once"
_EFFORT = "name"
_FLAG = "true, false"
_TYPES = {"enabled": True, "disabled": False, "adaptive": None, "auto": None}
# Of llama.cpp (deepseek, none, auto) and of Groq (parsed, raw, hidden); ours besides. llama.cpp's "none"
# leaves the thoughts where they are, in the content.
_FORMATS: Mapping[str, ReasoningFormat] = {
    "field": "field",
    "auto": "field",
    "deepseek": "field",
    "deepseek-legacy": "field",
    "parsed": "field",
    "inline": "inline",
    "raw": "inline",
    "none": "inline",
    "hidden": "none",
}
_IGNORED = "ignored"
_HINT = "to the template, a hint"
_KWARGS = "to the template"

OWN: tuple[Own, ...] = (
    Own("mode", values.mode_value, "off, shadow, active", "what scores may do"),
    Own("budget", values.budget_value, _TOKENS, "hard limit on reasoning tokens"),
    Own("effort", values.effort_value, _EFFORT, "a budget by name (`control.efforts`); not sent on"),
    Own("alpha", values.parse_alpha, "0 < alpha < 1, exact", "tolerated risk: which certificate stops"),
    Own("threshold", values.threshold_value, "0 to 1", "a threshold above the certificate's that it covers"),
    Own("answer", values.answer_value, "write, extract", "what a stop does"),
    Own("reasoning_format", values.format_value, "field, inline, none",
        "thinking in fields of its own, in the content between tags, or left out"),
    Own("object", values.flag_value, _FLAG, "whether responses carry the `desist` object"),
)  # fmt: skip

ALIASES: tuple[Alias, ...] = (
    Alias(("thinking_token_budget",), "budget", values.budget_value, _TOKENS, "vLLM, LiteRT-LM",
          ("enforced with a reasoning parser, chat and completions; -1 and null: none; checked as here",
           _IGNORED, _IGNORED, _IGNORED)),
    Alias(("thinking_budget",), "budget", values.budget_value, _TOKENS, "Alibaba, FastDeploy, mlx-vlm",
          (_IGNORED, _IGNORED, _IGNORED, _IGNORED)),
    Alias(("thinking_budget_tokens",), "budget", values.budget_value, _TOKENS, "llama.cpp",
          (_IGNORED, _IGNORED, "enforced where the template has tags; some versions only without "
           "--reasoning-budget", _IGNORED)),
    Alias(("reasoning_budget_tokens",), "budget", values.budget_value, _TOKENS, "llama.cpp",
          (_IGNORED, _IGNORED, "enforced in newer versions, before thinking_budget_tokens", _IGNORED)),
    Alias(("reasoning_budget",), "budget", values.budget_value, _TOKENS, "llama.cpp's flag as a field",
          (_IGNORED, _IGNORED, "flag only", _IGNORED)),
    Alias(("reasoning_max_tokens",), "budget", values.budget_value, _TOKENS, "Rapid-MLX",
          (_IGNORED, _IGNORED, _IGNORED, _IGNORED)),
    Alias(("reasoning", "max_tokens"), "budget", values.budget_value, _TOKENS, "OpenRouter",
          (_IGNORED, _IGNORED, _IGNORED, "sent to models that take a budget, else turned into an effort")),
    Alias(("thinking", "budget_tokens"), "budget", values.budget_value, _TOKENS, "Anthropic, LiteLLM",
          ("on /v1/messages only, as thinking_token_budget; ignored on chat", _IGNORED,
           "on /v1/messages only", _IGNORED)),
    Alias(("nvext", "max_thinking_tokens"), "budget", values.budget_value, _TOKENS, "NVIDIA NIM, Dynamo",
          (_IGNORED, _IGNORED, _IGNORED, _IGNORED)),
    Alias(("chat_template_kwargs", "thinking_budget"), "budget", values.budget_value, _TOKENS,
          "SGLang, Seed-OSS",
          (_HINT, _HINT, _HINT, _IGNORED), template=True),
    Alias(("custom_params", "thinking_budget"), "budget", values.budget_value, _TOKENS, "SGLang",
          (_IGNORED, "enforced with strict thinking, or with a custom_logit_processor of the request",
           _IGNORED, _IGNORED)),
    Alias(("thinkingConfig", "thinkingBudget"), "budget", values.budget_value, _TOKENS, "Gemini",
          (_IGNORED, _IGNORED, _IGNORED, _IGNORED)),
    Alias(("reasoning_effort",), "effort", values.effort_value, _EFFORT, "OpenAI",
          ("to the template; sets enable_thinking to (effort is not none) unless chat_template_kwargs "
           "holds it; none, minimal, low, medium, high, xhigh, max, else 400; gpt-oss: low, medium, high",
           "to the template; none sets thinking and enable_thinking to false",
           "to the template, newer versions", "mapped to each model's own control")),
    Alias(("reasoning", "effort"), "effort", values.effort_value, _EFFORT, "OpenAI Responses, OpenRouter",
          ("on /v1/responses, as reasoning_effort; ignored on chat",
           "none, low, medium, high: as reasoning_effort", _IGNORED, "mapped to each model's own control")),
    Alias(("output_config", "effort"), "effort", values.effort_value, _EFFORT, "Anthropic",
          ("on /v1/messages only, as reasoning_effort", _IGNORED, _IGNORED, _IGNORED)),
    Alias(("chat_template_kwargs", "reasoning_effort"), "effort", values.effort_value, _EFFORT,
          "gpt-oss, SGLang", (_KWARGS, "as reasoning_effort", _KWARGS, _IGNORED), template=True),
    Alias(("thinkingConfig", "thinkingLevel"), "effort", values.effort_value, _EFFORT, "Gemini",
          (_IGNORED, _IGNORED, _IGNORED, _IGNORED)),
    Alias(("think",), "switch", _think, "true, false, name", "Ollama",
          (_IGNORED, _IGNORED, _IGNORED, _IGNORED)),
    Alias(("enable_thinking",), "switch", values.flag_value, _FLAG, "Alibaba, SiliconFlow",
          (_IGNORED, _IGNORED, _IGNORED, _IGNORED)),
    Alias(("thinking", "type"), "switch", _worded(_TYPES), ", ".join(_TYPES), "Anthropic, Volcengine, Z.ai",
          ("on /v1/messages only; disabled: reasoning_effort none", _IGNORED, "on /v1/messages only",
           _IGNORED)),
    Alias(("reasoning", "enabled"), "switch", values.flag_value, _FLAG, "OpenRouter",
          (_IGNORED, "true sets thinking and enable_thinking", _IGNORED, "on, at the model's default")),
    Alias(("chat_template_kwargs", "enable_thinking"), "switch", values.flag_value, _FLAG,
          "Qwen3, GLM, Gemma", (_KWARGS, _KWARGS, _KWARGS, _IGNORED), template=True),
    Alias(("chat_template_kwargs", "thinking"), "switch", values.flag_value, _FLAG,
          "DeepSeek-V3.1, Kimi, Granite", (_KWARGS, _KWARGS, _KWARGS, _IGNORED), template=True),
    Alias(("include_reasoning",), "format", _shown_as("field", "none"), _FLAG, "vLLM, OpenRouter",
          ("false: thinking is left out, token ids too, and a schema binds from the first token", _IGNORED,
           _IGNORED, "false: as reasoning.exclude")),
    Alias(("reasoning", "exclude"), "format", _shown_as("none", "field"), _FLAG, "OpenRouter",
          (_IGNORED, _IGNORED, _IGNORED, "true: thinking is left out")),
    Alias(("separate_reasoning",), "format", _shown_as("field", "inline"), _FLAG, "SGLang",
          (_IGNORED, "false: thinking stays in the content", _IGNORED, _IGNORED)),
    Alias(("reasoning_format",), "format", _worded(_FORMATS), ", ".join(_FORMATS), "llama.cpp, Groq",
          (_IGNORED, _IGNORED, "none: thinking stays in the content; deepseek, auto: reasoning_content",
           _IGNORED)),
    Alias(("thinkingConfig", "includeThoughts"), "format", _shown_as("field", "none"), _FLAG, "Gemini",
          (_IGNORED, _IGNORED, _IGNORED, _IGNORED)),
)  # fmt: skip

CONTAINERS: tuple[str, ...] = tuple(dict.fromkeys(a.path[0] for a in ALIASES if len(a.path) > 1))
"""The objects that hold fields of the table."""
