"""Hands blocks of cells to an engine, stores what comes back, and tries again."""

import time
from collections.abc import Iterator

from eigenheads._parallel import advance, reporting
from eigenheads.experiments._cells import Address, CellStore, Outcome
from eigenheads.experiments._engines import Engine, WorkerLost
from eigenheads.experiments._grid import Plan
from eigenheads.experiments._run import Listener
from eigenheads.experiments._schedule import PATIENCE, Schedule, Task
from eigenheads.experiments._workers import CellRun, Failure, Job, WorkerCell

# How often to look what other processes have stored, and what share of the time that
# may take where files are many.
_LOOK_SECONDS, _LOOK_SHARE = 2.0, 0.005
# After this many errors that no parameter explains a sweep stops.
_MAX_FAILURES = 10


class SweepError(RuntimeError):
    """A sweep that is not whole; what is finished is stored."""

    is_of_the_caller = True


def missing_tasks(plan: Plan, store: CellStore) -> list[Task]:
    """Return the cells that are not stored, the first seed of every point first.

    So the whole map is there early, if rough; and what each point costs is known.
    """
    return [
        Task(index, seed)
        for seed in plan.seeds
        for index, point in enumerate(plan.points)
        if (point.digest, seed) not in store
    ]


class Sweeper:
    """Hands blocks to an engine and stores what comes back."""

    def __init__(
        self,
        plan: Plan,
        store: CellStore,
        engine: Engine,
        run: CellRun | None,
        listener: Listener,
    ) -> None:
        self.plan, self.store, self.engine, self.listener = (
            plan,
            store,
            engine,
            listener,
        )
        self.failures: list[tuple[Task, Failure]] = []
        self.run = run
        self.computed = 0
        self._look_at = time.monotonic() + _LOOK_SECONDS

    def do(self, missing: list[Task]) -> None:
        """Compute the missing cells; raise a SweepError if some cannot be."""
        schedule = Schedule(missing, self.engine.n_workers)
        job = Job(
            self.run,
            self.plan.key,
            self.plan.code,
            self.engine.home,
            PATIENCE * schedule.seconds,
        )
        self.listener.begin(self.plan.n_cells)
        self.listener.start(self.plan.key, self.plan.n_cells)
        with reporting(self.listener.advance):
            advance(self.plan.n_cells - len(missing))
            while schedule.pending:
                self._round(schedule, job)
        self._complain(schedule)

    def _round(self, schedule: Schedule, job: Job) -> None:
        is_alone, kept = schedule.begin_round()
        ahead = 1 if is_alone else 2 * self.engine.n_workers
        try:
            for number, outcomes in self.engine.run(job, self._blocks(schedule), ahead):
                self._take(schedule, number, outcomes)
        except WorkerLost:
            schedule.lose()
        schedule.pending.extend(kept)

    def _blocks(self, schedule: Schedule) -> Iterator[tuple[int, list[WorkerCell]]]:
        points = self.plan.points
        for number, tasks in schedule.blocks():
            chosen = [(points[task.point], task.seed) for task in tasks]
            yield (
                number,
                [
                    WorkerCell(point.params, point.stream, seed)
                    for point, seed in chosen
                ],
            )

    def _take(
        self, schedule: Schedule, number: int, outcomes: list[Outcome | Failure]
    ) -> None:
        seconds = [getattr(outcome, "seconds", 0.0) for outcome in outcomes]
        done = list(zip(schedule.finish(number, seconds), outcomes, strict=True))
        finished = [
            (self._address(task), outcome)
            for task, outcome in done
            if isinstance(outcome, Outcome)
        ]
        if finished:
            self._store(finished)
            self.computed += len(finished)
            advance(len(finished))
        self._look_around(schedule)
        self.failures += [(t, fault) for t, fault in done if isinstance(fault, Failure)]
        if len(self.failures) >= _MAX_FAILURES:
            self._complain(schedule)

    def _look_around(self, schedule: Schedule) -> None:
        """Leave out what other processes on this store have done meanwhile."""
        began = time.monotonic()
        if began < self._look_at:
            return
        new = self.store.refresh()
        taken = time.monotonic() - began
        self._look_at = began + max(_LOOK_SECONDS, taken / _LOOK_SHARE)
        if new:
            stored = {t for t in schedule.pending.copy() if self._address(t) in new}
            advance(schedule.leave_out(stored))

    def _store(self, finished: list[tuple[Address, Outcome]]) -> None:
        try:
            self.store.add(finished)
        except OSError as error:
            raise SweepError(
                f"sweep: {self.store.folder} cannot be written: {error.strerror}. All "
                "cells before are stored; the same call again computes the others."
            ) from error

    def _address(self, task: Task) -> Address:
        return self.plan.points[task.point].digest, task.seed

    def _complain(self, schedule: Schedule) -> None:
        if not self.failures and not schedule.given_up:
            return
        if self.failures:
            task, failure = self.failures[0]
            count, what = len(self.failures), f"failed ({failure.text})"
        else:
            task, count = schedule.given_up[0], len(schedule.given_up)
            what = "ended their worker each time they ran (out of memory, killed?)"
        raise SweepError(
            f"sweep: {count} cell(s) {what}, the first at {self._where(task)}. All "
            f"finished cells are stored in {self.store.folder}; the same call again "
            "computes only the others."
        )

    def _where(self, task: Task) -> str:
        params = self.plan.points[task.point].params
        values = [f"{name}={getattr(params, name)}" for name in self.plan.axes]
        return ", ".join([*values, f"seed={task.seed}"])
