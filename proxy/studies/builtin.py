"""The built-in reasoner with everything that belongs to it: model, probes, problems, calibration traces.

Knows where the parts lie and how they are loaded together; nothing of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from desist.controller import AnswerMode, ModelProfile, builtin_profile
from desist.data.errors import CalibrationError, EngineError
from desist.data.records import read_traces
from desist.data.schema import Problem, Sampling, Trace
from desist.data.splits import Split, problem_id, split_of
from desist.probes.lynx import LynxProbe
from desist.probes.rom import RomProbe
from desist.proxy.engines.embedded.artefacts import builtin_model, builtin_probes, load_scorers
from desist.proxy.engines.embedded.loading import LoadedModel, default_sampling, load_model

__all__ = [
    "DATASET",
    "Builtin",
    "builtin_problems",
    "builtin_taps",
    "calibration_traces",
    "load_builtin",
    "refuse_seen",
]

DATASET = "desist-word-problems"


@dataclass(frozen=True)
class Builtin:
    """The built-in reasoner, loaded. `probe` and `rom` are None before they were trained."""

    model: LoadedModel
    profile: ModelProfile
    sampling: Sampling
    probe: LynxProbe | None = None
    rom: RomProbe | None = None

    def required_probe(self) -> LynxProbe:
        """The boundary probe. Raises `EngineError` where there is none."""
        if self.probe is None:
            raise EngineError("the built-in probe is missing. Make it with `make builtin`.")
        return self.probe

    def handoff_tokens(self, answer: AnswerMode) -> int:
        """Length of the hand-off that a stop forces, in tokens."""
        return len(self.model.vocabulary.encode(self.profile.handoff(answer)))


def load_builtin(*, threads: int | None = None, device: str = "auto", probes: bool = True) -> Builtin:
    """Load the built-in reasoner and its probes, checked against each other."""
    folder = builtin_model()
    model = load_model(folder, device=device, threads=threads)
    profile, sampling = builtin_profile(), default_sampling(folder)
    if not probes:
        return Builtin(model, profile, sampling)
    probe, rom = builtin_probes()
    expect = model.fingerprints_with(profile, sampling=sampling)
    found = load_scorers(probe, rom, expect=expect, force=False, device=model.network.device)
    if found.probe is not None and not isinstance(found.probe, LynxProbe):
        raise EngineError(
            f"the built-in probe {probe} is no boundary probe. Make it anew with `make builtin`."
        )
    if found.rom is not None and not isinstance(found.rom, RomProbe):
        raise EngineError(f"the built-in head {rom} is no streaming head. Make it anew with `make builtin`.")
    return Builtin(model, profile, sampling, found.probe, found.rom)


def builtin_problems(split: Split, seed: int, n: int) -> list[Problem]:
    """`n` distinct word problems of one split, drawn from the seed."""
    from desist.data.reasoner.problems import draw_problems

    drawn = draw_problems(seed, n, keep=lambda identity: split_of(identity) == split)
    return [Problem(problem_id(p.text), p.text, p.gold, p.template, DATASET) for p in drawn]


def builtin_taps(n_layers: int) -> tuple[int, ...]:
    """The taps of the LYNX recipe: about 1/4, 1/2 and 3/4 of the depth, and the last layer."""
    return tuple(sorted({max(1, round(n_layers * share)) for share in (0.25, 0.5, 0.75)} | {n_layers}))


def calibration_traces() -> Iterator[Trace]:
    """The scored traces that the built-in certificates were made from."""
    import desist.calibration

    path = Path(desist.calibration.__file__).parent / "builtin" / "traces.jsonl.gz"
    if not path.is_file():
        raise CalibrationError(
            f"the built-in calibration traces are not at {path}. Make them: `make builtin`."
        )
    return read_traces(path)


def refuse_seen(problems: Sequence[Problem], *seen: frozenset[str]) -> None:
    """Raise `CalibrationError` if a problem was used in training or calibration."""
    used = [p.problem_id for p in problems if any(p.problem_id in known for known in seen)]
    if used:
        raise CalibrationError(
            f"{len(used)} problems were used before, for example {used[0]}. Draw from the split 'test'."
        )
