"""Random texts through the parser of every profile: nothing lost, nothing doubled, however they are cut.

    python -m benchmarks.parser_fuzz --n 1000000 --seed 1

An input is a text of tags, halves of tags, tool calls, white space, prose and any characters, a start
(nothing opened, opened, closed), and one way to cut it. Each is checked against `Reference`, an own reading of
the whole text that shares no code with the parser; against itself in one piece; and for pieces that are
empty or out of place. Prints one JSON object with the count of inputs; the first failure is printed and ends
it with 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.parser_reference import Reference
from desist.controller import PROFILES, ModelProfile
from desist.proxy.reasoning import ThinkSplitter

__all__ = ["Case", "cases", "check", "main"]

_PROSE = (
    "a", "so", " 2 < 3", "\n", "\n\n", " ", "\t", "`", '"', "é", "\U0001f916", "等", "\u3000", "wait", "</", "<", ">",
    "{", "[", "<f", "<1", "tags", "_x", "\ufffd", "\x00", "  \n   \n   ", "null", "x" * 40,
)  # fmt: skip
_CALLS = (
    '{"name": "f", "arguments": {"q": "</think> <think>"}}', "\n<function=f>\n<parameter=a>1</parameter>",
    "f\n<arg_key>a</arg_key>", "[{}]",
)  # fmt: skip
_HARMONY = (
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "assistant", "analysis", "final",
    "commentary", " to=functions.f", " <|constrain|>json", "to=", "y" * 300,
    "<|start|>assistant<|channel|>final<|message|>", "<|start|>assistant<|channel|>analysis<|message|>",
)  # fmt: skip
STARTS = ("before", "opened", "closed")


@dataclass(frozen=True, slots=True)
class Case:
    """One input."""

    profile: ModelProfile
    start: str
    chunks: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    def splitter(self) -> ThinkSplitter:
        """A fresh parser."""
        return ThinkSplitter.of(self.profile, opened=self.start == "opened", closed=self.start == "closed")


def cases(seed: int) -> Iterator[Case]:
    """Endless inputs; the same for the same seed."""
    rng = random.Random(seed)
    profiles = [(profile, _parts(profile)) for profile in PROFILES.values()]
    while True:
        profile, parts = rng.choice(profiles)
        text = "".join(rng.choice(parts) for _ in range(rng.randint(0, 14)))
        if rng.random() < 0.1:
            text += "".join(chr(rng.randrange(1, 0xD7FF)) for _ in range(rng.randint(1, 5)))
        yield Case(profile, rng.choice(STARTS), _cut(rng, text))


def _parts(profile: ModelProfile) -> tuple[str, ...]:
    tags = [profile.think_open, profile.think_close]
    tags += [tag for tag in (profile.tool_call_open, profile.tool_call_close) if tag]
    halves = [
        piece for tag in tags for at in (1, len(tag) // 2, len(tag) - 1) for piece in (tag[:at], tag[at:])
    ]
    more = _HARMONY * 3 if profile.style == "harmony" else ()
    return (*tags * 4, *halves, *_PROSE, *_CALLS, *more)


def _cut(rng: random.Random, text: str) -> tuple[str, ...]:
    way = rng.random()
    if way < 0.2:
        return tuple(text)
    places = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 8)))
    return tuple(text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True))


def check(case: Case, reference: Callable[[str, str], tuple[str, str]]) -> str | None:
    """What is wrong with how a case is read; None: nothing."""
    splitter, pieces, n_held = case.splitter(), [], 0
    for chunk in case.chunks:
        new = splitter.feed(chunk)
        n_held += len(chunk) - sum(len(piece.text) for piece in new)
        if len(splitter.held) > n_held:
            return f"{len(splitter.held)} characters are held, of which {n_held} came"
        pieces.append(new)
    pieces.append(splitter.finish())
    flat = [piece for some in pieces for piece in some]
    if any(not piece.text for piece in flat):
        return "an empty piece"
    if any(a.channel == b.channel for some in pieces for a, b in itertools.pairwise(some)):
        return "two pieces of one channel for one chunk"
    got = tuple("".join(p.text for p in flat if p.channel == c) for c in ("reasoning", "content"))
    if got != (expected := reference(case.text, case.start)):
        return f"read as {got}, not as {expected}"
    whole = case.splitter()
    once = [*whole.feed(case.text), *whole.finish()]
    if got != tuple("".join(p.text for p in once if p.channel == c) for c in ("reasoning", "content")):
        return f"in one piece it is read as {once}"
    return None


def main() -> int:
    """Run; 0 if all inputs are read right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=100_000, help="inputs")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    references = {name: Reference(profile).split for name, profile in PROFILES.items()}
    began, characters, done, slowest = time.perf_counter(), 0, 0, 0.0
    for case in cases(given.seed):
        if done >= given.n:
            break
        at = time.perf_counter()
        wrong = check(case, references[case.profile.name])
        slowest = max(slowest, time.perf_counter() - at)
        if wrong is not None:
            found = {"wrong": wrong, "profile": case.profile.name, "start": case.start, "chunks": case.chunks}
            sys.stdout.write(json.dumps(found | {"inputs": done}, ensure_ascii=False) + "\n")
            return 1
        done += 1
        characters += len(case.text)
        if done % 50_000 == 0:
            sys.stderr.write(f"{done} inputs\n")
    seconds = time.perf_counter() - began
    result = {
        "inputs": done, "characters": characters, "profiles": len(PROFILES), "seed": given.seed, "wrong": 0,
        "slowest_s": round(slowest, 3), "seconds": round(seconds, 1),
    }  # fmt: skip
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
