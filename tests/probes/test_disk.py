"""The disk that hidden states need, as it is told."""

from __future__ import annotations

from desist.probes.disk import TOKENS_PER_BOUNDARY, hidden_disk


def test_R54_the_product_is_told_and_an_assumption_is_called_one() -> None:
    disk = hidden_disk(3000, taps=(9, 18, 27, 36), token_tap=31, hidden_size=4096, max_tokens=29_000)
    assert disk.boundary_bytes == 3000 * (29_000 // TOKENS_PER_BOUNDARY) * (4 * 4096 * 2 + 4)
    assert disk.token_bytes == 3000 * 29_000 * (4096 * 2 + 4)
    assert disk.total_bytes == disk.boundary_bytes + disk.token_bytes
    words = disk.words()
    assert "4 layers x 4096 x 2 bytes a boundary, 98.3 GB" in words
    assert "(one in 29 tokens, an assumption)" in words
    assert "1 layer x 4096 x 2 bytes a token, 713 GB for 3,000 traces of 29,000 tokens (all of them)" in words


def test_R54_a_distance_that_the_profile_states_is_no_assumption() -> None:
    disk = hidden_disk(1, taps=(1,), token_tap=None, hidden_size=8, max_tokens=70, every_n=7, dtype="float32")
    assert (disk.boundary_bytes, disk.token_bytes) == (10 * (8 * 4 + 4), 0)
    assert "assumption" not in disk.words()
    assert "a token" not in disk.words()


def test_R54_an_unknown_length_gives_rows_and_no_total() -> None:
    disk = hidden_disk(5, taps=(1,), token_tap=None, hidden_size=8, max_tokens=None)
    assert (disk.boundary_row, disk.total_bytes) == (8 * 2 + 4, None)
    assert "not known" in disk.words()
    assert hidden_disk(5, taps=(), token_tap=None, hidden_size=8, max_tokens=9).words().endswith("none kept")
