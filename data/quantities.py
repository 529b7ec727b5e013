r"""Numbers and units in answers, read exactly.

Knows integers, decimals, fractions, mixed numbers, powers of ten, percent, number bases and units after a
number. Does not know algebra: whatever holds a letter or a root is no number here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from desist.data.braces import closing_brace

__all__ = ["Quantity", "exact_value", "read_quantity", "same_value"]

_MOST_DIGITS = 400
_LEAST_ROUNDED_DECIMALS = 3

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_PLAIN = re.compile(rf"({_INTEGER})?(?:\.(\d*))?(?:[eE]([-+]?\d{{1,3}}))?")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}")
_POWER_OF_TEN = re.compile(
    r"(?:(.+?)\s*(?:\\times|\\cdot|\*|x)\s*)?10\s*\^\s*(?:\{\s*([-+]?\d{1,3})\s*\}|(-?\d{1,3}))"
)
_MIXED = re.compile(r"(\d+)\s*(\\frac.+|(?<=\s)\d+\s*/\s*\d+)")
_BASE = re.compile(r"([0-9A-Za-z]+)\s*_\s*\{?\s*([0-9]+|two|three|four|five|six|seven|eight|nine|ten)\s*\}?")
_UNIT = re.compile(
    r"(?P<value>.*?(?:[\d})\].]|\\pi(?=\s)))(?P<gap>\s*)(?P<unit>%|\\degree|\$|[A-Za-z\u00b5\u03bc][A-Za-z.\u00b5\u03bc\s/^{}\d*-]*?)\s*",
    re.DOTALL,
)
_CURRENCY = re.compile(r"(-?)\s*(?:\$|US\$|\\pounds|£|€|\\euro)\s*(?=[\d.\\(])(.*)", re.DOTALL)
_BASE_WORDS = {
    word: str(n)
    for n, word in enumerate(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 2)
}
# Only short units need a list: a word of three letters or more after a number is a unit anyway.
_SHORT_UNITS = frozenset(
    re.findall(
        r"\w+",
        "cm mm km m dm nm um ft in yd mi kg mg g lb oz s ms h hr min ml l kl j kj w kw v mv a ma"
        " n kn pa hz k c f mph kph ha cc pm am",
    )
)
_ONE_LETTER = frozenset(unit for unit in _SHORT_UNITS if len(unit) == 1)
_SYNONYMS = {
    "degree": "deg", r"\degree": "deg", "percent": "%", "percentage point": "%", "pct": "%", "dollar": "$",
    "usd": "$", "buck": "$", "centimeter": "cm", "centimetre": "cm", "millimeter": "mm", "millimetre": "mm",
    "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km", "inche": "in", "inch": "in",
    "foot": "ft", "feet": "ft", "yard": "yd", "mile": "mi", "gram": "g", "kilogram": "kg", "milligram": "mg",
    "pound": "lb", "ounce": "oz", "second": "s", "sec": "s", "minute": "min", "hour": "h", "hr": "h",
    "liter": "l", "litre": "l", "milliliter": "ml", "millilitre": "ml", "joule": "j", "newton": "n",
    "watt": "w", "volt": "v", "mile per hour": "mph", "mi/h": "mph", "square unit": "unit^2",
    "cubic unit": "unit^3", "sq unit": "unit^2",
}  # fmt: skip
_WORD_PREFIX = re.compile(r"(square|sq|cubic|cu)\.?\s+(.+)")
_NOT_UNITS = frozenset({"and", "or", "to"})


@dataclass(frozen=True, slots=True)
class Quantity:
    """A leaf of an answer. `value` is exact or None; `decimals` counts the places of a decimal literal."""

    text: str
    unit: str = ""
    value: Fraction | None = None
    decimals: int | None = None


def _argument(text: str, start: int) -> tuple[str, int] | None:
    while start < len(text) and text[start].isspace():
        start += 1
    if not text.startswith("{", start) or (end := closing_brace(text, start)) is None:
        return None
    return text[start + 1 : end], end + 1


def _fraction(text: str) -> Fraction | None:
    r"""The value of `\frac{a}{b}` with exact a and b."""
    if not text.startswith(r"\frac"):
        return None
    if (top := _argument(text, len(r"\frac"))) is None or (bottom := _argument(text, top[1])) is None:
        return None
    if text[bottom[1] :].strip():
        return None
    return _quotient(exact_value(top[0]), exact_value(bottom[0]))


def _quotient(top: Fraction | None, bottom: Fraction | None) -> Fraction | None:
    return top / bottom if top is not None and bottom else None


@lru_cache(maxsize=65_536)
def exact_value(text: str) -> Fraction | None:
    r"""The exact value of a number in canonical spelling, or None where it is no plain number.

    >>> exact_value(r"-3\frac{1}{2}"), exact_value("1,234.5"), exact_value(r"1.5 \times 10^{3}")
    (Fraction(-7, 2), Fraction(2469, 2), Fraction(1500, 1))
    """
    text = text.strip()
    if not text or len(text) > _MOST_DIGITS:
        return None
    if text[0] in "+-":
        inner = None if text[1:2] in ("+", "-") else exact_value(text[1:])
        return None if inner is None else (-inner if text[0] == "-" else inner)
    if (match := _PLAIN.fullmatch(text)) and (match.group(1) or match.group(2)):
        mantissa = Fraction(
            f"{(match.group(1) or '0').replace(',', '').replace(' ', '')}.{match.group(2) or '0'}"
        )
        return mantissa * Fraction(10) ** int(match.group(3) or 0)
    if match := _REPEATING.fullmatch(text):
        whole, plain, repeated = match.groups()
        scale = Fraction(1, 10 ** len(plain))
        cycle = Fraction(int(repeated), 10 ** len(repeated) - 1)
        return Fraction(f"{whole or '0'}.{plain or '0'}") + cycle * scale
    if match := _POWER_OF_TEN.fullmatch(text):
        factor = Fraction(1) if match.group(1) is None else exact_value(match.group(1))
        power = int(match.group(2) or match.group(3))
        return None if factor is None else factor * Fraction(10) ** power
    if (value := _fraction(text)) is not None:
        return value
    if match := _MIXED.fullmatch(text):
        part = exact_value(match.group(2))
        return None if part is None else int(match.group(1)) + part
    if text.startswith("(") and text.endswith(")") and "(" not in text[1:]:
        return exact_value(text[1:-1])
    if text.startswith("{") and closing_brace(text, 0) == len(text) - 1:
        return exact_value(text[1:-1])
    top, slash, bottom = text.rpartition("/")
    return _quotient(exact_value(top), exact_value(bottom)) if slash else None


def _decimals(text: str) -> int | None:
    match = re.fullmatch(r"[-+]?[\d,]*\.(\d+)", text.strip())
    return len(match.group(1)) if match else None


def _unit_name(raw: str, gap: str) -> str | None:
    r"""The normal form of a unit, or None where the letters are more likely algebra ("5x")."""
    name = " ".join(re.sub(r"[{}]", "", raw).split()).strip(". ")
    if name in ("%", "$"):
        return name
    folded = name.casefold() if len(name) > 1 else name
    if match := _WORD_PREFIX.fullmatch(folded):
        inner = _unit_name(match.group(2), " ")
        return None if inner is None else f"{inner}^{2 if match.group(1).startswith('sq') else 3}"
    base, caret, power = folded.partition("^")
    base = base.strip()
    singular = base[:-1] if len(base) > 2 and base.endswith("s") and not base.endswith("ss") else base
    known = _SYNONYMS.get(base) or _SYNONYMS.get(singular)
    words = re.fullmatch(r"[a-z]{3,}(?:[\s/-]+[a-z]+){0,4}", base)
    if known is None and base in _NOT_UNITS:
        return None
    if known is None and base.lower() in _SHORT_UNITS and (base.lower() not in _ONE_LETTER or gap):
        known = base.lower()
    if known is None and words:
        known = singular
    if known is None and re.fullmatch(r"[a-z]{1,3}/[a-z]{1,3}", base):
        known = base
    if known is None:
        return None
    return f"{known}^{power.strip()}" if caret else known


@lru_cache(maxsize=65_536)
def read_quantity(text: str) -> Quantity:
    """Split a leaf in canonical spelling into value and unit."""
    text = text.strip()
    if match := _CURRENCY.fullmatch(text):
        inner = read_quantity(match.group(1) + match.group(2))
        return Quantity(inner.text, inner.unit or "$", inner.value, inner.decimals)
    if (value := exact_value(text)) is not None:
        return Quantity(text, "", value, _decimals(text))
    if (match := _BASE.fullmatch(text)) and any(char.isdigit() for char in match.group(1)):
        digits, base = match.groups()
        number = Fraction(int(digits)) if digits.isdigit() and len(digits) < _MOST_DIGITS else None
        return Quantity(digits, f"base {_BASE_WORDS.get(base, base)}", number)
    if (match := _UNIT.fullmatch(text)) and text[-1] not in ")]":
        unit = _unit_name(match.group("unit"), match.group("gap"))
        front = match.group("value").strip()
        if unit is not None and re.search(r"\d|\\pi", front) and front.count("{") == front.count("}"):
            value = exact_value(front)
            return Quantity(front, unit, value, _decimals(front))
    if text.endswith(r"\degree"):
        front = text.removesuffix(r"\degree").strip()
        return Quantity(front, "deg", exact_value(front), _decimals(front))
    return Quantity(text)


def same_value(a: Quantity, b: Quantity) -> bool | None:
    """Whether two exact numbers are the same; None where one of them is no exact number.

    Exact, with one tolerance: where only one of them is written as a decimal, of at least three places,
    it may be the other one rounded to these places (0.333 is 1/3, but 0.334 and 0.33 are not).
    """
    if a.value is None or b.value is None:
        return None
    if a.value == b.value:
        return True
    if (a.decimals is None) == (b.decimals is None):
        return False
    places = a.decimals if a.decimals is not None else b.decimals
    if places is None or places < _LEAST_ROUNDED_DECIMALS:
        return False
    return abs(a.value - b.value) <= Fraction(1, 2 * 10**places)
