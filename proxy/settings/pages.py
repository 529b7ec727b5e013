"""A table in a page of the docs, between two marks that say how it is made. Knows texts only."""

from __future__ import annotations

from desist.data.errors import ControlError

__all__ = ["BEGIN", "END", "renewed", "table_in"]

BEGIN = "<!-- made by a command: do not edit below -->"
END = "<!-- end of what the command makes -->"


def renewed(page: str, table: str) -> str:
    """The page with another table. Raises `ControlError` where its marks are not both there once."""
    before, after = _split(page)
    return f"{before}{BEGIN}\n{table}{END}{after}"


def table_in(page: str) -> str:
    """The table that the page holds now."""
    before, after = _split(page)
    return page[len(before) + len(BEGIN) + 1 : len(page) - len(END) - len(after)]


def _split(page: str) -> tuple[str, str]:
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ControlError(f"the page must hold {BEGIN!r} and, after it, {END!r}, once each.")
    return page.partition(BEGIN)[0], page.partition(END)[2]
