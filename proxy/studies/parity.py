"""`desist study parity`: the live system against the offline replay, and against company.

For each problem the stop index reported by the proxy over HTTP is held against that of the replay on the
saved full trace, and the text under sixteen concurrent clients against that of one client at a time. Knows
requests and traces; decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from desist.calibration.certificate import CannotCertify, Certificate
from desist.controller import Control, replay_trace
from desist.data.errors import CalibrationError
from desist.data.schema import Problem, Sampling, Trace
from desist.proxy.app import create_app
from desist.proxy.collection.batch_runs import request_seed
from desist.proxy.lifecycle.serve import listen
from desist.proxy.settings import Settings
from desist.proxy.studies.builtin import Builtin, builtin_problems
from desist.proxy.studies.demo import certify_builtin
from desist.proxy.studies.scored import full_traces

__all__ = ["ParityReport", "ParityRow", "study_parity"]

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParityRow:
    """One scorer and sampler. `stop_differs`: live and replayed stop index differ; `company_differs`: the
    text under concurrent clients differs from that of one at a time; `n_stopped`: live stops by score."""

    scorer: str
    sampler: str
    n: int
    n_stopped: int
    stop_differs: int
    company_differs: int


@dataclass(frozen=True, slots=True)
class ParityReport:
    """All rows. `exact` when nothing differs anywhere."""

    rows: tuple[ParityRow, ...]

    @property
    def exact(self) -> bool:
        return not any(row.stop_differs or row.company_differs for row in self.rows)


def study_parity(
    builtin: Builtin,
    *,
    seed: int,
    n: int = 200,
    clients: int = 16,
    scorers: Sequence[str] = ("probe", "rom"),
    alpha: str = "0.1",
) -> ParityReport:
    """Run `n` test problems through the proxy and offline, sampled and greedy, for each scorer."""
    problems = builtin_problems("test", seed, n)
    greedy = replace(builtin.sampling, temperature=0.0, top_p=1.0)
    certificates = [_certificate(builtin, scorer, alpha) for scorer in scorers]
    rows = []
    for sampler, sampling in (("sampled", builtin.sampling), ("greedy", greedy)):
        traces = full_traces(builtin, problems, sampling=sampling, seed=seed)
        for certified in certificates:
            with tempfile.TemporaryDirectory() as folder:
                path = certified.save(Path(folder) / "certificate.json")
                live = asyncio.run(_ask_all(path, problems, sampling, seed, clients))
                alone = asyncio.run(_ask_all(path, problems, sampling, seed, 1))
            rows.append(_row(builtin, certified, sampler, sampling, traces, live, alone))
    return ParityReport(tuple(rows))


def _certificate(builtin: Builtin, scorer: str, alpha: str) -> Certificate:
    certified, _ = certify_builtin(builtin, alpha=alpha, delta="0.05", loss="consistency", scorer=scorer)
    if isinstance(certified, CannotCertify):
        raise CalibrationError(f"no certificate for scorer '{scorer}': {certified.message}")
    return certified


def _row(
    builtin: Builtin,
    certified: Certificate,
    sampler: str,
    sampling: Sampling,
    traces: Sequence[Trace],
    live: Sequence[Body],
    alone: Sequence[Body],
) -> ParityRow:
    control = Control(mode="active", policy=certified.policy())
    handoff = builtin.handoff_tokens(control.answer)
    stops = [
        replay_trace(trace, control, max_tokens=sampling.max_tokens, handoff_tokens=handoff).stop_index
        for trace in traces
    ]
    return ParityRow(
        certified.scorer,
        sampler,
        len(traces),
        sum(body["desist"]["stop_reason"] == "probe" for body in live),
        sum(body["desist"]["stop_index"] != stop for body, stop in zip(live, stops, strict=True)),
        sum(_text(a) != _text(b) for a, b in zip(live, alone, strict=True)),
    )


def _text(body: Body) -> tuple[Any, Any]:
    message = body["choices"][0]["message"]
    return message.get("reasoning"), message["content"]


async def _ask_all(
    certificate: Path, problems: Sequence[Problem], sampling: Sampling, seed: int, clients: int
) -> list[Body]:
    """Responses of a proxy with this certificate to all problems, `clients` at a time."""
    gate = asyncio.Semaphore(clients)
    async with _serving(Settings(certificates=(certificate,))) as address, aiohttp.ClientSession() as session:

        async def ask(problem: Problem) -> Body:
            body = {
                "model": "desist-reasoner",
                "messages": [{"role": "user", "content": problem.text}],
                "seed": request_seed(seed, problem.problem_id),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_tokens,
                "desist": {"mode": "active"},
            }
            async with gate, session.post(f"{address}/v1/chat/completions", json=body) as response:
                found: Body = await response.json()
                if response.status != 200:
                    raise CalibrationError(f"the proxy answered {response.status}: {found}")
                return found

        return list(await asyncio.gather(*(ask(problem) for problem in problems)))


@contextlib.asynccontextmanager
async def _serving(settings: Settings) -> AsyncIterator[str]:
    """A proxy on a free port of this machine, for the length of the block."""
    sock = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_config=None, lifespan="on"))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise CalibrationError("the proxy did not start. Start it with `desist serve` to see why.")
            await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        sock.close()
