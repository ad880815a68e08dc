"""Drives a worker: starts it, waits with a time limit, starts it again if it ends."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

# Processor time that a call may take, and time by the clock if it only waits.
SECONDS = 10.0
WAITING_SECONDS = 60.0
# The first answer waits for imports, compilation and the examples of the docstring.
FIRST_SECONDS = 300.0
ROOT = Path(__file__).parents[2]


class Runner:
    """One worker process at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def failures(self, name: str, sample: int | None = None) -> list[str]:
        """Return one line for each hostile call of a public name that ends badly."""
        found: list[str] = []
        first, is_repeated = 0, False
        while True:
            self._send([name, first, sample])
            begun, label, is_done = self._follow(found, is_first=first == 0)
            if is_done:
                return found
            status = self._stop()
            is_repeated = is_repeated and begun in (None, first)
            first = first if begun is None else begun
            if status is None and not is_repeated:
                # Perhaps it was compiling: the second time code is in the cache.
                is_repeated = True
                continue
            what = (
                f"no end after {SECONDS:.0f} s" if status is None else f"died, {status}"
            )
            found.append(f"{label or name}: {what}")
            if begun is None:  # it ended before the first call, and would again
                return found
            first, is_repeated = first + 1, False

    def _follow(
        self, found: list[str], *, is_first: bool
    ) -> tuple[int | None, str, bool]:
        """Read answers; return the last call that began, its label, and if all ended.

        Failures are added to `found`.
        """
        begun, label, is_call = None, "", False
        while (answer := self._receive(is_call)) is not None:
            is_call = answer[0] == "begin"
            if answer[0] == "done":
                return begun, label, True
            if is_call:
                begun, label = answer[1], answer[2]
            elif answer[0] == "missing" and is_first:
                found += [f"{one}: no right call in an example" for one in answer[1]]
            elif answer[0] == "end" and answer[2]:
                found.append(f"{label}: {answer[2]}")
        return begun, label, False

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._stop()

    def _send(self, request: list[object]) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _start(self) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self._lines = queue.Queue()
        arguments = (self._process.stdout, self._lines)
        self._reader = threading.Thread(target=_read, args=arguments, daemon=True)
        self._reader.start()

    def _receive(self, is_call: bool) -> list | None:
        """Return the next answer; None if the worker ended, or took too long."""
        assert self._process is not None
        began, busy = time.monotonic(), _processor_seconds(self._process.pid)
        while True:
            try:
                line = self._lines.get(timeout=0.5)
            except queue.Empty:
                waited = time.monotonic() - began
                used = _processor_seconds(self._process.pid) - busy
                if waited > (WAITING_SECONDS if is_call else FIRST_SECONDS):
                    return None
                if is_call and used > SECONDS:
                    return None
                continue
            return None if line is None else json.loads(line)

    def _stop(self) -> str | None:
        """End the worker; return how it had ended by itself, None if it had not."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            status = None
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process = None
        return None if status is None else f"exit status {status}"


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(stream, lines: queue.Queue) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
