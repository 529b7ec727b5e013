"""The end of an answer form (a box, a quoted value) whose beginning was written for the model.

Knows texts only.
"""

from __future__ import annotations

__all__ = ["AnswerForm"]


class AnswerForm:
    """Finds the end of an answer form whose opening brace was written for the model.

    The form ends at the first closing brace without its opening one, with as much of `suffix` as follows.
    A suffix without a brace is searched as it stands.
    """

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def end(self, text: str) -> int | None:
        """Where the form ends in the text after its opening, or None while it is open."""
        suffix = self._suffix
        if not suffix.startswith("}"):
            place = text.find(suffix) if suffix else -1
            return None if place < 0 else place + len(suffix)
        depth = 0
        for place, character in enumerate(text):
            depth += (character == "{") - (character == "}")
            if depth < 0:
                rest = text[place : place + len(suffix)]
                whole = len(rest) == len(suffix) or not suffix.startswith(rest)
                return place + _common(rest, suffix) if whole else None
        return None


def _common(left: str, right: str) -> int:
    """Length of the common beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
