"""The strings that open and close the reasoner's thinking.

The single source of these strings: training masks them, the engine splices them.
"""

from __future__ import annotations

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (PAD, TURN_START, TURN_END, THINK_OPEN, THINK_CLOSE)

#: How the model itself ends its thinking.
NATURAL_CLOSE = f"\n{THINK_CLOSE}\n\n"
#: Forced exit, `answer: write`: the model goes on with its own answer sentence.
HANDOFF_WRITE = f" I have enough to answer.\n{THINK_CLOSE}\n\n"
#: What opens the short answer.
ANSWER_OPENING = "The answer is \\boxed{"
ANSWER_CLOSING = "}."
#: Forced exit, `answer: extract`: the model writes only the value and `}.`.
HANDOFF_EXTRACT = HANDOFF_WRITE + ANSWER_OPENING

#: Ways in which the written answer is phrased; each holds the value in a box.
ANSWER_PHRASINGS = (
    "The answer is \\boxed{{{value}}}.",
    "The answer is \\boxed{{{value}}}.",
    "So the answer is \\boxed{{{value}}}.",
    "It is \\boxed{{{value}}}.",
)

#: Cue words of the grammar, lower case; they occur capitalised, after a space and in mid-sentence.
CUES = ("wait", "hmm", "hmmm", "alternatively", "let me double-check")
PARAGRAPH = "\n\n"
