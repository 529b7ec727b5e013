"""From scored traces to a certificate and its report: `calibrate`, `report`."""

from __future__ import annotations

import gc
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from desist.commands.certifying_flags import (
    GroupBy,
    Joint,
    LengthEdges,
    MinGroup,
    SmallGroups,
    expiring,
    floor_shares,
    read,
    risk_levels,
    save_sheet,
    weighted_traces,
)
from desist.commands.common import (
    REFUSED,
    Delta,
    Json,
    Quiet,
    Seed,
    app,
    err,
    show,
    status,
    today,
)

if TYPE_CHECKING:
    from desist.calibration import CannotCertify, Certificate
    from desist.calibration.figures import Figures
    from desist.data.schema import Trace

_ENDINGS = (".html", ".md", ".json")
_FILES = tuple(f"report{ending}" for ending in _ENDINGS)

Traces = Annotated[
    Path | None, typer.Argument(help="Scored, labelled traces: .jsonl, .jsonl.gz or .parquet.", exists=True)
]
LossName = Annotated[
    Literal["consistency", "harm", "token-regret"], typer.Option("--loss", help="Which loss is bounded.")
]
Speed = Annotated[
    float | None, typer.Option("--tokens-per-second", min=1e-6, help="Of one request; for seconds saved.")
]
AuditShare = Annotated[
    float, typer.Option("--audit-share", min=0, max=1, help="Share of requests audited; for net savings.")
]
Texts = Annotated[bool, typer.Option("--texts", help="Show the answers of the worst losses.")]
Test = Annotated[
    Path | None, typer.Option("--test", help="Traces of other problems, for the held-out risk.", exists=True)
]
Floor = Annotated[
    list[str] | None,
    typer.Option("--floor", help="How often the model disagrees with itself, as name=0.03. Repeatable."),
]


Alphas = Annotated[
    list[str] | None,
    typer.Option("--alpha", help="Tolerated risk, exact (0.05 is 1/20). Repeatable; the first is certified."),
]
Shift = Annotated[
    Path | None,
    typer.Option("--shift", help="With weighted: traces of the later traffic, for the weights.", exists=True),
]


@app.command()
def calibrate(
    out: Annotated[Path, typer.Option("--out", help="Folder for certificate.json and the report.")],
    traces: Traces = None,
    alpha: Alphas = None,
    delta: Delta = "0.05",
    loss: LossName = "consistency",
    method: Annotated[
        Literal["ltt", "pac", "pareto", "split", "crc", "weighted", "cue-level"],
        typer.Option("--method", help="Declared before looking."),
    ] = "ltt",
    scorer: Annotated[str | None, typer.Option(help="Name of the score [the only one there is].")] = None,
    patience: Annotated[int, typer.Option(min=1, help="Consecutive boundaries above.")] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="Reasoning tokens before the first stop.")] = 0,
    ema: Annotated[float, typer.Option(help="Weight of the newest score.")] = 1.0,
    kinds: Annotated[str | None, typer.Option(help="Boundary kinds that decide [all there are].")] = None,
    probe: Annotated[Path | None, typer.Option(help="Probe whose training problems are refused.")] = None,
    answer: Annotated[
        Literal["write", "extract"] | None, typer.Option(help="Answer mode [the traces', else write].")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Judge of equality [the traces', else math].")] = None,
    truncated: Annotated[
        Literal["answered", "no_answer", "loss"],
        typer.Option(help="What a stop in a full run cut at its token limit counts as."),
    ] = "answered",
    samples: Annotated[
        Literal["one", "worst"], typer.Option(help="Of several traces of a problem: one drawn, or the worst.")
    ] = "one",
    missing: Annotated[
        Literal["refuse", "pass"], typer.Option(help="Boundaries without a score: refuse, or pass over.")
    ] = "refuse",
    trace_score: Annotated[
        Literal["critical", "maximum", "first-crossing"] | None,
        typer.Option("--trace-score", help="The number that stands for a trace [the method's own]."),
    ] = None,
    risk: Annotated[
        list[str] | None,
        typer.Option("--risk", help="A further risk that holds as well, as harm=0.02. Repeatable."),
    ] = None,
    give_up_alpha: Annotated[
        str | None, typer.Option("--give-up-alpha", help="Risk of giving up what would have come right.")
    ] = None,
    give_up_after: Annotated[
        int, typer.Option("--give-up-after", min=0, help="Tokens before which no problem is given up.")
    ] = 0,
    shift: Shift = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="With weighted: key of provenance that holds the weight.")
    ] = None,
    max_weight: Annotated[
        float | None,
        typer.Option(
            "--max-weight", min=0, help="Largest weight of a new problem (mean 1) [the largest here]."
        ),
    ] = None,
    group_by: GroupBy = None,
    min_group: MinGroup = None,
    joint: Joint = None,
    small_groups: SmallGroups = None,
    length_edges: LengthEdges = None,
    test: Test = None,
    floor: Floor = None,
    valid_days: Annotated[int, typer.Option(min=0, help="Days until it expires (0: no date).")] = 90,
    tokens_per_second: Speed = None,
    audit_share: AuditShare = 0.0,
    texts: Texts = False,
    from_audits: Annotated[
        Path | None, typer.Option("--from-audits", help="Monitoring folder: recertify --certificate from it.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="With --from-audits: the one in use.", exists=True)
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Turn scored traces into a certified threshold and a report, or say what is missing (exit code 2).

    With --group-by each group gets a certificate of its own; then exit code 2 says that none has one.
    """
    from desist.calibration import CannotCertify
    from desist.calibration.figures import calibration_figures
    from desist.calibration.inputs import certified_kinds, declared, only_scorer
    from desist.calibration.prepared import prepare
    from desist.calibration.report_words import direction_words
    from desist.calibration.sheet import sheet_of
    from desist.commands.certifying_groups import calibrate_by_groups, group_flags, show_groups
    from desist.proxy.answering.estimates import StepTable

    if from_audits is not None:
        return _recertify(from_audits, certificate, delta, out, as_json)
    if traces is None or not alpha:
        raise typer.BadParameter("give a file of traces and --alpha, or --from-audits with --certificate.")
    grouping = group_flags(group_by, min_group, joint, small_groups, length_edges, alpha)
    with status("reading", quiet), _without_gc():
        collected = read(traces)
        name = scorer or only_scorer(collected)
        found_in = declared(() if grouping else collected)  # groups may be made differently, each by itself
        stored = dict(found_in.fingerprints)
        collected, key = weighted_traces(collected, method, shift, weights, seed, stored)
        forbidden, checked = _probe(probe, name, stored, quiet)
        with status("calibrating", quiet):
            settings: dict[str, Any] = {
                "loss": loss, "scorer": name, "method": method, "patience": patience,
                "warmup_tokens": warmup, "ema": ema, "kinds": certified_kinds(kinds),
                "trace_score": trace_score, "risks": risk_levels(risk), "give_up_alpha": give_up_alpha,
                "give_up_after": give_up_after, "weights": key, "max_weight": max_weight,
                "answer_mode": answer or found_in.answer_mode, "judge": judge or found_in.judge,
                "truncated": truncated, "samples": samples, "missing": missing, "seed": seed,
                "created": today(), "forbidden_problems": forbidden, "fingerprints": stored,
                "floors": floor_shares(floor),
            }  # fmt: skip
            shown: dict[str, Any] = {
                "missing": missing, "floors": floor_shares(floor), "tokens_per_second": tokens_per_second,
                "audit_share": audit_share, "texts": texts, "command": _command(),
            }  # fmt: skip
            if grouping is not None:

                def own(members: Sequence[Trace]) -> dict[str, Any]:
                    said = declared(members)
                    prints = {**said.fingerprints, **stored}
                    return {
                        "fingerprints": prints, "judge": judge or said.judge,
                        "answer_mode": answer or said.answer_mode,
                    }  # fmt: skip

                several, drawn, groups = calibrate_by_groups(
                    grouping, collected, alpha=alpha[0], delta=delta, settings=settings, own=own,
                    test=read(test) if test else (), figures=shown, valid_days=valid_days,
                )  # fmt: skip
                _write([out / name for name in _FILES], drawn)
                warned = _warnings(drawn)
                payload = {
                    "warnings": warned, "report": str(out / "report.html"), "overlap_checked": checked
                }  # fmt: skip
                return show_groups(several, drawn, groups, out, payload, as_json=as_json)
            prepared = prepare(collected, alpha=alpha[0], delta=delta, **settings)
            found = expiring(prepared.certify(), valid_days)
            sheet = sheet_of(prepared, alpha) if len(alpha) > 1 else None
            figures = calibration_figures(
                found, collected, test=read(test) if test else (), **shown,
                evidence=prepared.evidence,
                alphas=() if sheet is None else [point.alpha for point in sheet.points],
            )  # fmt: skip
            _write([out / name for name in _FILES], [figures])
    payload = _payload(found, figures, out, checked)
    payload["warnings"], pointing = _warnings([figures]), direction_words(figures)
    if sheet is not None:
        payload |= save_sheet(sheet, out, valid_days)
        pointing = f"{pointing}\n{sheet.note}"
    if isinstance(found, CannotCertify):
        show(payload, as_json=as_json, words=f"{found.message}\n{pointing}")
        return REFUSED
    payload["certificate"] = str(found.save(out / "certificate.json"))
    StepTable.from_traces(collected).save(out / "certificate.estimates.json")
    words = f"certified: lam = {found.lam:.6g}, saves {found.saved_fraction:.1%} on calibration\n{found.text}"
    show(payload, as_json=as_json, words=f"{words}\n{pointing}")
    return 0


@app.command()
def report(
    traces: Annotated[
        Path | None, typer.Argument(help="The scored traces that were calibrated on.", exists=True)
    ] = None,
    certificates: Annotated[
        list[Path] | None, typer.Option("--certificate", help="One or several certificates.")
    ] = None,
    figures: Annotated[
        list[Path] | None, typer.Option("--figures", help="report.json files: no traces are needed.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="File to write: .html, .md or .json; a folder: all three.")
    ] = Path("report.html"),
    test: Test = None,
    floor: Floor = None,
    missing: Annotated[
        Literal["refuse", "pass"], typer.Option(help="Boundaries without a score: refuse, or pass over.")
    ] = "refuse",
    tokens_per_second: Speed = None,
    audit_share: AuditShare = 0.0,
    texts: Texts = False,
    alpha: Annotated[
        list[str] | None, typer.Option("--alpha", help="Levels of the operating points. Repeatable.")
    ] = None,
    shift: Shift = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a calibration report again: HTML that opens offline, Markdown, JSON."""
    from desist.calibration import load_certificate
    from desist.calibration.figures import calibration_figures, load_figures
    from desist.calibration.group_keys import members_of

    drawn: list[Figures] = [one for path in figures or () for one in load_figures(path)]
    if certificates and traces is None:
        raise typer.BadParameter("--certificate needs the traces that it was calibrated on. Give their file.")
    if traces is not None and certificates:
        with status("reading", quiet), _without_gc():
            collected, other = read(traces), read(test) if test else ()
            for path in certificates:
                own = load_certificate(path, force=True)
                rule = own.group_rule
                weighted = shift if own.method == "weighted" else None
                mine, _ = weighted_traces(collected, own.method, weighted, own.weights, own.seed, {})
                held = other
                if rule is not None:
                    mine = members_of(rule, own.group or "", mine)
                    held = members_of(rule, own.group or "", other)
                drawn.append(calibration_figures(
                    own, mine, test=held, missing=missing, floors=floor_shares(floor),
                    tokens_per_second=tokens_per_second, audit_share=audit_share, texts=texts,
                    command=_command(), alphas=alpha or (),
                ))  # fmt: skip
    if not drawn:
        raise typer.BadParameter("there is nothing to report. Give traces with --certificate, or --figures.")
    files = [out] if out.suffix.lower() in _ENDINGS else [out / name for name in _FILES]
    written = _write(files, drawn)
    show(
        {"out": str(out), "files": [str(path) for path in written]}, as_json=as_json, words=f"report in {out}"
    )


def _recertify(folder: Path, certificate: Path | None, delta: str, out: Path, as_json: bool) -> int:
    """The threshold that is in use, on the traffic that was audited."""
    from desist.calibration import CannotCertify, load_certificate
    from desist.calibration.audits import AuditTable, certificate_diff, recertify
    from desist.calibration.monitor_folder import MonitorFolder

    if certificate is None:
        raise typer.BadParameter("--from-audits needs --certificate: the one whose audits these are.")
    old = load_certificate(certificate)
    records = AuditTable(MonitorFolder(folder, write=False)).records(old.digest)
    found = recertify(old, records, created=today(), delta=delta)
    plain = {"certified": found.certified, **found.model_dump(mode="json", exclude={"problems"})}
    plain |= {"threshold": old.lam, "audits": len(records)}
    if isinstance(found, CannotCertify):
        show(plain, as_json=as_json, words=found.message)
        return REFUSED
    changes = certificate_diff(old, found)
    plain |= {"changed": {each.field: [each.old, each.new] for each in changes}}
    plain["certificate"] = str(found.save(out / "certificate.json"))
    words = "\n".join([found.text, *(f"{each.field}: {each.old} -> {each.new}" for each in changes)])
    show(plain, as_json=as_json, words=words)
    return 0


@contextmanager
def _without_gc() -> Iterator[None]:
    """Millions of small objects are made and none dies: to look through them takes seconds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _probe(
    probe: Path | None, scorer: str, stored: dict[str, str], quiet: bool
) -> tuple[frozenset[str], bool]:
    if probe is None:
        if not quiet:
            err.print("no --probe given: overlap with its training problems is not checked", style="yellow")
        return frozenset(), False
    from desist.probes import load_probe
    from desist.probes.artifact import probe_fingerprint

    loaded = load_probe(probe)
    stored[scorer] = probe_fingerprint(loaded)
    return frozenset(loaded.card.problems), True


def _command() -> str:
    return shlex.join(["desist", *sys.argv[1:]])


def _write(files: Sequence[Path], drawn: Sequence[Figures]) -> Sequence[Path]:
    from desist.calibration.report import write_report
    from desist.calibration.report_markdown import report_markdown
    from desist.data.jsonl import atomic_file

    for path in files:
        if path.suffix.lower() == ".html":
            write_report(path, drawn)
            continue
        if path.suffix.lower() == ".md":
            text = report_markdown(drawn)
        else:
            text = json.dumps([one.model_dump(mode="json") for one in drawn], indent=1, ensure_ascii=False)
        with atomic_file(path) as file:
            file.write(text.encode())
    return files


def _warnings(drawn: Sequence[Figures]) -> list[str]:
    """What is told loudly, also with --quiet."""
    from desist.calibration.report_words import direction_warning

    told = []
    for figures in drawn:
        if (warning := direction_warning(figures)) is not None:
            group = figures.certified.group
            told.append(warning if group is None else f"group {group}: {warning}")
            err.print(told[-1], style="bold red", highlight=False)
    return told


def _payload(
    found: Certificate | CannotCertify, figures: Figures, out: Path, checked: bool
) -> dict[str, Any]:
    """The JSON object. Of a refusal: no threshold, the reason, and how many problems are needed."""
    from desist.calibration.certificate import Certificate
    from desist.calibration.refusals import smallest_problems

    held = figures.held_out
    plain = found.model_dump(mode="json", exclude={"problems"})
    plain |= {
        "certified": found.certified,
        "guarantee": found.guarantee if found.certified else "none",
        "threshold": getattr(found, "lam", None),
        "n": found.n,
        "needed_n": smallest_problems(found) if isinstance(found, Certificate) else found.needed_n,
        "holdout_risk": None if held is None else held.risk,
        "holdout_ci": None if held is None else [held.low, held.high],
        "holdout": None if held is None else held.model_dump(),
        "saved_fraction": getattr(found, "saved_fraction", 0.0),
        "auroc": figures.direction and figures.direction.auroc,
        "n_traces": figures.stopped.n,
        "n_fired": figures.stopped.count,
        "never_fired": 1 - figures.stopped.value,
        "report": str(out / "report.html"),
        "overlap_checked": checked,
    }
    if not isinstance(found, Certificate):
        plain["message"] = found.message
    return plain
