"""The words of the word problems: names, things, and how each operation is told.

Knows English only. `{n}` is the amount, `{w}` who, `{o}` the things, `{f}` a friend.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = [
    "Tom",
    "Ana",
    "Ben",
    "Mia",
    "Sam",
    "Lena",
    "Omar",
    "Ivy",
    "Max",
    "Nora",
    "Leo",
    "Zoe",
    "Paul",
    "Rosa",
    "Finn",
    "Emma",
    "Kai",
    "Ruth",
    "Hugo",
    "Lily",
    "Noah",
    "Sara",
    "Adam",
    "Maya",
    "Jack",
    "Nina",
    "Alex",
    "Ella",
    "Theo",
    "Jane",
]

TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


@dataclass(frozen=True, slots=True)
class Theme:
    """One kind of story."""

    name: str
    things: tuple[str, ...]
    opening: tuple[str, ...]
    groups: tuple[str, ...]
    add: tuple[str, ...]
    sub: tuple[str, ...]
    mul: tuple[str, ...]
    div: tuple[str, ...]
    question: tuple[str, ...]


_MORE = (
    "Now there are {t} as many {o}.",
    "The number of {o} then grows to {t} as many.",
)
_SHARE = (
    "Then {w} puts all {o} into {n} equal boxes and keeps one box.",
    "The {o} are shared equally among {n} people, and {w} is one of them.",
)
_LEFT = (
    "How many {o} does {w} have now?",
    "How many {o} are there at the end?",
    "How many {o} does {w} have in the end?",
)
_HAS = ("{w} has {n} {o}.", "{w} starts with {n} {o}.", "At first {w} has {n} {o}.")


def _theme(
    name: str,
    things: str,
    groups: tuple[str, ...],
    add: tuple[str, ...],
    sub: tuple[str, ...],
    opening: tuple[str, ...] = _HAS,
    question: tuple[str, ...] = _LEFT,
    mul: tuple[str, ...] = _MORE,
    div: tuple[str, ...] = _SHARE,
) -> Theme:
    return Theme(name, tuple(things.split("|")), opening, groups, add, sub, mul, div, question)


THEMES = (
    _theme(
        "stickers",
        "stickers|stamps|cards",
        ("{w} has {m} sheets with {n} {o} each.", "{w} buys {m} packs of {n} {o}."),
        ("{f} gives {w} {n} more.", "{w} gets {n} more {o}.", "Then {w} finds {n} {o}."),
        ("{w} gives {n} {o} to {f}.", "{w} loses {n} of them.", "{w} swaps away {n} {o}."),
    ),
    _theme(
        "shopping",
        "dollars|coins|euros",
        ("{w} has {m} purses with {n} {o} each.", "{w} works {m} days for {n} {o} a day."),
        ("{w} earns {n} {o} more.", "{f} pays {w} {n} {o}.", "{w} finds {n} {o} in a coat."),
        ("{w} spends {n} {o}.", "{w} buys a book for {n} {o}.", "A ticket costs {w} {n} {o}."),
    ),
    _theme(
        "baking",
        "cookies|muffins|rolls",
        ("{w} bakes {m} trays of {n} {o}.", "{w} fills {m} plates with {n} {o} each."),
        ("{w} bakes {n} more.", "{f} brings {n} {o}.", "Then {n} more {o} come out of the oven."),
        ("The guests eat {n} {o}.", "{w} sells {n} of them.", "{w} burns {n} {o} and throws them away."),
        ("{w} bakes {n} {o}.", "There are {n} {o} in the kitchen of {w}."),
        ("How many {o} are left?", "How many {o} are there now?", "How many {o} does {w} have now?"),
    ),
    _theme(
        "bus",
        "people|passengers|children",
        ("{m} groups of {n} {o} get on the bus.", "{m} buses bring {n} {o} each."),
        ("At the next stop {n} more get on.", "{n} {o} get on.", "Then {n} {o} join them."),
        ("{n} {o} get off.", "At the station {n} of them leave.", "Then {n} {o} step out."),
        ("A bus has {n} {o} on it.", "{n} {o} sit on a bus."),
        ("How many {o} are there now?", "How many {o} are there at the end?"),
        div=("They split into {n} equal groups, and one group stays.",),
    ),
    _theme(
        "marbles",
        "marbles|beads|shells",
        ("{w} has {m} bags of {n} {o}.", "{w} fills {m} jars with {n} {o} each."),
        ("{w} wins {n} {o}.", "{w} picks up {n} more.", "{f} hands {w} {n} {o}."),
        ("{w} loses {n} {o} in a game.", "{n} {o} roll away.", "{w} gives {f} {n} of them."),
    ),
    _theme(
        "books",
        "books|comics|magazines",
        ("{m} shelves hold {n} {o} each.", "{w} opens {m} boxes of {n} {o}."),
        ("The library of {w} gets {n} new {o}.", "{w} buys {n} {o}.", "{f} brings back {n} {o}."),
        ("{w} lends {n} {o} to {f}.", "{w} sells {n} {o}.", "{n} old {o} are thrown away."),
        ("{w} owns {n} {o}.", "A shelf holds {n} {o}."),
    ),
    _theme(
        "garden",
        "flowers|tulips|roses",
        ("{w} plants {m} rows of {n} {o}.", "{m} beds have {n} {o} each."),
        ("{w} plants {n} more.", "In spring {n} more {o} come up.", "{f} adds {n} {o}."),
        ("{w} cuts {n} {o} for {f}.", "{n} {o} dry out.", "Rabbits eat {n} of them."),
        ("{n} {o} grow in the garden of {w}.", "{w} plants {n} {o}."),
        ("How many {o} are there now?", "How many {o} are left in the garden?"),
    ),
    _theme(
        "farm",
        "eggs|apples|pears",
        ("{w} picks {m} baskets of {n} {o}.", "{w} has {m} crates with {n} {o} each."),
        ("{w} collects {n} more.", "A neighbour gives {w} {n} {o}.", "The next day {w} gets {n} {o}."),
        ("{w} sells {n} {o}.", "{n} {o} go bad.", "{w} uses {n} of them for a cake."),
    ),
    _theme(
        "points",
        "points",
        ("{w} plays {m} rounds and scores {n} {o} in each.", "{w} wins {m} games for {n} {o} each."),
        ("{w} scores {n} more.", "A bonus brings {n} {o}.", "{w} then wins {n} {o}."),
        ("{w} loses {n} {o}.", "A penalty costs {n} {o}.", "A mistake takes away {n} {o}."),
        question=("How many {o} does {w} have now?", "What is the score of {w}?"),
    ),
    _theme(
        "pages",
        "pages",
        ("{w} reads {n} {o} a day for {m} days.", "{w} writes {n} {o} on each of {m} days."),
        ("On Sunday {w} does {n} {o} more.", "{w} adds {n} {o}.", "Then come {n} more {o}."),
        ("{w} takes {n} {o} out again.", "{n} {o} are lost.", "{w} tears out {n} {o}."),
        ("{w} has {n} {o} of notes.", "A notebook has {n} {o}."),
        ("How many {o} are there now?", "How many {o} does that make?"),
    ),
    _theme(
        "parking",
        "cars|bikes|trucks",
        ("{m} rows of {n} {o} stand in a lot.", "{m} levels hold {n} {o} each."),
        ("{n} {o} drive in.", "Then {n} more arrive.", "In the evening {n} {o} come."),
        ("{n} {o} drive away.", "At noon {n} of them leave.", "{n} {o} are towed."),
        ("There are {n} {o} in a lot.", "A lot holds {n} {o}."),
        ("How many {o} are there now?", "How many {o} are left?"),
        div=("The {o} are parked in {n} equal rows. Look at one row.",),
    ),
    _theme(
        "aquarium",
        "fish|snails|crabs",
        ("{w} has {m} tanks with {n} {o} each.", "{w} buys {m} bags of {n} {o}."),
        ("{w} buys {n} {o}.", "{n} baby {o} are born.", "{f} brings {w} {n} more."),
        ("{w} sells {n} {o}.", "{w} gives {n} {o} to {f}.", "{n} of them go to a new tank."),
    ),
)
