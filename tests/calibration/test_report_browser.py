"""The report in a real Chromium: the plots are drawn, and nothing is asked for but the file itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from desist.calibration.calibrate import calibrate
from desist.calibration.report import write_report
from tests.fakes.traces import make_traces

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# The browser's own errands (updates, safe browsing) are none of the page's: they get no address, and in its
# log of requests they have no origin.
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> str:
    named = os.environ.get("DESIST_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if named is None:
        pytest.skip("no Chromium is installed: put one on PATH or name it in DESIST_CHROMIUM")
    return named


def opened(chromium: str, page: Path, home: Path) -> tuple[str, set[str]]:
    """The page as the browser holds it after it was drawn, and every address that it asked for."""
    log = home / "net.json"
    folders = (
        f"--user-data-dir={home / 'profile'}",
        f"--log-net-log={log}",
        f"--screenshot={home / 's.png'}",
    )
    command = [chromium, *_FLAGS, *folders, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    net = json.loads(log.read_text())
    start = net["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    events = (event["params"] for event in net["events"] if event["type"] == start and "params" in event)
    own = ("not an origin", None)
    return done.stdout, {each["url"] for each in events if "url" in each and each.get("initiator") not in own}


def test_plots_are_drawn_and_no_request_leaves_the_file(chromium: str, tmp_path: Path) -> None:
    traces = make_traces(300, 21, noise=1.5)
    found = calibrate(traces, alpha=0.1, delta=0.1, loss="consistency", forbidden_problems=())
    page = write_report(tmp_path / "report.html", [found], traces)
    dom, asked = opened(chromium, page, tmp_path)
    assert dom.count("<svg") == dom.count("</svg>") == 6
    for part in ("polyline", "circle", '<rect class="bar good"', "What voids it", "Of 1,000 requests"):
        assert part in dom
    assert not asked


def test_the_check_sees_a_request_that_leaves(chromium: str, tmp_path: Path) -> None:
    page = tmp_path / "leaks.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png">')
    _, asked = opened(chromium, page, tmp_path)
    assert "http://127.0.0.1:9/x.png" in asked
