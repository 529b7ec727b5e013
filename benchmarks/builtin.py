"""Makes everything that belongs to the built-in reasoner but its weights: probes, certificates, report.

`make builtin`. Collects training and calibration problems (resumable), trains the probes, scores the
calibration traces, certifies the operating points declared below, and writes the report.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
from pathlib import Path

from desist.calibration import CannotCertify, ReportSection, write_report
from desist.calibration.drift_reference import build_reference, reference_path
from desist.calibration.drift_statistics import replayed_statistics
from desist.data import read_traces, write_traces
from desist.data.splits import Split
from desist.probes import read_hidden, save_probe, train_probe
from desist.probes.base import Family
from desist.probes.features import hidden_dir, token_dir
from desist.proxy.answering.estimates import StepTable
from desist.proxy.collection.collect import CollectReport, collect
from desist.proxy.studies.builtin import Builtin, builtin_problems, builtin_taps, load_builtin
from desist.proxy.studies.demo import certify_builtin
from desist.proxy.studies.scored import score_file

log = logging.getLogger("builtin")
ROOT = Path(__file__).resolve().parents[1]
#: Declared before any calibration trace was looked at: (loss, alpha). delta is 0.05 throughout.
POINTS = (("consistency", "0.05"), ("consistency", "0.1"), ("harm", "0.02"), ("harm", "0.05"))
SCORES = ("probe", "rom")


def gather(builtin: Builtin, split: Split, n: int, seed: int, cache: Path, batch: int, floors: int) -> Path:
    """Collect one split with boundary and token states; the file of its traces."""
    layers = builtin.model.n_layers
    out = cache / f"{split}.jsonl"
    report: CollectReport = collect(
        builtin_problems(split, seed, n),
        model=builtin.model,
        profile=builtin.profile,
        sampling=builtin.sampling,
        out=out,
        seed=seed,
        taps=builtin_taps(layers),
        keep_tokens_tap=max(1, round(0.87 * layers)),
        batch=batch,
        hidden_dtype="float32",
        floors=floors,
        progress=lambda done, total: log.info("%s %d/%d", split, done, total) if done % 500 == 0 else None,
    )
    log.info("%s: %s", split, report)
    if report.floors is not None:
        numbers = {k: list(v) if isinstance(v, tuple) else v for k, v in vars_of(report.floors).items()}
        (cache / "floors.json").write_text(json.dumps(numbers))
    return out


def vars_of(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}  # type: ignore[attr-defined]


def train(traces: Path, family: Family, out: Path, seed: int, created: str) -> None:
    """Train one probe and save it."""
    folder = token_dir(traces) if family == "rom" else hidden_dir(traces)
    trained = train_probe(
        read_traces(traces),
        read_hidden(folder),
        family=family,
        seed=seed,
        created=created,
        unlabelled="skip",
        controls=family == "mlp",
    )
    log.info("%s: %s", family, json.dumps(trained.report.to_dict()))
    save_probe(trained.probe, out)


def score(traces: Path, builtin: Builtin, out: Path) -> None:
    """Write the traces with both probes' scores to `out`."""
    write_traces(out, score_file(builtin, traces))


def certify(builtin: Builtin, folder: Path, floors: Path) -> None:
    """Certify the declared points and write certificates and report."""
    sections = []
    for loss, alpha in POINTS:
        found, traces = certify_builtin(builtin, alpha=alpha, delta="0.05", loss=loss)  # type: ignore[arg-type]
        log.info("%s %s: %s", loss, alpha, found.message if isinstance(found, CannotCertify) else found.lam)
        sections.append(ReportSection.of(found, traces))
        path = folder / f"{loss}-{alpha}.json"
        path.unlink(missing_ok=True)
        if not isinstance(found, CannotCertify):
            found.save(path)
            StepTable.from_traces(traces).save(path.with_suffix(".estimates.json"))
            seen = list(replayed_statistics(traces, found.policy(), kinds=found.kinds))
            build_reference(seen, found.policy(), certificate=found.digest).save(reference_path(path))
    stored = json.loads(floors.read_text()) if floors.exists() else {}
    rates = {name: k / n for name, (k, n) in ((a, b) for a, b in stored.items() if isinstance(b, list)) if n}
    write_report(ROOT / "docs" / "report.html", sections, title="The built-in reasoner", floors=rates or None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=8000, help="training problems")
    parser.add_argument("--calibration", type=int, default=3000, help="calibration problems")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "builtin")
    parser.add_argument("--skip-training", action="store_true", help="keep the probes that are there")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    given.cache.mkdir(parents=True, exist_ok=True)
    created = datetime.datetime.now(datetime.UTC).date().isoformat()
    bare = load_builtin(probes=False)
    if not given.skip_training:
        traces = gather(bare, "train", given.train, given.seed, given.cache, given.batch, floors=0)
        train(traces, "logistic", given.cache / "logistic", given.seed, created)  # for comparison only
        train(traces, "mlp", ROOT / "probes" / "builtin" / "lynx", given.seed, created)
        train(traces, "rom", ROOT / "probes" / "builtin" / "rom", given.seed, created)
    held = gather(bare, "calibration", given.calibration, given.seed, given.cache, given.batch, floors=200)
    folder = ROOT / "calibration" / "builtin"
    folder.mkdir(exist_ok=True)
    builtin = load_builtin()
    score(held, builtin, folder / "traces.jsonl.gz")
    certify(builtin, folder, given.cache / "floors.json")


if __name__ == "__main__":
    main()
