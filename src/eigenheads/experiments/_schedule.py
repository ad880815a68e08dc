"""Which cells go together, what they cost, and what to do when a worker is lost."""

import random
import threading
from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

# Seconds of work in a block, which is what a kill may lose.
BLOCK_SECONDS = 0.5
# The process that stores the results takes care of at most this many blocks a second.
_BLOCKS_A_SECOND = 50
# A block that takes this many times as long as planned is given back unfinished.
PATIENCE = 2.0
# A cell that was under way when a worker died is tried again; the third time alone.
MAX_LOSSES = 3


@dataclass(frozen=True)
class Task:
    """One cell to do: the index of its point, and its seed."""

    point: int
    seed: int


class Schedule:
    """Cells that wait, blocks that are under way, and the cost of each point.

    Blocks may be asked for by another thread than the one that takes the answers.

    Parameters
    ----------
    tasks
        Cells to do, in the order in which to begin them.
    n_workers
        How many blocks run side by side.
    """

    def __init__(self, tasks: Sequence[Task], n_workers: int) -> None:
        self.pending = deque(tasks)
        self.under_way: dict[int, list[Task]] = {}
        self.given_up: list[Task] = []
        self._losses: dict[Task, int] = {}
        self._n_workers = n_workers
        self._number = 0
        self._cost: dict[int, float] = {}
        self._usual: float | None = None
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds of work to aim at in a block."""
        return max(BLOCK_SECONDS, self._n_workers / _BLOCKS_A_SECOND)

    def blocks(self) -> Iterator[tuple[int, list[Task]]]:
        """Yield numbered blocks till no cell waits; each is then under way."""
        while block := self._begin_block():
            yield block

    def _begin_block(self) -> tuple[int, list[Task]] | None:
        with self._lock:
            if not self.pending:
                return None
            block = self._next_block()
            self._number += 1
            self.under_way[self._number] = block
            return self._number, block

    def _next_block(self) -> list[Task]:
        block = [self.pending.popleft()]
        if self._usual is None or self._losses.get(block[0]):
            return block
        aim = self._aim(self._usual * len(self.pending))
        cost = self._expected(block[0])
        while self.pending and not self._losses.get(self.pending[0]):
            cost += self._expected(self.pending[0])
            if cost > aim:
                break
            block.append(self.pending.popleft())
        return block

    def _aim(self, left: float) -> float:
        """Return the seconds of the next block when so much work is left.

        Towards the end blocks become small, so that all workers end together.
        """
        if self._n_workers == 1:
            return self.seconds
        share = left / (2 * self._n_workers)
        return min(self.seconds, max(share, BLOCK_SECONDS / 10))

    def _expected(self, task: Task) -> float:
        return self._cost.get(task.point, self._usual or 0.0)

    def finish(self, number: int, seconds: Sequence[float]) -> list[Task]:
        """Take the times of a block's finished cells; the rest waits again.

        Returns the finished cells, in the order of their times.
        """
        with self._lock:
            block = self.under_way.pop(number)
            done, rest = block[: len(seconds)], block[len(seconds) :]
            self._learn(done, seconds)
            for task in done:
                self._losses.pop(task, None)
            self.pending.extendleft(reversed(rest))
        return done

    def leave_out(self, stored: Container[Task]) -> int:
        """Leave waiting cells to others who have stored them; return how many.

        Who is not alone goes on in an order of its own, so that they rarely do the
        same cells.
        """
        with self._lock:
            left = [task for task in self.pending if task not in stored]
            count = len(self.pending) - len(left)
            random.shuffle(left)
            self.pending = deque(sorted(left, key=self._suspicion))
        return count

    def _learn(self, done: Sequence[Task], seconds: Sequence[float]) -> None:
        """Take the means over the block: one cell may have been disturbed."""
        if not done:
            return
        times: dict[int, list[float]] = {}
        for task, taken in zip(done, seconds, strict=True):
            times.setdefault(task.point, []).append(taken)
        self._cost.update({point: fmean(taken) for point, taken in times.items()})
        self._usual = fmean(seconds)

    def lose(self) -> None:
        """Put back what was under way, last in line; give up what kills repeatedly."""
        lost = [task for block in self.under_way.values() for task in block]
        self.under_way.clear()
        for task in lost:
            self._losses[task] = self._losses.get(task, 0) + 1
        self.given_up += [task for task in lost if self._losses[task] >= MAX_LOSSES]
        self.pending.extend(task for task in lost if task not in self.given_up)
        self.pending = deque(sorted(self.pending, key=self._suspicion))

    def _suspicion(self, task: Task) -> int:
        return self._losses.get(task, 0)

    def begin_round(self) -> tuple[bool, list[Task]]:
        """Say whether cells must run alone now, and which are kept for such a round.

        Those that a second loss made suspects wait till all others are done.
        """
        suspects = [t for t in self.pending if self._suspicion(t) >= MAX_LOSSES - 1]
        if len(suspects) == len(self.pending):
            return True, []
        self.pending = deque(t for t in self.pending if t not in set(suspects))
        return False, suspects
