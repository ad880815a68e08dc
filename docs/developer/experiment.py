"""Skeleton of an experiment: a module of your own, or of eigenheads_papers.

A module holds one simulation with its claims and its drawing, and every experiment that
uses it. As ``my_module.py`` in the current folder it runs at once::

    eigenheads reproduce my_module:experiments --preset smoke

In Eigenheads it is ``eigenheads_papers/<author><year>/<simulation>.py``, with its keys
in ``eigenheads_papers/_registry.py``.
"""

from dataclasses import dataclass

import numpy as np

from eigenheads_papers import Cells, Experiment, Run, Table, at_most


@dataclass(frozen=True, kw_only=True)
class Params:
    """Settings; the defaults are those of the paper."""

    n_samples: int = 10_000
    n_runs: int = 50


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Return the mean of normal samples, once per run."""
    samples = rng.standard_normal((params.n_runs, params.n_samples))
    return {"mean": samples.mean(axis=1)}


def check(run: Run[Params]):
    """Return the claims; a tolerance or bound always has a reason."""
    error = np.abs(run.table["mean"]).max() * np.sqrt(run.params.n_samples)
    return [
        at_most(
            "largest standardised mean of all runs",
            error,
            5.0,
            "a normal number exceeds 5 once in two million",
        )
    ]


def draw(figure, run: Run[Params]) -> None:
    """Draw the table; never simulate here."""
    axes = figure.subplots()
    axes.plot(run.table["mean"], "o")
    axes.set(xlabel="run", ylabel="mean")


def cell(params: Params, rng: np.random.Generator) -> dict[str, float]:
    """Return the numbers of one cell of a sweep."""
    return {"mean": float(rng.standard_normal(params.n_samples).mean())}


_PRESETS = {
    "smoke": Params(n_samples=100, n_runs=5),
    "demo": Params(n_samples=1000),
    "paper": Params(),
}
experiment = Experiment(
    key="author2026/fig1",
    title="Means of normal samples concentrate",
    source="Figure 1",
    about="Skeleton.",
    presets=_PRESETS,
    simulate=simulate,
    check=check,
    draw=draw,
    cells=Cells(presets=_PRESETS, run=cell, shows=("mean",)),
)
experiments = (experiment,)
