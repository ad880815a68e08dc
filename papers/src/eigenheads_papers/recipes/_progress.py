"""Progress of a training run on standard error, and its notice of SIGTERM."""

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noticing_sigterm() -> Iterator[list[bool]]:
    """Yield a flag that SIGTERM sets, so that a run stops after the update."""
    flag = [False]

    def notice(number: int, frame: FrameType | None) -> None:
        flag[0] = True

    try:
        before = signal.signal(signal.SIGTERM, notice)
    except ValueError:  # signals can only be handled in the main thread
        yield flag
        return
    try:
        yield flag
    finally:
        signal.signal(signal.SIGTERM, before)


class ProgressLine:
    """Updates, loss and time left, on standard error, at most every few seconds."""

    def __init__(self, n_steps: int, step: int, *, shown: bool) -> None:
        self._n_steps, self._first, self._shown = n_steps, step, shown
        self._begun = time.monotonic()
        self._every = 0.5 if sys.stderr.isatty() else 30.0
        self._last = -math.inf

    def show(self, step: int, loss: float) -> None:
        """Show the state after an update."""
        now = time.monotonic()
        if not self._shown or (now - self._last < self._every and step < self._n_steps):
            return
        self._last = now
        # Updates of an earlier call took none of this time, so they do not count.
        per_step = (now - self._begun) / (step - self._first)
        left = round(per_step * (self._n_steps - step))
        text = f"update {step}/{self._n_steps}, loss {loss:.4f}, {_clock(left)} left"
        is_terminal = sys.stderr.isatty()
        # On a terminal each line replaces the one before. Elsewhere every line is kept.
        end = "\n" if not is_terminal or step == self._n_steps else ""
        start = "\r\033[K" if is_terminal else ""
        sys.stderr.write(start + text + end)
        sys.stderr.flush()


def _clock(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
