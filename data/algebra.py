"""Algebra in a process of its own: math-verify with a time limit that nothing can outlast.

Knows how to ask math-verify whether two expressions are equal, and how to end it when it does not come
back: big powers and some simplifications hang inside C code, where no exception reaches them, so the
worker is killed and started anew. Works from any thread, and again after a fork. Does not know how
answers are written (that is `forms`) nor plain numbers (`quantities`).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import weakref
from typing import Any

from desist.data.errors import DataError

__all__ = ["AlgebraTimeout", "AlgebraWorker"]

_START_LIMIT_S = 120.0
_CLOCK_FACTOR = 10
_MEMORY_BYTES = 4 << 30
_ROUNDED_DECIMALS = 3


class AlgebraTimeout(Exception):
    """A comparison did not come back within its limit; the worker was ended."""


class AlgebraWorker:
    """A lazily started worker process. `equal` is thread-safe; comparisons run one after another.

    `limit_s` counts seconds of processor time, so that a verdict does not depend on how busy the machine
    is; where the system has no such timer, and as a last resort, ten times as long on the clock.
    """

    def __init__(self, limit_s: float = 3.0) -> None:
        self.limit_s = limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._owner = 0

    def equal(self, a: str, b: str) -> bool:
        """Whether two expressions are equal. Raises `AlgebraTimeout` where it takes over `limit_s`."""
        with self._lock:
            self._started()
            reply = self._ask({"a": a, "b": b, "limit_s": self.limit_s}, _CLOCK_FACTOR * self.limit_s)
        return reply == "true"

    def close(self) -> None:
        """End the worker. A later `equal` starts another one."""
        with self._lock:
            self._end()

    def _started(self) -> None:
        process = self._process
        if process is not None and self._owner == os.getpid() and process.poll() is None:
            return
        if self._owner == os.getpid():
            self._end()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "desist.data.algebra"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        self._process, self._owner, self._lines = process, os.getpid(), queue.Queue()
        threading.Thread(target=_pump, args=(process, self._lines), daemon=True).start()
        weakref.finalize(self, _kill, process, os.getpid())
        try:
            self._ask(None, _START_LIMIT_S)
        except AlgebraTimeout:
            raise DataError(
                "the algebra worker did not start. Run `python -m desist.data.algebra` to see why."
            ) from None

    def _ask(self, request: dict[str, Any] | None, limit_s: float) -> str:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            if request is not None:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            reply = self._lines.get(timeout=limit_s)
        except (queue.Empty, OSError):
            reply = ""
        if not reply:
            self._end()
            raise AlgebraTimeout(f"no result within {self.limit_s:g} s")
        return reply

    def _end(self) -> None:
        if self._process is not None:
            _kill(self._process, self._owner)
        self._process = None


def _kill(process: subprocess.Popen[str], owner: int) -> None:
    if owner == os.getpid() and process.poll() is None:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and owner == os.getpid():
            with contextlib.suppress(OSError, ValueError):
                pipe.close()


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(OSError, ValueError):
        for line in process.stdout:
            lines.put(line.strip())
    lines.put("")


def _guard() -> None:
    """Bound the worker's memory, so that a power tower cannot take the machine down."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _limit(seconds: float) -> None:
    """Have the system itself end this process after so much processor time. 0 lifts the limit."""
    with contextlib.suppress(ImportError, AttributeError):
        import signal

        signal.setitimer(signal.ITIMER_PROF, seconds)


def _rounds_to(literal: str, value: Any) -> bool:
    """Whether a decimal literal is `value` rounded to the places it has."""
    sympy: Any = importlib.import_module("sympy")
    whole, point, places = literal.lstrip("+-").partition(".")
    if not point or len(places) < _ROUNDED_DECIMALS or not (whole + places).isdigit():
        return False
    if not isinstance(value, sympy.Expr) or value.free_symbols or not value.is_number:
        return False
    return bool(abs(sympy.N(value, 30) - sympy.Rational(literal)) <= sympy.Rational(1, 2 * 10 ** len(places)))


def _compare(a: str, b: str) -> bool:
    from math_verify import LatexExtractionConfig, parse, verify

    latex: Any = importlib.import_module("latex2sympy2_extended.latex2sympy2")
    spelling = latex.NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )
    target = (LatexExtractionConfig(boxed_match_priority=-1, normalization_config=spelling),)
    left, right = (
        parse(f"${text}$", extraction_config=target, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (a, b)
    )
    if not left or not right:
        return False
    if verify(left, right, timeout_seconds=None) or verify(right, left, timeout_seconds=None):
        return True
    return _rounds_to(a, right[0]) or _rounds_to(b, left[0])


def _serve() -> None:
    import logging

    logging.disable(logging.CRITICAL)
    _guard()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever a library prints must not look like a reply
    _compare("(x+1)^2", "x^2+2x+1")  # so that no comparison pays for imports
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        request = json.loads(line)
        _limit(request["limit_s"])
        try:
            reply = "true" if _compare(request["a"], request["b"]) else "false"
        except Exception:
            reply = "false"  # what the parser cannot read is not equal to anything but itself
        _limit(0)
        replies.write(reply + "\n")
        replies.flush()


if __name__ == "__main__":
    _serve()
