"""Audits end to end on the built-in reasoner: both verdicts are those of runs that nobody audited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.audits import SEED, audit_part, engine, report, serve, truth
from desist.calibration.audits import AuditTable
from desist.calibration.monitor_folder import MonitorFolder
from desist.proxy.studies.builtin import builtin_problems

LAM = 0.5


@pytest.mark.slow
def test_audits_measure_the_loss_of_the_requests_and_change_nothing(tmp_path: Path) -> None:
    n = 40
    asyncio.run(audit_part(tmp_path, n, LAM, 1e6, 1))
    with MonitorFolder(tmp_path, write=False) as folder:
        records = AuditTable(folder).records()
    assert len(records) == n
    simulated = truth(n, LAM, SEED)["by_problem"]
    lost = {name[:16]: different for name, different in simulated.items()}
    assert {record.problem.decode(): record.lost for record in records} == lost
    assert report(tmp_path, None)["stopped"] > n // 2

    async def paired() -> None:
        running = engine(1)
        await running.start()
        problems = builtin_problems("test", SEED, 20)
        plain, none, _ = await serve(running, problems, LAM, audit=False)
        audited, told, _ = await serve(running, problems, LAM, audit=True)
        await running.close()
        assert none == {}
        assert len(told) == len(problems)
        assert plain == audited  # usage, stops, scores: everything the client is told

    asyncio.run(paired())
