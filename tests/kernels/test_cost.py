"""The cost model: published sizes, figures worked out by hand for one model, and what the command prints."""

from __future__ import annotations

import json

import pytest

from desist.kernels import cost
from desist.kernels.cost import H200, MODELS, Cost

LLAMA_8B = MODELS[1]
#: Bytes of finding, and of deciding for a row: 203, and 0.5 % of 128,256 float32 logits.
FIND, DECIDE, RECORD = 74, 203 + 2565.12, 28


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Llama-3.1-8B", 8_030_261_248),
        ("Qwen2.5-32B", 32_763_876_352),
        ("Llama-3.1-70B", 70_553_706_496),
    ],
)
def test_shapes_have_the_published_number_of_weights(name: str, parameters: int) -> None:
    (model,) = (model for model in MODELS if model.name == name)
    assert model.parameters() == parameters


def test_the_backbone_of_the_8b_model_by_hand() -> None:
    # A layer: 4096 x 4096 twice, 4096 x 1024 twice, 4096 x 14336 three times: 218,103,808. 32 of them are
    # 6,979,321,856; the output head of 128,256 x 4096 = 525,336,576 more.
    matrices = 7_504_658_432
    assert LLAMA_8B.matrices() == matrices
    # The cache of a token: 32 layers x keys and values x 8 heads x 128 x 2 bytes = 131,072 bytes.
    step = cost.backbone(LLAMA_8B, 64, 999)
    assert step.bytes == 2 * matrices + 64 * 1000 * 131_072 == 23_397_924_864
    assert step.flops == 64 * (2 * matrices + 4 * 999 * 32 * 4096)


def test_a_probe_at_every_row_of_the_8b_model_by_hand() -> None:
    # 3 x 4096 x 256 + 256 x 64 + 64 weights; 48 splits. A row: 24,576 bytes of hidden states, 48 x 256
    # partial sums written and read, a score.
    weights = 3_145_728 + 16_384 + 64
    row = 24_576 + 2 * 4 * 48 * 256 + 4
    found = cost.per_cue(LLAMA_8B, 64, 1.0)
    assert found.bytes == pytest.approx(2 * weights + 64 * (row + FIND + DECIDE + RECORD))
    assert found.flops == 2 * 64 * weights


def test_weights_are_read_only_if_some_row_is_at_a_boundary() -> None:
    none, some = cost.per_cue(LLAMA_8B, 1, 0.0), cost.per_cue(LLAMA_8B, 1, 0.03)
    assert none == Cost(FIND + DECIDE, 0)
    assert some.bytes == pytest.approx(0.97 * none.bytes + 0.03 * cost.per_cue(LLAMA_8B, 1, 1.0).bytes)
    assert cost.per_cue(LLAMA_8B, 256, 0.03).bytes > 2 * 3_162_176 * 0.999


def test_a_streaming_head_on_the_8b_model_by_hand() -> None:
    # 64 x 4096 + 2 x 64 x 64 weights and 128 of the output head; 32 splits of 128 columns. A row: 8,192 bytes
    # of hidden states, and float32: 2 x 32 x 64 partial sums, 3 x 64, 4 x 64, 2 x 64, a score.
    matrices = 262_144 + 8_192
    row = 8_192 + 4 * (4_096 + 192 + 256 + 128 + 1)
    found = cost.per_token(LLAMA_8B, 64)
    assert found.bytes == pytest.approx(2 * matrices + 4 * 128 + 64 * (row + FIND + DECIDE + RECORD))
    assert found.flops == 2 * 64 * (matrices + 128)


def test_the_logits_copy_by_hand() -> None:
    assert cost.logits_copy(LLAMA_8B, 256) == Cost(256 * 128_256 * 6, 0)


def test_the_roofline_is_the_slower_of_the_two() -> None:
    assert H200.seconds(Cost(4.8e12, 0)) == 1
    assert H200.seconds(Cost(4.8e12, 2 * 989e12)) == 2


def test_rows_cover_models_batches_and_parts() -> None:
    found = cost.rows()
    assert len(found) == 4 * 3 * 6
    assert [row.part for row in found[:6]] == [
        "backbone",
        "per cue, 3% at a boundary",
        "per cue, 25% at a boundary",
        "per cue, 100% at a boundary",
        "per token",
        "float32 logits copy",
    ]
    for row in found:
        assert row.microseconds > 0
        assert (row.of_backbone == 1) == (row.part == "backbone")


def test_the_command_prints_a_table_or_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert cost.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "2,048 tokens" in lines[0]
    assert len(lines) == 4 + 72
    assert len({line.count("|") for line in lines[2:]}) == 1
    assert cost.main(["--json", "--context", "100"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["context"] == 100
    assert told["rows"][0]["bytes"] == cost.backbone(MODELS[0], 1, 100).bytes
