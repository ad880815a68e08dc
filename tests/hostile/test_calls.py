"""Every public callable, with hostile values in every argument.

The outcome must be a result that is finite or documented otherwise, or a sentence in
our grammar: never a crash, a hang, too much memory, or a finite number from NaN. The
calls start from right ones, those of the examples of the docstrings or of examples.py:
a public function or method without an example fails as well.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile.calls import SECONDS, public_names

NAMES = public_names()
# Cases of each name in `make test`; `make test-all` has all of them.
SAMPLE = 8
TOO_LONG = (-signal.SIGPROF, -signal.SIGALRM)
ROOT = Path(__file__).parents[2]


class Caller:
    """Process that makes the calls; another one takes its place when it ends."""

    def __init__(self) -> None:
        self.process = None

    def failures(self, name, sample):
        """Return one line for each hostile call of a public name that ends badly."""
        found, first, is_repeated = [], 0, False
        while True:
            begun, label, is_done = self._follow([name, first, sample], found)
            if is_done:
                return found
            status = self.close()
            # Perhaps it was compiling: the second time code is in the cache.
            if status in TOO_LONG and not (is_repeated and begun == first):
                first, is_repeated = begun, True
                continue
            ended = status in TOO_LONG
            what = f"no end after {SECONDS:.0f} s" if ended else f"status {status}"
            found.append(f"{label or name}: {what}")
            if begun is None:  # it ended before the first call, and would again
                return found
            first, is_repeated = begun + 1, False

    def _follow(self, request, found):
        """Return the last call that began, its label, and whether all ended."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.hostile.calls"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        begun, label = None, ""
        for line in self.process.stdout:
            kind, *rest = json.loads(line)
            if kind == "done":
                return begun, label, True
            if kind == "begin":
                begun, label = rest
            elif kind == "missing" and request[1] == 0:
                found += [f"{call}: no right call in an example" for call in rest[0]]
            elif kind == "end" and rest[1]:
                found.append(f"{label}: {rest[1]}")
        return begun, label, False

    def close(self):
        """End the process; return its status."""
        if self.process is None:
            return None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()
        status, self.process = self.process.wait(), None
        return status


@pytest.fixture(scope="module")
def caller():
    caller = Caller()
    yield caller
    caller.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_hostile_calls(caller, name):
    assert not (wrong := caller.failures(name, SAMPLE)), "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_all_hostile_calls(caller, name):
    assert not (wrong := caller.failures(name, None)), "\n".join(wrong)
