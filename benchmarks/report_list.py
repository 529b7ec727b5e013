"""The public reports of faults in reasoning-model serving that desist answers, and which of its parts they bear on.

Ids are those that tests carry in their names (`test_R21_...`). `kind` says what went wrong, in our words; `thread` is
one public place where it was told. Rows B3 are faults measured in peers before a server that thinks for 60 chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REPORTS", "Report"]

#: Parts in which a report is answered by tests; a report of none of them (documentation only) needs no test.
TESTED = frozenset({"proxy", "parser", "controller", "CLI", "capture", "calibration", "replay"})


@dataclass(frozen=True)
class Report:
    """One public report. `parts`: what of desist it bears on."""

    id: str
    kind: str
    thread: str
    parts: tuple[str, ...]

    @property
    def applicable(self) -> bool:
        return bool(TESTED & set(self.parts))

    @property
    def link(self) -> str:
        """Markdown of the thread."""
        repository, _, number = self.thread.partition("#")
        return f"[{self.thread}](https://github.com/{repository}/issues/{number})" if number else self.thread


def _report(line: str) -> Report:
    identity, parts, thread, kind = (part.strip() for part in line.split("|"))
    return Report(identity, kind, thread, tuple(parts.split()))


_LINES = """
R01 | controller proxy | vllm-project/vllm#39573 | a budget is skipped in silence under speculative decoding
R02 | controller proxy | vllm-project/vllm#54906 | a budget is ignored by one of the server's runners
R04 | parser CLI | vllm-project/vllm#39103 | the template opens thinking, and the whole answer lands in reasoning
R05 | proxy | vllm-project/vllm#50166 | a budget in the wrong object is accepted and ignored
R06 | proxy controller | vllm-project/vllm#43402 | negative, boolean, float and text budgets are accepted
R07 | proxy | openclaw/openclaw#57881 | 0 and -1 mean different things by different names
R08 | controller capture | vllm-project/vllm#52461 | placeholders of async scheduling are taken for tokens
R09 | controller | dphnAI/sonar#1766 | a budget never fires while the batch does not change
R10 | controller CLI | vllm-project/vllm#32157 | state is lost by preemption; pipeline stages see nothing
R11 | controller | vllm-project/vllm#34668 | the close tag inside an accepted draft; neighbours in the batch
R13 | parser | antonellof/ferrox#205 | a second close tag leaks into the answer
R14 | controller | ggml-org/llama.cpp#22717 | the forced closing text comes out as garbage
R16 | controller replay | ggml-org/llama.cpp#25263 | the cut lands inside a word or a character
R18 | controller replay | ollama/ollama#17561 | loops in thinking burn the whole context
R19 | parser controller | Blaizzy/mlx-vlm#1911 | only thinking that the prompt opened is capped; tags that are not ASCII
R21 | parser proxy | vllm-project/vllm#43933 | one chunk with the end of thinking and the beginning of the answer
R22 | parser | NVIDIA/TensorRT-LLM#17369 | a tag cut over chunks is missed
R24 | proxy replay | antirez/ds4#685 | chunks are cut anew; chunks are taken for tokens
R25 | parser controller | vllm-project/vllm#17349 | with thinking off the answer is called reasoning
R26 | proxy controller parser | lmstudio-ai/lmstudio-bug-tracker#1602 | max_tokens runs out in thinking: an empty answer
R28 | proxy parser | vllm-project/vllm#36632 | reasoning and reasoning_content
R29 | proxy | BerriAI/litellm#22568 | chunks with reasoning only are thrown away
R30 | proxy | langchain-ai/langchain#35059 | clients that read content only
R31 | parser controller | open-webui/open-webui#11708 | tags in prose, in code and in old turns
R34 | proxy controller | vllm-project/vllm#47027 | a JSON schema from the first token on switches thinking off
R35 | controller parser | vllm-project/vllm#39056 | tool calls inside thinking are lost, mentions become calls
R36 | proxy | vllm-project/vllm#53363 | finish_reason tool_calls without a call
R37 | proxy replay | vllm-project/vllm#50895 | reasoning tokens are not counted, or as 0
R39 | controller CLI | sgl-project/sglang#25536 | token ids of tags are fixed in the code
R40 | proxy | sgl-project/sglang#24517 | nobody finds how to cap thinking
R41 | controller | vllm-project/vllm#44676 | a forced close tag in the middle of a tool call's arguments
R44 | controller proxy | vllm-project/vllm#55382 | loops, and efforts as budgets
R45 | proxy parser controller | ai-dynamo/dynamo#11997 | choices share one parser's state
R47 | capture CLI replay | vllm-project/vllm#44485 | fewer hidden states than tokens with prefix caching
R48 | capture CLI | vllm-project/vllm#56417 | reading hidden states changes the tokens
R49 | capture | sgl-project/sglang#26163 | hidden states of one request in another's
R51 | capture | IBM/vLLM-Hook#5 | a prefill in chunks is read beyond its end
R52 | CLI | vllm-project/vllm#51016 | tensor parallelism fails at the start, without a word why
R53 | capture docs | vllm-project/vllm#4435 | no states of chosen layers for generated tokens
R54 | CLI | TransformerLensOrg/TransformerLens#697 | which layer is layer 0, and how large will it get
R55 | controller replay | hao-ai-lab/Dynasor#25 | a stop because enough was asked, not because answers agree
R56 | proxy replay docs | hao-ai-lab/Dynasor#10 | the method cannot be used offline
R57 | replay docs | AngelaZZZ-611/reasoning_models_probing#2 | results on whole traces passed off as online
R58 | calibration CLI | facebookresearch/deepconf#3 | is a larger score more or less sure
R60 | controller replay | vllm-project/vllm#18370 | probing has a cost that nobody counts
R61 | calibration CLI | scikit-learn-contrib/MAPIE#453 | a wrong rank for few calibration points
R62 | calibration | scikit-learn-contrib/MAPIE#973 | a quantile in floats slips by one rank
R63 | calibration CLI | scikit-learn-contrib/MAPIE#477 | calibrated on what it was trained on
R64 | calibration replay proxy | maziyarpanahi/openmed#987 | a guarantee dies in silence when the data drift
R65 | calibration CLI | scikit-learn-contrib/MAPIE#855 | no threshold controls the risk
R67 | proxy | BerriAI/litellm#37140 | the client is gone, the server goes on generating
R68 | proxy | BerriAI/litellm#37322 | silent streams are cut by idle limits; heartbeats inside events
R69 | proxy | ggml-org/llama.cpp#14566 | an error inside a 200 stream is swallowed
R70 | proxy replay | vllm-project/vllm#42548 | benchmarks see no token of a reasoning model
R71 | CLI proxy | vLLM forum, thread 2533 | a budget that does not bind seems to work
R74 | controller calibration replay | vllm-project/vllm#27192 | raw scores are noisy: smoothing and patience
R75 | proxy | NousResearch/hermes-agent#98576 | strict clients, and streams of reasoning only
R76 | replay docs | ggml-org/llama.cpp#22323 | a hint that shall save tokens makes thinking longer
R77 | controller proxy | NVIDIA NIM and FastDeploy manuals | two budgets at once: which one fired
R79 | controller proxy | hao-ai-lab/Dynasor (its code) | words found inside words; a chunk counted as a token
B3 | proxy parser | peers, measured | tokens claimed as saved that the server generated; bodies and keys changed
"""

REPORTS: tuple[Report, ...] = tuple(_report(line) for line in _LINES.strip().splitlines())
