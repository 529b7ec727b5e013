"""Files: streaming, atomic, in constant memory, and clear about damage."""

from __future__ import annotations

import gzip
import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from desist.data import Problem, problem_id, read_problems, read_traces, write_problems, write_traces
from desist.data.errors import DataError, RecordError
from desist.data.schema import BoundaryRecord, Sampling, Trace

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


def trace(number: int) -> Trace:
    return Trace(
        trace_id=f"t{number}",
        problem_id=f"p{number % 7}",
        model="m",
        problem=f"What is {number} + 1?",
        reasoning="so it is\n\nWait, " * 20,
        answer=str(number + 1),
        n_reasoning_tokens=100,
        n_answer_tokens=3,
        prompt=({"role": "user", "content": "hé 😀"},) if number % 2 else "text",
        full_correct=None if number % 3 else True,
        sampling=Sampling(0.7, 0.9, number, 512),
        boundaries=(
            BoundaryRecord(0, 3, 10, "paragraph", "\n\n", {"probe": 0.25}, "", 0.5, 7, False, None),
            BoundaryRecord(2, 5, 16, "cue", "Wait", {}),
        ),
        provenance={"judge": "math", "deep": {"list": [1, None, "x"]}},
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_traces_survive_a_file(tmp_path: Path, suffix: str) -> None:
    path, whole = tmp_path / f"traces{suffix}", [trace(number) for number in range(600)]
    assert write_traces(path, iter(whole)) == 600
    assert list(read_traces(path)) == whole
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert write_traces(path, []) == 0
    assert list(read_traces(path)) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_problems_survive_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"problems{suffix}"
    problems = [Problem(problem_id("1+1?"), "1+1?", "2", "easy", "d"), Problem("own", "2+2?")]
    assert write_problems(path, problems) == 2
    assert list(read_problems(path)) == problems


def test_a_problem_without_an_id_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text('\ufeff{"problem": "1 +  1?"}\r\n\n{"problem": "2+2?", "gold": "4"}', encoding="utf-8")
    assert [problem.problem_id for problem in read_problems(path)] == [
        problem_id("1 + 1?"),
        problem_id("2+2?"),
    ]


def test_equal_traces_give_equal_gzip_files(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_traces(tmp_path / name, [trace(1)])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"traces{suffix}"
    write_traces(path, [trace(1)])

    def failing() -> Iterator[Trace]:
        yield trace(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_traces(path, failing())
    assert list(read_traces(path)) == [trace(1)]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_an_invalid_trace_is_not_written(tmp_path: Path) -> None:
    bad = Trace("t", "p", "m", "q", "r", "a", -1, 0)
    with pytest.raises(RecordError, match=r"line 2, field 'n_reasoning_tokens': -1 is below 0"):
        write_traces(tmp_path / "t.jsonl", [trace(1), bad])
    assert list(tmp_path.iterdir()) == []


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_traces(path, [trace(1), trace(2)])
    lines = path.read_bytes().splitlines(keepends=True)
    for broken in (b"{not json}\n", b'{"trace_id": NaN}\n', b"\xff\xfe\n", lines[1][:-20]):
        path.write_bytes(lines[0] + broken)
        with pytest.raises(RecordError, match="line 2, field '\\(record\\)': not valid JSON"):
            list(read_traces(path))


def test_a_cut_gzip_file_is_an_error_at_every_cut(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_traces(path, [trace(1), trace(2)])
    data = path.read_bytes()
    for cut in range(1, len(data)):
        path.write_bytes(data[:cut])
        with pytest.raises(RecordError):
            list(read_traces(path))
    path.write_bytes(data)
    assert len(list(read_traces(path))) == 2


@pytest.mark.parametrize("garbage", [b"garbage", b"\x1f\x8bgarbage after"])
def test_bytes_after_a_gzip_file_are_an_error(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_traces(path, [trace(1)])
    path.write_bytes(path.read_bytes() + garbage)
    with pytest.raises(RecordError, match=r"gzip"):
        list(read_traces(path))


def test_gzip_members_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_traces(path, [trace(1)])
    path.write_bytes(path.read_bytes() * 2)
    assert len(list(read_traces(path))) == 2


def test_a_damaged_parquet_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_traces(path, [trace(1)])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"Parquet"):
        list(read_traces(path))


def test_parquet_of_another_shape_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"prompt_text": ["a"]}), path)
    with pytest.raises(RecordError, match="'prompt_text': unknown field"):
        list(read_traces(path))


def test_missing_files_and_unknown_suffixes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        read_traces(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match=r"Use \.jsonl, \.jsonl\.gz or \.parquet"):
        read_traces(tmp_path / "none.json")
    with pytest.raises(DataError, match="is not there"):
        read_problems(tmp_path / "none.parquet")


def peak_of_a_pass(path: Path, count: int) -> int:
    """Python's peak memory while `count` traces are written and read again, in bytes."""
    tracemalloc.start()
    try:
        assert write_traces(path, (trace(number) for number in range(count))) == count
        assert sum(1 for _ in read_traces(path)) == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("suffix", "few", "many"), [(".jsonl", 200, 1200), (".jsonl.gz", 200, 1200), (".parquet", 600, 1800)]
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, suffix: str, few: int, many: int) -> None:
    small = peak_of_a_pass(tmp_path / f"small{suffix}", few)
    large = peak_of_a_pass(tmp_path / f"large{suffix}", many)
    assert large < small + 2_000_000


@pytest.mark.slow
def test_a_large_file_is_read_in_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl.gz"
    write_traces(tmp_path / "one.jsonl", [trace(1)])
    line = (tmp_path / "one.jsonl").read_bytes()
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in itertools.repeat(None, 30_000):
            file.write(line)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_traces(path)) == 30_000
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
