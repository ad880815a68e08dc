"""λ from the paper's down to where S takes most of the keys: does it help there."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from eigenheads.experiments._core import Claim, Experiment, Table
from eigenheads.experiments.teo2024._comparisons import ENOUGH_SEEDS, decide, same
from eigenheads.experiments.teo2024._statistics import counting, paired
from eigenheads.experiments.teo2024._variants import SPARSITIES
from eigenheads.experiments.teo2024.robustness import (
    SHORT,
    Params,
    conditions,
    models,
    simulate,
)
from eigenheads.plotting import draw_variants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARPENED = "S = 0, n=4"
NAMES = ("softmax", "symmetric", SHARPENED, *SPARSITIES)


def check(params: Params, table: Table) -> list[Claim]:
    """Return where S is active, and what that changes against S = 0."""
    at = {name: index for index, (_, name) in enumerate(models(params))}
    swept = {name: x for name, x in SPARSITIES.items() if name in at}
    shares = {x: float(table["flagged"][at[name]].mean()) for name, x in swept.items()}
    claims = list(_about_shares(shares))
    counts = counting(table["accuracy"][at["softmax"]], table["clean"][at["softmax"]])
    if params.n_seeds < ENOUGH_SEEDS or not counts.any():
        return claims
    kept = table["accuracy"][:, counts].mean(axis=1)
    found = []
    for name, x in swept.items():
        gap = paired(kept[at[name]] - kept[at[SHARPENED]])
        statement = (
            f"λ = {x:g}, S takes {100 * shares[x]:.1f} % of the keys: accuracy over "
            "all conditions that count less that with S = 0, in points"
        )
        found.append(same(statement, gap))
    is_record = params == experiment.presets["paper"]
    return [*claims, *decide(found, is_record=is_record)]


def _about_shares(shares: Mapping[float, float]) -> Iterator[Claim]:
    least = min(shares)
    yield Claim(
        statement=f"share of key entries that S takes at λ = {least:g}",
        source="ours",
        relation="≥",
        expected=0.5,
        measured=shares[least],
        tolerance=0.0,
        reason="the sweep must reach where S takes most of the keys",
    )
    yield Claim(
        statement="rise of that share from one λ to the next smaller one, least",
        source="ours",
        relation="≥",
        expected=0.0,
        measured=float(np.diff([*shares.values()]).min()),
        tolerance=0.0,
        reason="the threshold is proportional to λ",
    )


def draw(figure: "Figure", params: Params, table: Table) -> None:
    """Draw differences from S = 0, and what the first layer does."""
    names = [name for _, name in models(params)]
    draw_variants(
        figure,
        table,
        ["λ=4, n=4" if name == "RPC n=4" else name for name in names],
        [names.index(SHARPENED)] * len(names),
        [family for family, _ in conditions(params)],
        label="points of accuracy, less those with S = 0",
    )


_DEMO = Params(variants=NAMES, budgets=(16.0,), shares=(0.5,), severities=(3, 5))
experiment = Experiment(
    key="teo2024/sparsity",
    title="RPC-Attention as λ falls: where S is active, it does not help",
    source="ours: the paper has λ = 4",
    about=(
        "The small vision transformers of teo2024/robustness on scikit-learn's digits, "
        "RPC-Attention with n = 4 in the first layer. At the paper's λ = 4 next to "
        "nothing exceeds the threshold, so λ falls until S takes most of the keys. "
        "Differences are against the same iterations with S forced to zero, paired "
        "over seeds, over the conditions in which plain attention loses at least 10 "
        "points. All settings but n are ours."
    ),
    presets={
        "smoke": replace(
            _DEMO,
            n_seeds=2,
            n_steps=20,
            n_test=30,
            n_attack_steps=2,
            n_blind=8,
            n_train=300,
            severities=(5,),
        ),
        "demo": replace(_DEMO, **SHORT),
        "paper": replace(_DEMO, n_test=500, n_seeds=8),
    },
    simulate=simulate,
    check=check,
    draw=draw,
    work=lambda params: float(len(models(params)) * params.n_seeds),
    size=(10.0, 5.0),
    needs=("torch",),
)
