"""The probe on disk: bit-equal return, and everything that must be refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from desist.data.errors import ArtifactMismatch, ProbeError
from desist.kernels import Layer
from desist.probes import load_probe, save_probe
from desist.probes.artifact import AnyProbe, probe_fingerprint
from desist.probes.base import ProbeCard
from desist.probes.lynx import LynxProbe, network
from desist.probes.rom import MinGRUNetwork, RomProbe


def card(family: str) -> ProbeCard:
    return ProbeCard(
        family=family,  # type: ignore[arg-type]
        taps=(2,) if family == "rom" else (1, 2),
        hidden_size=4,
        target="consistent",
        seed=3,
        problems=frozenset({"b", "a"}),
        n_traces=2,
        n_boundaries=9,
        fingerprints={"model": "m1", "tokenizer": "t1"},
        metrics={"auroc": 0.8},
        settings={"labels": "first", "members": 3},
        versions={"torch": "x"},
        created="2026-01-02",
    )


def make(family: str) -> AnyProbe:
    torch.manual_seed(0)
    if family == "rom":
        return RomProbe(card(family), MinGRUNetwork(4, 3, 5, 0.0).weights())
    net = network(8, (6, 3), 0.0)
    return LynxProbe(card(family), [Layer(m.weight, m.bias) for m in net if isinstance(m, torch.nn.Linear)])


@pytest.mark.parametrize("family", ["mlp", "rom"])
def test_comes_back_bit_equal(tmp_path: Path, family: str) -> None:
    probe = make(family)
    back = load_probe(save_probe(probe, tmp_path / "p"), expect={"model": "m1"})
    assert back.card == probe.card
    assert probe_fingerprint(back) == probe_fingerprint(probe)
    rows = torch.randn(9, probe.card.width)
    if isinstance(probe, RomProbe) and isinstance(back, RomProbe):
        assert torch.equal(back.scan(rows), probe.scan(rows))
    elif isinstance(probe, LynxProbe) and isinstance(back, LynxProbe):
        assert torch.equal(back.score(rows), probe.score(rows))
    assert {path.name for path in (tmp_path / "p").iterdir()} == {"card.json", "weights.safetensors"}


def test_replaces_a_probe_and_leaves_nothing_beside(tmp_path: Path) -> None:
    save_probe(make("mlp"), tmp_path / "p")
    (tmp_path / ".p.new").mkdir()  # what a killed save left over
    save_probe(make("rom"), tmp_path / "p")
    assert load_probe(tmp_path / "p").card.family == "rom"
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_mismatch_names_field_both_values_and_remedy(tmp_path: Path) -> None:
    folder = save_probe(make("mlp"), tmp_path / "p")
    with pytest.raises(ArtifactMismatch, match=r"model is 'm1'.*'m2'.*Train a probe"):
        load_probe(folder, expect={"model": "m2"})
    with pytest.raises(ArtifactMismatch, match=r"does not name its template.*'x'"):
        load_probe(folder, expect={"template": "x"})
    forced = load_probe(folder, expect={"model": "m2"}, force=True)
    assert forced.card.uncertified
    assert not load_probe(folder, expect={"model": "m1"}, force=True).card.uncertified
    again = load_probe(save_probe(forced, tmp_path / "q"))
    assert again.card.uncertified  # the mark survives saving


def edit(folder: Path, **changes: object) -> None:
    path = folder / "card.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_unknown_major_is_refused_and_unknown_minor_read(tmp_path: Path) -> None:
    folder = save_probe(make("mlp"), tmp_path / "p")
    edit(folder, schema_version="1.7", field_of_the_future=[1])
    assert load_probe(folder).card.schema_version == "1.7"
    edit(folder, schema_version="2.0")
    with pytest.raises(ProbeError, match=r"schema version 2\.0.*train the probe again"):
        load_probe(folder)


def test_altered_files_are_refused(tmp_path: Path) -> None:
    folder = save_probe(make("mlp"), tmp_path / "p")
    weights = folder / "weights.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(ProbeError, match="altered or cut short"):
        load_probe(folder)
    weights.unlink()
    with pytest.raises(ProbeError, match="Copy the whole folder"):
        load_probe(folder)
    folder = save_probe(make("mlp"), tmp_path / "p")
    edit(folder, taps=[2, 1])
    with pytest.raises(ProbeError, match="altered after saving"):
        load_probe(folder)
    edit(folder, taps="all")
    with pytest.raises(ProbeError, match="field 'taps'"):
        load_probe(folder)
    (folder / "card.json").write_text("[]")
    with pytest.raises(ProbeError, match="no probe card"):
        load_probe(folder)
    with pytest.raises(ProbeError, match="no probe card"):
        load_probe(tmp_path / "nowhere")


def test_nan_weights_are_refused_even_with_a_fitting_hash(tmp_path: Path) -> None:
    import hashlib

    folder = save_probe(make("mlp"), tmp_path / "p")
    tensors = load_file(folder / "weights.safetensors")
    tensors["layer_1.bias"][0] = torch.nan
    data = save(tensors)
    (folder / "weights.safetensors").write_bytes(data)
    edit(folder, weights_sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(ProbeError, match="NaN or infinite"):
        load_probe(folder)


def test_weights_of_another_family_are_refused(tmp_path: Path) -> None:
    folder = save_probe(make("mlp"), tmp_path / "p")
    edit(folder, family="rom")
    with pytest.raises(ProbeError, match="do not belong together"):
        load_probe(folder)


def test_fingerprint_depends_on_weights_and_on_what_they_read() -> None:
    probe = make("mlp")
    assert isinstance(probe, LynxProbe)
    other_taps = LynxProbe(dataclasses.replace(probe.card, taps=(2, 3)), probe.layers)
    other_weights = LynxProbe(probe.card, [*probe.layers[:-1], Layer(*(2 * p for p in probe.layers[-1]))])
    assert len({probe_fingerprint(p) for p in (probe, other_taps, other_weights)}) == 3
