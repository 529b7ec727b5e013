"""Importers: every record becomes a valid trace or has its reason in the report."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from desist.data import (
    ImportReport,
    Trace,
    answers_equal,
    extract_answer,
    import_file,
    problem_id,
    write_traces,
)
from desist.data.errors import DataError, RecordError
from desist.data.importers.places import text_boundaries

REASONING = "I add two and two.\n\nWait, let me see: waiting is no cue. Hmm. So four.\n\n"


def save(path: Path, *records: object) -> Path:
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def published(**changes: Any) -> dict[str, Any]:
    base = {
        "id": "a/1",
        "source_repo": "r",
        "licence": "MIT",
        "model": "m",
        "dataset": "d",
        "problem": "2+2?",
        "gold": "4",
        "prompt": None,
        "reasoning": REASONING,
        "answer_text": "The answer is 4.",
        "correct": True,
        "n_chars": len(REASONING),
        "extra": {"type": "sums", "sample": "t0.6_1500tok", "think_closed": True},
    }
    return {**base, **changes}


def imported(path: Path, **options: Any) -> tuple[list[Trace], ImportReport]:
    run = import_file(path, **options)
    return list(run), run.report


def test_a_published_record(tmp_path: Path) -> None:
    (trace,), report = imported(save(tmp_path / "a.jsonl.gz", published()))
    assert (report.format, report.n_read, report.n_imported, report.dropped) == ("published", 1, 1, [])
    assert (trace.trace_id, trace.problem_id, trace.group) == ("a/1", problem_id("2+2?"), "sums")
    assert (trace.sampling.temperature, trace.sampling.max_tokens, trace.truncated) == (0.6, 1500, False)
    assert [(boundary.kind, boundary.text.strip()) for boundary in trace.boundaries] == [
        ("paragraph", ""),
        ("cue", "Wait"),
        ("cue", "Hmm"),
    ]
    assert all(trace.reasoning[: boundary.char].endswith(boundary.text) for boundary in trace.boundaries)
    assert trace.provenance["positions"] == "estimated"
    assert trace.n_reasoning_tokens == -(-len(REASONING) // 4)


def test_decile_labels_become_boundaries(tmp_path: Path) -> None:
    deciles = [
        {
            "decile": n * 10,
            "prefix_tokens": n * 10,
            "pred": "AB"[n > 4],
            "correct": n > 4,
            "p": {"AB"[n > 4]: 0.9},
        }
        for n in range(11)
    ]
    extra = {"trace_tokens": 100, "decile_probe": deciles, "truncated": False}
    (trace,), _ = imported(save(tmp_path / "a.jsonl", published(answer_text="B", gold="B", extra=extra)))
    assert [boundary.position for boundary in trace.boundaries] == list(range(0, 101, 10))
    assert {boundary.kind for boundary in trace.boundaries} == {"every_n"}
    assert [boundary.consistent for boundary in trace.boundaries] == [n > 4 for n in range(11)]
    assert trace.boundaries[3].forced_answer == "A"
    assert trace.boundaries[3].scores == {"option_probability": 0.9}
    assert trace.boundaries[-1].char == len(REASONING)


def test_chunk_accuracy_is_a_label_and_no_score(tmp_path: Path) -> None:
    chunks = [
        {"chunk": "I add two and two.", "accuracy": 0.1},
        {"chunk": "Wait, let me see", "accuracy": 0.5},
    ]
    (trace,), _ = imported(save(tmp_path / "a.jsonl", published(extra={"chunks": chunks})))
    assert [boundary.char for boundary in trace.boundaries] == [18, 36]
    assert all(boundary.scores == {} for boundary in trace.boundaries)
    assert trace.provenance["chunk_accuracy"] == [0.5, None]


def test_nothing_is_dropped_in_silence(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.jsonl",
        published(),
        published(),
        published(answer_text="5"),
        published(id="b", problem=""),
        published(id="c", reasoning=""),
        published(id="d", reasoning="", answer_text=""),
        published(id="e", reasoning=7),
        published(id="f", correct="yes"),
        published(id="g", extra={"decile_probe": [{}]}),
        [1],
    )
    path.write_bytes(path.read_bytes() + b'{"torn": ')
    traces, report = imported(path)
    assert [trace.trace_id for trace in traces] == ["a/1", "a/1#2", "c", "d"]
    assert report.n_read == 11 == report.n_imported + len(report.dropped)
    reasons = {entry.line: entry.reason for entry in report.dropped}
    assert sorted(reasons) == [2, 4, 7, 8, 9, 10, 11]
    assert reasons[2] == "the same record as an earlier one"
    assert reasons[4] == "no problem text"
    assert "instead of text" in reasons[7]
    assert "full_correct" in reasons[8]
    assert "malformed intermediate labels" in reasons[9]
    assert "not valid JSON" in reasons[11]
    assert report.notes["no reasoning text"] == 2
    assert report.reasons()["no problem text"] == 1


def test_a_judge_can_judge_anew(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.jsonl", published(correct=None), published(id="b", answer_text="It is 5.", correct=True)
    )
    traces, _ = imported(path, judge="math")
    assert [trace.full_correct for trace in traces] == [True, False]
    assert traces[0].provenance["judge"] == "math"


def response(**message: Any) -> dict[str, Any]:
    return {
        "id": "chat-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 25}},
    }


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning_content": REASONING, "content": "4"},
        {"reasoning": REASONING, "content": "4"},
        {"content": f"<think>{REASONING}</think>4"},
        {"reasoning": REASONING, "content": [{"type": "text", "text": "4"}]},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_chat_response(tmp_path: Path, message: dict[str, Any], indent: int | None) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(response(**message), indent=indent))
    (trace,), report = imported(path)
    assert (report.format, trace.trace_id, trace.reasoning, trace.answer) == (
        "chat",
        "chat-1",
        REASONING,
        "4",
    )
    assert (trace.n_reasoning_tokens, trace.n_answer_tokens, trace.truncated) == (25, 5, False)
    assert len(trace.boundaries) == 3
    assert trace.problem_id == "unknown-chat-1"
    assert report.notes["no request beside the response: problem unknown"] == 1


def test_chat_with_its_request(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "2+2?"}]
    whole = {
        "request": {"messages": messages, "temperature": 0.5, "max_tokens": 9},
        "response": response(reasoning="a", content="4"),
    }
    batch = {
        "custom_id": "c7",
        "response": {"status_code": 200, "body": response(reasoning="a", content="4")},
    }
    error = {"custom_id": "c8", "response": {"status_code": 500, "body": {"error": {"message": "no"}}}}
    traces, report = imported(save(tmp_path / "a.jsonl", whole, batch, error))
    assert (traces[0].problem, traces[0].problem_id) == ("2+2?", problem_id("2+2?"))
    assert (traces[0].sampling.temperature, traces[0].sampling.max_tokens) == (0.5, 9)
    assert traces[0].prompt == tuple(messages)
    assert traces[1].trace_id == "c7"
    assert [entry.reason for entry in report.dropped] == ["an error response"]


def test_several_choices_are_several_traces(tmp_path: Path) -> None:
    value = response(reasoning="a", content="4")
    value["choices"].append({"index": 1, "message": {"content": "5"}, "finish_reason": "length"})
    path = tmp_path / "a.json"
    path.write_text(json.dumps([value]))
    traces, report = imported(path)
    assert [(trace.trace_id, trace.answer, trace.truncated) for trace in traces] == [
        ("chat-1/0", "4", False),
        ("chat-1/1", "5", True),
    ]
    assert report.n_read == 2


def test_a_recorded_stream_is_put_together(tmp_path: Path) -> None:
    deltas = [
        {"role": "assistant"},
        {"reasoning": "two "},
        {"reasoning": "and two"},
        {"content": "4"},
        {"content": "."},
    ]
    chunks = [
        {
            "id": "s1",
            "object": "chat.completion.chunk",
            "model": "m",
            "choices": [{"index": 0, "delta": delta}],
        }
        for delta in deltas
    ]
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    chunks.append(
        {"id": "s1", "object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": 8}}
    )
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    (tmp_path / "a.sse").write_text(": hello\n\n" + events)
    save(tmp_path / "a.jsonl", *chunks)
    for name in ("a.sse", "a.jsonl"):
        (trace,), _ = imported(tmp_path / name)
        assert (trace.trace_id, trace.reasoning, trace.answer, trace.truncated) == (
            "s1",
            "two and two",
            "4.",
            True,
        )
        assert trace.n_reasoning_tokens + trace.n_answer_tokens == 8


@pytest.mark.parametrize(
    ("text", "reasoning", "answer", "truncated"),
    [
        ("<think>a</think>\nb", "a", "\nb", False),
        ("<think>a <think>b</think> c</think>d", "a <think>b</think> c", "d", False),
        ("<think>cut off", "cut off", "", True),
        ("only an answer", "", "only an answer", False),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_plain_text(
    tmp_path: Path, name: str, text: str, reasoning: str, answer: str, truncated: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    (trace,), report = imported(path)
    assert report.format == "text"
    assert (trace.reasoning, trace.answer, trace.truncated) == (reasoning, answer, truncated)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_our_own_files_can_be_imported(tmp_path: Path, suffix: str) -> None:
    traces, _ = imported(save(tmp_path / "a.jsonl", published()))
    write_traces(tmp_path / f"own{suffix}", traces)
    again, report = imported(tmp_path / f"own{suffix}")
    assert again == traces
    assert report.format == "desist"


def test_files_that_cannot_be_imported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        import_file(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="no known trace format begins with"):
        import_file(save(tmp_path / "a.jsonl", {"foo": 1}))
    with pytest.raises(DataError, match="unknown import format"):
        import_file(tmp_path / "a.jsonl", format="csv")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no judge is named"):
        import_file(tmp_path / "a.jsonl", judge="vibes")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="the file is empty"):
        import_file(tmp_path / "empty.jsonl")
    cut = save(tmp_path / "b.jsonl.gz", *(published(id=str(number)) for number in range(9)))
    cut.write_bytes(cut.read_bytes()[:-12])
    with pytest.raises(RecordError, match="ends too early"):
        list(import_file(cut))


def test_text_boundaries_lie_inside() -> None:
    places = text_boundaries("\n\nWait. a\n\n", 10)
    assert [(place.kind, place.char) for place in places] == [("cue", 6)]
    assert text_boundaries("", 0) == ()


COUNTS = {
    "gemma4_mmlupro_decile_probe": 384,
    "kimi_k2_thinking_mmlupro": 200,
    "math500_pilot_topology": 70,
    "math_r1distill_3temps": 1734,
    "math_rollouts_multisample": 690,
    "thought_anchors": 42,
}


@pytest.mark.traces
@pytest.mark.parametrize("name", COUNTS)
def test_all_real_records_come_in(real_traces: Path, name: str) -> None:
    traces, report = imported(real_traces / f"{name}.jsonl.gz")
    assert (report.format, report.n_read, report.n_imported) == ("published", COUNTS[name], COUNTS[name])
    judge = "option" if "mmlupro" in name else "math"
    disagree = [
        trace.trace_id
        for trace in traces
        if trace.gold is not None and trace.full_correct and not trace.truncated
        if not answers_equal(extract_answer(trace.answer), trace.gold, judge)
    ]
    assert disagree == []


@pytest.mark.traces
def test_real_golds_equal_themselves_and_not_each_other(real_traces: Path) -> None:
    import random

    golds = sorted(
        {
            trace.gold
            for name in COUNTS
            if "mmlupro" not in name
            for trace in import_file(real_traces / f"{name}.jsonl.gz")
            if trace.gold
        }
    )
    assert len(golds) > 400
    assert all(answers_equal(gold, f"$\\displaystyle {gold}$") for gold in golds)
    rng = random.Random(3)
    pairs = [tuple(rng.sample(golds, 2)) for _ in range(6000)]
    accepted = [(a, b) for a, b in pairs if answers_equal(a, b)]
    assert len(accepted) <= len(pairs) / 1000, accepted
