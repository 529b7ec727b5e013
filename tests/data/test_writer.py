"""Long jobs: whatever happens to the process, no record is lost and none is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from desist.data import TraceWriter, read_traces, write_traces
from desist.data.errors import DataError, RecordError
from desist.data.schema import Trace

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


def trace(number: int) -> Trace:
    return Trace(f"t{number}", "p", "m", "1+1?", "one ünd one", "2", 3, 1)


def ids(path: Path) -> list[str]:
    return [entry.trace_id for entry in read_traces(path)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_stopped_job_goes_on(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"traces{suffix}"
    writer = TraceWriter(path)
    assert writer.write(trace(0))
    assert writer.write(trace(1))
    assert not writer.write(trace(1))
    writer.close()
    assert not path.exists()
    with TraceWriter(path) as writer:
        assert writer.done == {"t0", "t1"}
        assert not writer.write(trace(0))
        assert writer.write(trace(2))
    assert ids(path) == ["t0", "t1", "t2"]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_finished_file_can_be_gone_on_with_or_thrown_away(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"traces{suffix}"
    write_traces(path, [trace(0), trace(1)])
    with TraceWriter(path) as writer:
        assert writer.done == {"t0", "t1"}
        writer.write(trace(2))
        assert ids(path) == ["t0", "t1"]
    assert ids(path) == ["t0", "t1", "t2"]
    with TraceWriter(path, resume=False) as writer:
        assert writer.done == set()
        writer.write(trace(9))
    assert ids(path) == ["t9"]


def test_a_torn_tail_is_cut_at_every_byte(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "traces.jsonl"
    with TraceWriter(path) as writer:
        for number in range(3):
            writer.write(trace(number))
    data = path.read_bytes()
    ends = [offset + 1 for offset, byte in enumerate(data) if byte == ord("\n")]
    path.unlink()
    partial = tmp_path / "traces.jsonl.partial"
    for cut in range(len(data) + 1):
        caplog.clear()
        partial.write_bytes(data[:cut])
        writer = TraceWriter(path)
        kept = sum(end <= cut for end in ends)
        assert writer.done == {f"t{number}" for number in range(kept)}
        assert ("torn last line" in caplog.text) == (cut not in (0, *ends))
        for number in range(3):
            assert writer.write(trace(number)) == (number >= kept)
        writer.close()
        assert partial.read_bytes() == data


def test_an_error_in_the_job_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"

    def job() -> None:
        with TraceWriter(path) as writer:
            writer.write(trace(0))
            raise RuntimeError("job")

    with pytest.raises(RuntimeError, match="job"):
        job()
    assert not path.exists()
    assert TraceWriter(path).done == {"t0"}


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    first = TraceWriter(path)
    with pytest.raises(DataError, match="written by another process"):
        TraceWriter(path)
    first.close()
    TraceWriter(path).close()


def test_damage_before_the_tail_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    (tmp_path / "traces.jsonl.partial").write_bytes(b'{"torn": \n{"trace_id": "t"}\n')
    with pytest.raises(RecordError, match=r"traces\.jsonl\.partial, line 1"):
        TraceWriter(path)


def test_a_record_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    write_traces(path, [trace(0)])
    (tmp_path / "traces.jsonl.partial").write_bytes(path.read_bytes() * 2)
    with pytest.raises(RecordError, match="'t0' occurs twice"):
        TraceWriter(path)


def test_a_crash_between_conversion_and_clean_up_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "traces.parquet"
    writer = TraceWriter(path)
    writer.write(trace(0))
    writer.close()
    write_traces(path, [trace(0)])
    with TraceWriter(path) as writer:
        writer.write(trace(1))
    assert ids(path) == ["t0", "t1"]


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "traces.jsonl")
    writer.write(trace(0))
    assert writer.finish() == 1
    with pytest.raises(DataError, match="is closed"):
        writer.write(trace(1))


JOB = """
import sys
from desist.data import TraceWriter, Trace
with TraceWriter(sys.argv[1]) as writer:
    print("resumed", len(writer.done), flush=True)
    for number in range(int(sys.argv[2])):
        writer.write(Trace(f"t{number}", "p", "m", "1+1?", "x" * 2000, "2", 3, 1))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_kill_9_loses_nothing(tmp_path: Path, suffix: str) -> None:
    path, count = tmp_path / f"traces{suffix}", 4000
    partial = path.with_name(path.name + ".partial")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", JOB, str(path), str(count)]
    for _ in range(2):
        job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        before = partial.stat().st_size if partial.exists() else 0
        while job.poll() is None and not (partial.exists() and partial.stat().st_size > before + 20_000):
            time.sleep(0.002)
        job.kill()
        job.communicate()
    assert subprocess.run(command, env=environment, check=True, capture_output=True).stdout.startswith(
        b"resumed "
    )
    assert ids(path) == [f"t{number}" for number in range(count)]
    assert not partial.exists()
