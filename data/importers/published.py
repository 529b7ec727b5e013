"""The record format of published trace sets: one flat record with `reasoning`, `answer_text`, `extra`.

Knows its fields {id, source_repo, source_path, commit, licence, model, dataset, problem, gold, prompt,
reasoning, answer_text, correct, n_chars, extra} and two kinds of intermediate labels in `extra`:

* `decile_probe` (the option a forced answer would give at tenths of the run) becomes boundaries of kind
  every_n with `forced_answer`, `forced_confidence` and the score `option_probability`, the probability
  of the option that would be given; it looks at no gold answer;
* `chunks` (pieces of the text with the accuracy of runs resampled from there) become boundaries of kind
  paragraph. Their accuracy was measured against the gold answer, so it is a label and no score: it goes
  to `provenance.chunk_accuracy`, one value per boundary, the accuracy of runs that KEEP the chunk.

All other records get boundaries from their text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from desist.data.answers import extract_answer
from desist.data.importers.places import boundaries_at, estimate_tokens, text_boundaries
from desist.data.importers.report import ImportReport, Unusable
from desist.data.judging import answers_equal
from desist.data.schema import BoundaryKind, BoundaryRecord, Sampling, Trace
from desist.data.splits import problem_id

__all__ = ["is_published", "published_traces"]

_SAMPLE_NAME = re.compile(r"t(\d+(?:\.\d+)?)_(\d+)tok")
_SOURCE_FIELDS = ("source_repo", "source_path", "commit", "licence")
_CLOSE_TOKENS = 1


def is_published(value: object) -> bool:
    """Whether a record looks like this format."""
    return isinstance(value, Mapping) and {"id", "reasoning", "answer_text"} <= value.keys()


def _text(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Unusable(f"field '{field}' holds {type(value).__name__} instead of text")
    return value


def _token_count(extra: Mapping[str, Any]) -> int | None:
    # `num_tokens` is left alone: where it occurs it counts padding.
    for field in ("trace_tokens", "trace_token_count"):
        value = extra.get(field)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _truncated(extra: Mapping[str, Any], answer: str) -> bool:
    if isinstance(extra.get("truncated"), bool):
        return bool(extra["truncated"])
    if isinstance(extra.get("think_closed"), bool):
        return not extra["think_closed"]
    return not answer.strip()


def _sampling(extra: Mapping[str, Any]) -> tuple[Sampling, list[str]]:
    """The sampling as far as it is stored, and the names of the settings that are stored."""
    known: dict[str, Any] = {}
    if match := _SAMPLE_NAME.fullmatch(str(extra.get("sample"))):
        known = {"temperature": float(match.group(1)), "max_tokens": int(match.group(2))}
    if isinstance(extra.get("temperature"), (int, float)):
        known["temperature"] = float(extra["temperature"])
    if isinstance(extra.get("seed"), int):
        known["seed"] = extra["seed"]
    return Sampling(**known), sorted(known)


def _deciles(deciles: list[Any], reasoning: str, answer: str, n_tokens: int) -> tuple[BoundaryRecord, ...]:
    full = extract_answer(answer)
    found = []
    for index, decile in enumerate(deciles):
        position, option = decile["prefix_tokens"], decile["pred"]
        char = round(len(reasoning) * position / n_tokens) if n_tokens else 0
        probability = decile["p"].get(option)
        found.append(
            BoundaryRecord(
                index=index,
                position=position,
                char=min(char, len(reasoning)),
                kind="every_n",
                scores={} if probability is None else {"option_probability": float(probability)},
                forced_answer=option,
                forced_confidence=probability,
                consistent=answers_equal(option, full, "option"),
                correct=decile["correct"],
            )
        )
    return tuple(found)


def _chunks(
    chunks: list[Any], reasoning: str, n_tokens: int
) -> tuple[tuple[BoundaryRecord, ...], list[float | None]]:
    """Boundaries at the ends of the chunks that the text holds, and the accuracy behind each of them."""
    places: list[tuple[int, BoundaryKind, str]] = []
    accuracy: list[float | None] = []
    cursor = 0
    for number, chunk in enumerate(chunks):
        at = reasoning.find(chunk["chunk"].strip(), cursor)
        if at < 0:
            continue
        cursor = at + len(chunk["chunk"].strip())
        if cursor < len(reasoning.rstrip()):
            places.append((cursor, "paragraph", ""))
            # A chunk's accuracy is that of runs resampled IN ITS PLACE, so the next one's keeps it.
            accuracy.append(chunks[number + 1].get("accuracy") if number + 1 < len(chunks) else None)
    return boundaries_at(places, len(reasoning), n_tokens), accuracy


def published_traces(value: object, number: int, report: ImportReport) -> list[Trace]:
    """The one trace of a record. Raises `Unusable` with the reason where there is none."""
    if not isinstance(value, Mapping):
        raise Unusable(f"the record is {type(value).__name__} and no object")
    problem, reasoning, answer = (_text(value, field) for field in ("problem", "reasoning", "answer_text"))
    if not problem.strip():
        raise Unusable("no problem text")
    if not reasoning.strip() and not answer.strip():
        report.notes["neither reasoning nor answer"] += 1
    raw = value.get("extra")
    extra: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    counted = _token_count(extra) if reasoning.strip() else None
    n_tokens = counted if counted is not None else estimate_tokens(reasoning)
    truncated = _truncated(extra, answer)
    sampling, known = _sampling(extra)
    provenance: dict[str, Any] = {
        "format": "published",
        **{field: value[field] for field in _SOURCE_FIELDS if value.get(field) is not None},
        "judge": "source",
        "token_count": "source" if counted is not None else "estimated",
        "positions": "estimated",
        "sampling_known": known,
        "extra": {name: item for name, item in extra.items() if name != "chunks"},
    }
    try:
        if isinstance(extra.get("decile_probe"), list):
            boundaries = _deciles(extra["decile_probe"], reasoning, answer, n_tokens)
            provenance["positions"], provenance["consistent_judge"] = "source", "option"
        elif isinstance(extra.get("chunks"), list):
            boundaries, provenance["chunk_accuracy"] = _chunks(extra["chunks"], reasoning, n_tokens)
            if missing := len(extra["chunks"]) - len(boundaries):
                report.notes["chunks without a place in the text, or at its end"] += missing
        else:
            boundaries = text_boundaries(reasoning, n_tokens)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Unusable(
            f"malformed intermediate labels in 'extra' ({type(error).__name__}: {error})"
        ) from error
    group = extra.get("domain") or extra.get("type")
    return [
        Trace(
            trace_id=str(value.get("id") or f"line-{number}"),
            problem_id=problem_id(problem),
            model=_text(value, "model"),
            problem=problem,
            reasoning=reasoning,
            answer=answer,
            n_reasoning_tokens=n_tokens,
            n_answer_tokens=estimate_tokens(answer) + (0 if truncated and not answer else _CLOSE_TOKENS),
            truncated=truncated,
            group=group if isinstance(group, str) else None,
            dataset=value.get("dataset"),
            prompt=value.get("prompt"),
            gold=value.get("gold"),
            full_correct=value.get("correct"),
            sampling=sampling,
            boundaries=boundaries,
            provenance=provenance,
        )
    ]
