"""The model profiles that desist brings along. Knows names and texts only.

Each says what it rests on: a public chat template, or the reasoning and tool parsers of vLLM ("vLLM:", by the
name that its flags know). A hand-off must read well after a cue that has just been written ("Wait"), and
after a paragraph end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from desist.controller.channels import ANALYSIS, END, FINAL
from desist.controller.profile import ModelProfile
from desist.data.errors import ControlError
from desist.data.reasoner import handoff

__all__ = ["PROFILES", "builtin_profile", "get_profile"]

_CHATML = "<|im_start|>assistant\n"
_BAR = "\uff5c"  # in DeepSeek's marks
_SENTENCE = " I have enough to answer now."


def builtin_profile() -> ModelProfile:
    """The profile of the built-in reasoner; its hand-offs are those it was trained with."""
    return ModelProfile(
        name="desist-reasoner",
        think_open=handoff.THINK_OPEN,
        think_close=handoff.THINK_CLOSE,
        handoff_write=handoff.HANDOFF_WRITE,
        handoff_extract=handoff.HANDOFF_EXTRACT,
        tool_call_open=None,
        extract_suffix=handoff.ANSWER_CLOSING,
        assistant_header=f"{handoff.TURN_START}assistant\n",
    )


def _profile(
    name: str, header: str, *, close: str = "</think>", after: str = "\n\n", **more: Any
) -> ModelProfile:
    """A profile with the usual hand-offs. `after`: what stands between the close tag and the answer."""
    write = f"{_SENTENCE}\n{close}{after}"
    return ModelProfile(
        name=name,
        assistant_header=header,
        think_close=close,
        handoff_write=write,
        handoff_extract=f"{write}The final answer is \\boxed{{",
        **more,
    )


# Template: ChatML; thinking off writes an empty block, thinking on writes nothing. Calls are
# `<tool_call>\n{json}` or, for the coder models, `<tool_call>\n<function=`. vLLM: qwen3, hermes, qwen3_coder.
_QWEN3 = _profile("qwen3", _CHATML)

# Template: the prompt ends in `<｜Assistant｜><think>\n`; there is no switch. vLLM: deepseek_r1, deepseek_v3.
_DEEPSEEK_R1 = _profile(
    "deepseek-r1",
    f"<{_BAR}Assistant{_BAR}>",
    tool_call_open=f"<{_BAR}tool▁calls▁begin{_BAR}>",
    tool_call_close=f"<{_BAR}tool▁calls▁end{_BAR}>",
    tool_call_form="any",
    template_opens=True,
    thinking_switch=(),
)

# Template: `<｜Assistant｜>` and `<think>` if `thinking` is true, else `</think>`. vLLM: deepseek_v3,
# deepseek_v31.
_DEEPSEEK_V31 = replace(
    _DEEPSEEK_R1,
    name="deepseek-v3.1",
    thinking_switch=("thinking", "enable_thinking"),
    thinks_by_default=False,
)

# Harmony (OpenAI's description of the format, and the openai-harmony package): the prompt ends in
# `<|start|>assistant`. A plain <think> never occurs. vLLM: openai_gptoss.
_GPT_OSS = _profile(
    "gpt-oss",
    "<|start|>assistant",
    close=END,
    after=FINAL,
    answer_open=FINAL,
    think_open=ANALYSIS,
    style="harmony",
    tool_call_open=None,
    tool_call_close=None,
    thinking_switch=(),
)

# Template: `<|turn>model\n`; thinking is off unless enable_thinking is true, and then an empty channel is
# written for the larger models. Calls are `<|tool_call>call:name{...}<tool_call|>`. vLLM: gemma4.
_GEMMA4 = _profile(
    "gemma-4",
    "<|turn>model\n",
    think_open="<|channel>thought\n",
    close="<channel|>",
    after="",
    tool_call_open="<|tool_call>",
    tool_call_close="<tool_call|>",
    tool_call_form="any",
    thinks_by_default=False,
)

# Template: `<|assistant|>`, and `\n<think></think>` with thinking off; the model writes `\n<think>` itself.
# Calls are `<tool_call>name\n<arg_key>`. vLLM: glm45.
_GLM45 = _profile("glm-4.5", "<|assistant|>", after="\n", tool_call_form="name")

# Template: `<|assistant|><think>`, and `</think>` in its place with thinking off. vLLM: glm47.
_GLM47 = replace(_GLM45, name="glm-4.7", template_opens=True)

# Template: `<|im_assistant|>assistant<|im_middle|>`; the model writes `<think>` itself. vLLM: kimi_k2.
_KIMI_K2 = _profile(
    "kimi-k2",
    "<|im_assistant|>assistant<|im_middle|>",
    after="",
    tool_call_open="<|tool_calls_section_begin|>",
    tool_call_close="<|tool_calls_section_end|>",
    tool_call_form="any",
    thinking_switch=("thinking", "enable_thinking"),
)

# Kimi-VL-Thinking and Kimi-Dev write `◁think▷`, which is several tokens. Kimi-Dev's header is ChatML's; where
# a prompt does not show the header, the tag at its end decides.
_KIMI_VL = _profile(
    "kimi-vl",
    "<|im_assistant|>assistant<|im_middle|>",
    think_open="◁think▷",
    close="◁/think▷",
    tool_call_open=None,
    tool_call_close=None,
    thinking_switch=(),
)

# Template of Nano v2: `<SPECIAL_11>Assistant\n<think>\n\n`, with `/no_think` in a message `<think></think>`.
_NEMOTRON_NANO2 = _profile(
    "nemotron-nano-v2",
    "<SPECIAL_11>Assistant\n",
    tool_call_open="<TOOLCALL>",
    tool_call_close="</TOOLCALL>",
    template_opens=True,
    thinking_switch=(),
)

# Nemotron 3 writes as Qwen3 does, and its template opens the block. vLLM: nemotron_v3.
_NEMOTRON3 = replace(_QWEN3, name="nemotron-3", template_opens=True)

# Template of Llama-Nemotron Super v1.5: the model writes `<think>` itself, `/no_think` writes an empty block.
_NEMOTRON_LLAMA = replace(
    _NEMOTRON_NANO2,
    name="llama-nemotron",
    assistant_header="<|start_header_id|>assistant<|end_header_id|>\n\n",
    template_opens=False,
)

# Template: `]~b]ai\n<think>\n`; there is no switch. Calls are `<minimax:tool_call>\n<invoke name=`.
# vLLM: minimax_m2.
_MINIMAX_M2 = _profile(
    "minimax-m2",
    "]~b]ai\n",
    tool_call_open="<minimax:tool_call>",
    tool_call_close="</minimax:tool_call>",
    template_opens=True,
    thinking_switch=(),
)

# vLLM: minimax_m3. The template may open the block (thinking_mode "enabled"); by default the model does.
_MINIMAX_M3 = replace(
    _MINIMAX_M2.with_tags("<mm:think>", "</mm:think>"),
    name="minimax-m3",
    tool_call_open="]<]minimax[>[<tool_call>",
    tool_call_close="]<]minimax[>[</tool_call>",
    tool_call_form="any",
    template_opens=False,
)

# Magistral and later: special tokens of the mistral-common package; the model writes `[THINK]` itself. A call
# ends with the generation. vLLM: mistral.
_MISTRAL = _profile(
    "mistral",
    "[/INST]",
    think_open="[THINK]",
    close="[/THINK]",
    after="",
    tool_call_open="[TOOL_CALLS]",
    tool_call_close=None,
    tool_call_form="any",
    thinking_switch=(),
)

# Granite 3.2 thinks between two sentences, which it does not always write alike; `thinking` is off by
# default. vLLM: granite.
_GRANITE32 = _profile(
    "granite-3.2",
    "<|start_of_role|>assistant<|end_of_role|>",
    think_open="Here is my thought process:",
    close="Here is my response:",
    tool_call_open="<|tool_call|>",
    tool_call_close=None,
    thinking_switch=("thinking",),
    thinks_by_default=False,
)

# Granite 4.2 writes as Nemotron 3 does. vLLM: granite_thinking.
_GRANITE4 = replace(_NEMOTRON3, name="granite-4", assistant_header=_GRANITE32.assistant_header)

# Template: `<seed:bos>assistant\n`; a thinking budget of 0 opens the block. vLLM: seed_oss.
_SEED_OSS = _profile(
    "seed-oss",
    "<seed:bos>assistant\n",
    think_open="<seed:think>",
    close="</seed:think>",
    tool_call_open="<seed:tool_call>",
    tool_call_close="</seed:tool_call>",
    thinking_switch=(),
)

PROFILES: dict[str, ModelProfile] = {
    profile.name: profile
    for profile in (
        builtin_profile(),
        _QWEN3,
        # QwQ, the Thinking-2507 models and Qwen3.5: the template opens the block. vLLM: qwen3.
        replace(_QWEN3, name="qwen3-thinking", template_opens=True),
        _DEEPSEEK_R1,
        _DEEPSEEK_V31,
        # vLLM: deepseek_v32, deepseek_v4. Calls in DSML; thinking as in V3.1, on by default in V4.
        replace(_DEEPSEEK_V31, name="deepseek-v3.2", tool_call_open=f"<{_BAR}DSML{_BAR}function_calls>",
                tool_call_close=f"</{_BAR}DSML{_BAR}function_calls>"),
        replace(_DEEPSEEK_V31, name="deepseek-v4", tool_call_open=f"<{_BAR}DSML{_BAR}tool_calls>",
                tool_call_close=f"</{_BAR}DSML{_BAR}tool_calls>", thinks_by_default=True),
        _GPT_OSS,
        _GEMMA4,
        _GLM45,
        _GLM47,
        _KIMI_K2,
        _KIMI_VL,
        _NEMOTRON_NANO2,
        _NEMOTRON3,
        _NEMOTRON_LLAMA,
        _MINIMAX_M2,
        _MINIMAX_M3,
        _MISTRAL,
        _GRANITE32,
        _GRANITE4,
        _SEED_OSS,
    )
}  # fmt: skip


def get_profile(name: str) -> ModelProfile:
    """The profile of that name. Raises `ControlError` naming the known ones."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ControlError(
            f"no model profile is called {name!r}. Known profiles: {', '.join(sorted(PROFILES))}. "
            "For another model, build a desist.controller.ModelProfile."
        ) from None
