"""Hidden states on disk: look-up, resuming, atomic shards, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.data.errors import ArtifactMismatch, ProbeError
from desist.probes.features import HiddenWriter, TokenHiddenWriter, hidden_dir, read_hidden, token_dir


def rows(n: int, width: int, start: float = 0.0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return (start + np.arange(n * width, dtype=np.float32)).reshape(n, width)


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=12), shard_rows=st.integers(1, 9))
def test_what_is_written_is_read(
    counts: list[int], shard_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hidden")
    with HiddenWriter(folder, (0, 2), 3, "float32", shard_rows=shard_rows) as writer:
        for number, count in enumerate(counts):
            writer.add(f"t{number}", range(count), rows(count, 6, 100.0 * number))
    hidden = read_hidden(folder)
    assert len(hidden) == sum(counts)
    assert hidden.trace_ids == {f"t{n}" for n in range(len(counts))}
    for number, count in enumerate(counts):
        np.testing.assert_array_equal(hidden.of_trace(f"t{number}"), rows(count, 6, 100.0 * number))
    keys = [(f"t{n}", i) for n, count in enumerate(counts) for i in range(count)][::-1]
    for key, row in zip(keys, hidden.gather(keys), strict=True):
        np.testing.assert_array_equal(row, hidden.of_trace(key[0], [key[1]])[0])


def test_indices_need_not_be_dense(tmp_path: Path) -> None:
    with HiddenWriter(tmp_path, (1,), 2, "float32") as writer:
        writer.add("a", [4, 9], rows(2, 2))
    hidden = read_hidden(tmp_path)
    np.testing.assert_array_equal(hidden.of_trace("a", [9, 4]), rows(2, 2)[::-1])
    with pytest.raises(ProbeError, match="index 5"):
        hidden.of_trace("a", [5])
    with pytest.raises(ProbeError, match="no hidden states of trace b"):
        hidden.of_trace("b")


def test_resume_goes_on_and_the_last_write_counts(tmp_path: Path) -> None:
    writer = HiddenWriter(tmp_path, (1,), 2, "float32")
    writer.add("a", [0], rows(1, 2))
    writer.flush()
    writer.add("lost", [0], rows(1, 2))  # never flushed: the process is killed here
    (tmp_path / ".shard-00001.safetensors").write_bytes(b"half a shard")
    with HiddenWriter(tmp_path, (1,), 2, "float32") as again:
        assert again.done == {"a"}
        again.add("lost", [0, 1], rows(2, 2, 5.0))
        again.add("a", [0], rows(1, 2, 9.0))
    hidden = read_hidden(tmp_path)
    assert hidden.trace_ids == {"a", "lost"}
    np.testing.assert_array_equal(hidden.of_trace("a"), rows(1, 2, 9.0))
    np.testing.assert_array_equal(hidden.of_trace("lost"), rows(2, 2, 5.0))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("taps", {"taps": (1, 2)}),
        ("dim", {"dim": 3}),
        ("dtype", {"dtype": "float16"}),
        ("fingerprints", {"fingerprints": {"model": "other"}}),
    ],
)
def test_other_settings_are_refused_on_resume(tmp_path: Path, field: str, change: dict[str, object]) -> None:
    given = {"taps": (1,), "dim": 2, "dtype": "float32", "fingerprints": {"model": "m"}}
    with HiddenWriter(tmp_path, **given) as writer:  # type: ignore[arg-type]
        writer.add("a", [0], rows(1, 2))
    with pytest.raises(ArtifactMismatch, match=field):
        HiddenWriter(tmp_path, **(given | change))  # type: ignore[arg-type]


def test_half_precision_rounds_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    with HiddenWriter(tmp_path, (1,), 2) as writer:
        writer.add("a", [0], [[0.1, -3.0]])
        with pytest.raises(ProbeError, match="dtype='float32'"):
            writer.add("b", [0], [[1e6, 0.0]])
        with pytest.raises(ProbeError, match="NaN"):
            writer.add("c", [0], [[np.nan, 0.0]])
        with pytest.raises(ProbeError, match="1 rows for 2 indices"):
            writer.add("d", [0, 1], [[1.0, 0.0]])
    hidden = read_hidden(tmp_path)
    assert hidden.of_trace("a").dtype == np.float32
    np.testing.assert_array_equal(hidden.of_trace("a"), np.float16([[0.1, -3.0]]).astype(np.float32))


def test_token_rows_and_columns(tmp_path: Path) -> None:
    with TokenHiddenWriter(tmp_path, 3, 2, "float32") as writer:
        writer.add("a", rows(5, 2))
    hidden = read_hidden(tmp_path)
    assert (hidden.store, hidden.taps, hidden.dim, len(hidden)) == ("tokens", (3,), 2, 5)
    np.testing.assert_array_equal(hidden.of_trace("a", [2]), rows(5, 2)[2:3])
    with HiddenWriter(tmp_path / "b", (1, 4, 6), 2, "float32") as boundary_writer:
        boundary_writer.add("a", [0], rows(1, 6))
    assert read_hidden(tmp_path / "b").columns((6, 1)) == [4, 5, 0, 1]
    with pytest.raises(ProbeError, match="tap 5"):
        read_hidden(tmp_path / "b").columns((5,))


def test_R47_damaged_foreign_and_missing_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="no hidden states in"):
        read_hidden(tmp_path)
    with HiddenWriter(tmp_path, (1,), 2) as writer:
        writer.add("a", [0], rows(1, 2))
    shard = tmp_path / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(ProbeError, match="cannot be read"):
        read_hidden(tmp_path)
    from safetensors.numpy import save_file

    save_file({"rows": rows(1, 2)}, shard)
    with pytest.raises(ProbeError, match="no hidden-state shard"):
        read_hidden(tmp_path)


def test_places_beside_the_trace_file() -> None:
    assert hidden_dir("run/traces.jsonl.gz") == Path("run/traces.jsonl.gz.hidden")
    assert token_dir("run/traces.jsonl.gz") == Path("run/traces.jsonl.gz.hidden-tokens")
