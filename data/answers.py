r"""The answer in a text: `extract_answer`.

Knows how models announce an answer; does not know whether it is right, nor when two answers are the same
(that is `desist.data.judging`). Braces are matched, never cut at the first `}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from desist.data.braces import boxed_arguments, without_open_box
from desist.data.thinking import without_thinking

__all__ = ["clean_answer", "extract_answer"]

_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_PHRASE = re.compile(
    r"""
    \b(?:
        (?:final|correct|right|best)\s+(?:answer|option|choice|result)
      | answer | (?:option|choice)(?=\s+is\b)
    )
    (?:\s+(?:to|for|of)\s+[^.:\n]{1,80}?)?
    [\s*_"]*                                     # closing bold, as in **Answer:** or **Final answer**
    (?: :(?![:/]) | =(?!=) | (?<![A-Za-z])(?:is|are|was|will\s+be|would\s+be|should\s+be)\b )
    (?:[ \t]*:)? [\s*_]*
    (?:therefore\s+|thus\s+|simply\s+|just\s+|the\s+(?:number|value)\s+|option\s+|choice\s+|equal\s+to\s+)?
    """,
    re.IGNORECASE | re.VERBOSE,
)
_MATH = re.compile(r"\$\$(.+?)\$\$|\$(?!\d[^$\n]*$)([^$\n]+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BOLD = re.compile(r"\*\*(?!\s)([^*\n]{1,80}?)\*\*")
_OPTION = re.compile(r"^[*_\s]*(?:\(([A-Z])\)|\[([A-Z])\]|([A-Z])(?=\s*(?:[).:]|$)))(?!\w)")
_OPTION_LINE = re.compile(
    r"^[*_\s]*(?:(?:option|choice)\s+)?(?:\(([A-Za-z])\)|([A-Z]))[*_]*(?:[).:](?=\s|$|\*).*)?[*_\s.]*$"
)
_SENTENCE_END = re.compile(r"(?:(?<!\b[A-Z])[.!?])(?=\s|$)|\n")
_TAIL = re.compile(
    r"[,;]?\s+(?:because|since|so\s+that|which|where|as\s+(?:we|it|the)|given\s+that|I\s+hope)\b.*", re.DOTALL
)
_NAMED_OPTION = re.compile(r"\b(?i:option|choice|answer)\s+[*_]*\(?([A-Z])\)?(?!\w)")
_LONE_OPTION = re.compile(r"^(?:.*(?:=>|⇒|→)\s*)?[*_\s]*(?:\(([A-Z])\)|([A-Z]))[.*_\s]*$")
_BETWEEN_BOXES = re.compile(r"[\s,;$.\\()\[\]]*(?:and|or)?[\s,;$\\()\[\]]*")
_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?(?:[eE][-+]?\d+)?(?:\s?\\?%)?"
    r"|(?<![\w.])[-+\u2212]?\.\d+"
)
_VALUE = re.compile(r"^[-+\u2212]?[\\$(\[{|]?\s*[\d.\\]|^\(?[A-Z]\)?\.?$|^\\|^\$")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("__", "__"), ("`", "`"))
_LONGEST_ANSWER = 400
_SENTENCE_WORDS = 4
_STATED = re.compile(r".*\s(?:is|are|equals|was|were|=)\s+(?:[a-z]+\s+)?((?:[-+(\[$\\{√\d]).{0,80})$")


def clean_answer(text: str) -> str:
    """An answer without white space, math delimiters, bold marks, quotes or a full stop around it."""
    value, before = text.strip(), ""
    while value != before:
        before = value
        for left, right in _WRAPPERS:
            inner = value[len(left) : -len(right)]
            if len(value) > len(left) + len(right) and value.startswith(left) and value.endswith(right):
                value = inner.strip() if left not in inner else value
        value = value.removesuffix("**") if value.count("**") == 1 else value
        value = value.removeprefix("$") if value.count("$") == 1 and re.match(r"\$\s?[\d.]", value) else value
        stripped = re.sub(r"(?<![.\\])[.;,:!?]$", "", value).strip()
        value = stripped.strip('"“”') if stripped else value
    return value


def _option(text: str) -> str | None:
    match = _OPTION.match(text)
    return next((group for group in match.groups() if group), None) if match else None


def _out_of_sentence(value: str) -> str:
    """The value in "There are 23 parrots." or "The radius is 3 cm"; anything else as it is."""
    if len(value.split()) < _SENTENCE_WORDS or "\\" in value.split()[0] or not value[0].isalpha():
        return value
    if (stated := _STATED.search(value)) is not None:
        value = clean_answer(stated.group(1))
        plain = _NUMBER.match(value)
        return plain.group() if plain and len(value[plain.end() :].split()) >= _SENTENCE_WORDS - 1 else value
    numbers = _NUMBER.findall(value)
    return numbers[0].strip() if len(numbers) == 1 else value


def _announced(rest: str) -> str | None:
    """The answer at the start of `rest`, the text after "the answer is"."""
    rest = rest.lstrip(" \t\n*_")[:_LONGEST_ANSWER]
    if (option := _option(rest)) is not None:
        return option
    if (math := _MATH.match(rest)) is not None and (tail := rest[math.end() :]) is not None:
        inside = next(group for group in math.groups() if group is not None)
        unit = re.match(r"\s?(\\?%|[A-Za-z]{1,12}(?:\^?\d)?)(?=[.\s,]*(?:\n|$))", tail)
        return clean_answer(inside + (f" {unit.group(1)}" if unit else ""))
    sentence = _SENTENCE_END.split(rest, maxsplit=1)[0]
    value = _out_of_sentence(clean_answer(_TAIL.sub("", sentence)))
    return value if value and not value.lower().startswith(("not ", "unclear", "unknown")) else None


def _from_box(text: str) -> str | None:
    values: list[str] = []
    before = len(text)
    for start, end, argument in boxed_arguments(text):
        if values and not _BETWEEN_BOXES.fullmatch(text, end, before):
            break
        if value := clean_answer(argument):
            values.insert(0, value)
            before = start
    return ", ".join(dict.fromkeys(values)) or None


def _from_continued_box(text: str) -> str | None:
    """The text before a `}` that nothing in the first line opened: what a hand-off's open box was given."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]|\n", text):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth < 0:
            return clean_answer(text[: match.start()]) or None
        if match.group() == "\n":
            return None
    return None


def _from_tag(text: str) -> str | None:
    if "</answer>" not in text.lower():
        return None
    for inside in reversed(_ANSWER_TAG.findall(text)):
        if inside.strip():
            return _from_phrase(inside) or _option(inside.strip()) or clean_answer(inside)
    return None


def _from_phrase(text: str) -> str | None:
    for match in reversed(list(_PHRASE.finditer(text))):
        if (value := _announced(text[match.end() :])) is not None:
            return value
    return None


def _from_lone_option(text: str) -> str | None:
    """A last line that is an option letter and nothing else."""
    lines = text.split("\n")
    match = next((_LONE_OPTION.match(line.strip()) for line in reversed(lines) if line.strip()), None)
    return (match.group(1) or match.group(2)) if match else None


def _from_named_option(text: str) -> str | None:
    """ "Option E" in the last paragraph."""
    named = _NAMED_OPTION.findall(text.rstrip().rpartition("\n\n")[2])
    return named[-1] if named else None


def _from_bold(text: str) -> str | None:
    for inside in reversed(_BOLD.findall(text)):
        if _VALUE.match(inside.strip()) and not inside.strip().endswith(":"):
            return _option(inside) or clean_answer(inside)
    return None


def _from_last_line(text: str) -> str | None:
    """A last line that is an option ("C", "(C)", "C. ten"), or a text that is nothing but a value."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    if (match := _OPTION_LINE.match(lines[-1])) is not None:
        return next(group for group in match.groups() if group).upper()
    value = clean_answer(lines[-1])
    if len(lines) == 1 and value and (_VALUE.match(value) or len(value.split()) == 1) and len(value) <= 200:
        return value
    return None


def _from_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return clean_answer(numbers[-1]) if numbers else None


_UNBOXED_RULES: tuple[Callable[[str], str | None], ...] = (
    _from_continued_box,
    _from_tag,
    _from_lone_option,
    _from_phrase,
    _from_bold,
    _from_named_option,
    _from_last_line,
    _from_number,
)


def extract_answer(text: str) -> str | None:
    r"""The answer that a text gives, or None where it gives none.

    Never looks inside a thinking block; a block that was never closed leaves no answer. The first rule
    that finds something wins: (1) the last balanced `\boxed` or `\fbox`, with those listed right before
    it ("\boxed{0}, \boxed{1}" is "0, 1"), or else a first line that closes a box which the hand-off
    opened ("34}."); (2) the last `<answer>` tag; (3) a last line that is an option letter; (4) the last
    "final answer is", "the answer is", "Answer:", "correct option is"; (5) the last bold value;
    (6) "option C" in the last paragraph; (7) a last line that begins with an option letter, or a text
    that is one value and nothing else; (8) as a last resort, the last number. Values come as written,
    without delimiters and full stop. A box that is never closed ends the text.

    >>> extract_answer(r"<think>4?</think>So it is \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> extract_answer("The answer is 3.5.")
    '3.5'
    """
    visible = without_thinking(text)
    if (boxed := _from_box(visible)) is not None:
        return boxed
    unboxed = without_open_box(visible)
    return next((value for rule in _UNBOXED_RULES if (value := rule(unboxed))), None)
