r"""One spelling for answers that are written differently and mean the same.

Knows spelling only: delimiters, spacing commands, `\dfrac` against `\frac`, Unicode against LaTeX. Does not
compute: `1/2` and `0.5` stay different here (see `quantities` and `judging`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from desist.data.braces import closing_brace

__all__ = ["canonical", "compact"]

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_UNICODE = {
    "−": "-",  # noqa: RUF001
    "–": "-",  # noqa: RUF001
    "×": r"\times ",  # noqa: RUF001
    "⋅": r"\cdot ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "∪": r"\cup ",  # noqa: RUF001
    "∩": r"\cap ",
    "∈": r"\in ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "±": r"\pm ",
    "√": r"\sqrt ",
    "°": r"^\circ ",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "θ": r"\theta ",
    "α": r"\alpha ",  # noqa: RUF001
    "β": r"\beta ",
    "λ": r"\lambda ",
    "％": "%",  # noqa: RUF001
    "’": "'",  # noqa: RUF001
    "\u00a0": " ",
    "\u2009": " ",
    "\u202f": " ",
}
_UNICODE_TABLE = str.maketrans(_UNICODE)
_SUPER = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUB = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")

_SPACING = re.compile(
    r"\\(?:[,;:!> ]|(?:quad|qquad|displaystyle|textstyle|limits|thinspace|left|right"
    r"|[bB]igg?[lrm]?)(?![A-Za-z]))\.?|~"
)
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\[,! ]|,\\!|\\thinspace\s*|~)(?=\d{3}(?!\d))")
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|textsf|texttt|mathrm|mathbf|mathit|mathsf|mathcal|operatorname"
    r"|mbox|hbox|emph|rm|bf|bm|boldsymbol|underline)\s*(?=\{)"
)
_SYNONYMS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\leq(?:slant)?(?![A-Za-z])", r"\\le"),
        (r"\\geq(?:slant)?(?![A-Za-z])", r"\\ge"),
        (r"\\neq(?![A-Za-z])", r"\\ne"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\l?dots(?![A-Za-z])|\\cdots(?![A-Za-z])|…", r"..."),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", r" \\degree "),
        (r"\\%", "%"),
        (r"\\\$", "$"),
        (r"\\[&#_]", " "),
        (r"\*\*", "^"),
        (r"\\infin(?![A-Za-z])", r"\\infty"),
        (r"\\(?:rm|bf|it)(?![A-Za-z])", " "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"!=", r"\\ne "),
    )
)
_BARE_FRACTION = re.compile(r"\\frac\s*(?![\s{])(\d|[A-Za-z]|\\[A-Za-z]+)")
_HALF_BARE_FRACTION = re.compile(r"(\\frac\s*\{[^{}]*\})\s*(\d|[A-Za-z]|\\[A-Za-z]+)(?!\w*\})")
_BARE_ROOT = re.compile(r"\\sqrt\s*(?![\s{\[])(\d+|[A-Za-z]|\\[A-Za-z]+)")
_ROW_END = re.compile(r"\\\\(?:\[[^\]]*\])?")
_DOUBLED_BACKSLASH = re.compile(r"\\\\(?=[A-Za-z{}])")
_LOOSE_SPACE = re.compile(r"(?<![A-Za-z0-9])\s+|\s+(?![A-Za-z0-9])")
_COMMAND_THEN_DIGIT = re.compile(r"(\\[A-Za-z]+)\s+(?=\d)")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def _unwrapped(text: str) -> str:
    """Without one pair of math delimiters and without a box around the whole."""
    for left, right in _DELIMITERS:
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
            inner = text[len(left) : -len(right)]
            if not re.search(r"(?<!\\)" + re.escape(left), inner) and not inner.endswith("\\"):
                return inner.strip()
    if re.match(r"\\(?:boxed|fbox)\s*\{", text):
        start = text.index("{")
        if closing_brace(text, start) == len(text) - 1:
            return text[start + 1 : -1].strip()
    return text


def _without_text_commands(text: str) -> str:
    """Text commands give way to their argument, with spaces around it where it is a word."""
    while (match := _TEXT_COMMAND.search(text)) is not None:
        end = closing_brace(text, match.end())
        if end is None:
            return text
        inner = text[match.end() + 1 : end]
        text = f"{text[: match.start()]} {inner} {text[end + 1 :]}"
    return text


@lru_cache(maxsize=65_536)
def canonical(text: str) -> str:
    r"""The canonical spelling of an answer, with single spaces.

    >>> canonical(r"$\left( 3, \dfrac{\pi}{2} \right)$")
    '( 3, \\frac{\\pi}{2} )'
    """
    value = text.strip()
    while (inner := _unwrapped(value)) != value:
        value = inner
    value = _SUPER.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m.group()) + "}", value)
    value = _SUB.sub(lambda m: "_{" + "".join(_SUBSCRIPTS[c] for c in m.group()) + "}", value)
    value = _ROW_END.sub(r" \\cr ", value) if r"\begin" in value else _DOUBLED_BACKSLASH.sub(r"\\", value)
    value = _THOUSANDS.sub("", value.translate(_UNICODE_TABLE))
    value = _without_text_commands(_SPACING.sub(" ", value))
    for pattern, replacement in _SYNONYMS:
        value = pattern.sub(replacement, value)
    value = _BARE_FRACTION.sub(r"\\frac{\1}", value)
    value = _HALF_BARE_FRACTION.sub(r"\1{\2}", value)
    value = _BARE_ROOT.sub(r"\\sqrt{\1}", value)
    value = re.sub(r"(?<![.\s])\s*[.;,]\s*$", "", " ".join(value.split()))
    return value.strip()


@lru_cache(maxsize=65_536)
def compact(value: str) -> str:
    """A canonical spelling without the spaces that mean nothing: "x + 3" is "x+3", "2 pi r" keeps its own."""
    return _COMMAND_THEN_DIGIT.sub(r"\1", _LOOSE_SPACE.sub("", value))
