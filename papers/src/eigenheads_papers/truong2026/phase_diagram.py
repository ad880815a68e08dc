"""Comparison of methods over the share and the strength of informative tokens."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from eigenheads.datasets import SignalTokens
from eigenheads.extend import FloatArray, advance, generator, n_threads
from eigenheads.extend.drawing import BLUE, GREEN, GREY, INK, ORANGE, PURPLE
from eigenheads.models import simulate_signal
from eigenheads.theory import (
    SignalLandscape,
    pooled_pca_alignment,
    pooled_pca_threshold,
    signal_steps,
)
from eigenheads_papers._claims import Claim, at_least, at_most
from eigenheads_papers._core import (
    Boundary,
    Cells,
    Experiment,
    Run,
    Table,
    drawn_seed,
    parameter,
)
from eigenheads_papers._drawing import category_colors
from eigenheads_papers.truong2026._rule import CONSTANTS
from eigenheads_papers.truong2026._searches import (
    Whitened,
    pursue_kurtosis,
    pursue_negentropy,
    random_starts,
    search_with_head,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = ("head", "pca", "kurtosis", "fastica")
# A direction counts as found from this alignment on.
FOUND = 0.8
_TITLES = (
    ("head", "attention head, all tokens"),
    ("pca", "PCA of pooled tokens"),
    ("kurtosis", "kurtosis pursuit"),
    ("fastica", "FastICA (log cosh)"),
    ("one_pass", "attention head, one pass"),
)
_OUTCOMES = (
    ("no method", GREY),
    ("all of them", BLUE),
    ("head and PCA", GREEN),
    ("head, not PCA", ORANGE),
    ("PCA, not head", PURPLE),
    ("kurtosis or ICA only", "#b0455a"),
)


@dataclass(frozen=True, kw_only=True)
class TokenSearch:
    """Everything here is ours.

    All methods read the same ``n_prompts * n_tokens`` tokens; the head sees them in
    prompts. ``n_starts`` random starts each, the best by the method's own objective.
    """

    d: int = parameter(64, "dimension of the tokens")
    n_tokens: int = parameter(125, "tokens per sample or prompt")
    n_prompts: int = parameter(128, "prompts of the training set")
    inverse_temperature: float = parameter(0.4, "inverse temperature λ of the head")
    n_starts: int = parameter(4, "random starts")
    n_passes: int = parameter(40, "passes over the prompts")


@dataclass(frozen=True, kw_only=True)
class CellParams(TokenSearch):
    """One cell: the share of informative tokens and their strength θ."""

    share: float = 0.008
    strength: float = 0.5


def search(
    params: TokenSearch, share: float, theta: float, rng: np.random.Generator
) -> list[float]:
    """Draw the tokens of one repeat, and return each method's alignment."""
    n = params.n_prompts * params.n_tokens
    informative = max(1, round(share * n))
    bag = SignalTokens(params.d, informative, n - informative, theta)
    pooled = bag.sample(1, rng).tokens[0].astype(np.float32)
    # Informative tokens stand anywhere in the bag, so prompts that are cut from it have
    # random numbers of them.
    prompts = pooled.reshape(params.n_prompts, params.n_tokens, params.d)
    starts = random_starts(params.d, params.n_starts, rng)
    head = search_with_head(
        prompts,
        starts,
        inverse_temperature=params.inverse_temperature,
        n_passes=params.n_passes,
    )
    whitened = Whitened(pooled)
    units = [
        whitened.direction(pursue(whitened.tokens, starts, n_passes=params.n_passes))
        for pursue in (pursue_kurtosis, pursue_negentropy)
    ]
    # The signal lies along the first axis, and its sign cannot be found.
    return [abs(float(unit[0])) for unit in (head, whitened.top, *units)]


def read_once(
    params: TokenSearch, share: float, theta: float, seed: int, *, n_runs: int
) -> float:
    """Return the median alignment of heads that read each prompt once, in order.

    Prompts of the exact engine have whole numbers of informative tokens; where a
    prompt would have less than one the cell stays empty.
    """
    informative = round(share * params.n_tokens)
    if informative < 1:
        return math.nan
    law = SignalTokens(
        params.d,
        informative,
        params.n_tokens - informative,
        theta,
        inverse_temperature=params.inverse_temperature,
    )
    paths = simulate_signal(
        law,
        step_size=signal_steps(law, n_steps=params.n_prompts),
        n_steps=params.n_prompts,
        n_runs=n_runs,
        record_every=params.n_prompts,
        seed=seed,
        averaging=True,
    )
    return float(np.median(np.abs(paths.final("averaged_alignment"))))


def run_point(point: CellParams, rng: np.random.Generator) -> dict[str, float]:
    """Return the alignment of every method, and of a head with a single pass."""
    overlaps = search(point, point.share, point.strength, rng)
    once = read_once(point, point.share, point.strength, drawn_seed(rng), n_runs=1)
    return {**dict(zip(METHODS, overlaps, strict=True)), "one_pass": once}


def above_pca_threshold(point: CellParams) -> float:
    """Return the logarithm of the strength over PCA's threshold."""
    threshold = pooled_pca_threshold(
        fraction=point.share, d=point.d, n_samples=point.n_prompts * point.n_tokens
    )
    return math.log(point.strength / float(threshold))


def _mean_landscape(params: Any, share: float, strength: float) -> SignalLandscape:
    """Return the objective of prompts with this mean share of informative tokens."""
    law = SignalTokens(
        params.d,
        0,
        params.n_tokens,
        strength,
        inverse_temperature=params.inverse_temperature,
    )
    # The share replaces the counts of the law, so that lines of theory are not tied to
    # whole numbers of informative tokens per prompt.
    return SignalLandscape(law, fraction=share)


def spare_prompts(point: CellParams) -> float:
    """Return the logarithm of the prompts over those that an escape takes."""
    landscape = _mean_landscape(point, point.share, point.strength)
    return math.log(point.n_prompts / landscape.escape_steps())


@dataclass(frozen=True, kw_only=True)
class Params(TokenSearch):
    """The diagram's grid, which is ours, and how often each cell is repeated."""

    shares: tuple[float, ...] = parameter(
        (0.0005, 0.001, 0.002, 0.008, 0.04, 0.12, 0.336),
        "shares of informative tokens",
    )
    strengths: tuple[float, ...] = parameter(
        (0.1, 0.17, 0.3, 0.5, 0.75, 1.0, 1.5), "strengths of the signal"
    )
    n_repeats: int = parameter(5, "repetitions of each point")


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Search by every method in every cell; median alignments over the repeats."""
    grid = [(share, theta) for share in params.shares for theta in params.strengths]
    # Seeds are drawn before the threads start, so that their order does not change the
    # result.
    seeds = [drawn_seed(rng) for _ in grid]
    overlaps = np.empty((len(grid), params.n_repeats, len(METHODS)))
    one_pass = np.full(len(grid), np.nan)

    def work(index: int) -> None:
        share, theta = grid[index]
        for repeat, stream in enumerate(
            generator(seeds[index]).spawn(params.n_repeats)
        ):
            overlaps[index, repeat] = search(params, share, theta, stream)
            advance(1)
        one_pass[index] = read_once(
            params, share, theta, seeds[index], n_runs=max(5, params.n_repeats)
        )

    _in_threads(len(grid), work)
    shape = (len(params.shares), len(params.strengths))
    table: dict[str, FloatArray] = {
        "shares": np.array(params.shares),
        "strengths": np.array(params.strengths),
        "one_pass": one_pass.reshape(shape),
    }
    for index, name in enumerate(METHODS):
        table[name] = np.median(overlaps[:, :, index], axis=1).reshape(shape)
    return {**table, "outcome": _outcomes(table), **_lines(params)}


def _in_threads(n: int, work: Callable[[int], None]) -> None:
    """Run cells in threads; matrix products inside a cell use one thread."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1), ThreadPoolExecutor(n_threads()) as pool:
        # Each thread gets a copy of this context, so that its progress is heard.
        tasks = [pool.submit(copy_context().run, work, index) for index in range(n)]
        for task in tasks:
            task.result()


def _outcomes(table: Table) -> FloatArray:
    """Return which methods find the direction, as a number (see the figure)."""
    finds = {name: table[name] >= FOUND for name in METHODS}
    higher_moments = finds["kurtosis"] | finds["fastica"]
    head, pca = finds["head"], finds["pca"]
    # The first condition that holds decides, so each may assume that those before it
    # fail.
    return np.select(
        [head & pca & higher_moments, head & pca, head, pca, higher_moments],
        [1.0, 2.0, 3.0, 4.0, 5.0],
        0.0,
    )


def _lines(params: Params) -> dict[str, FloatArray]:
    """Return the thresholds of PCA and of the one-pass head."""
    shares = np.geomspace(params.shares[0] / 2, min(1.0, 2 * params.shares[-1]), 60)
    n = params.n_prompts * params.n_tokens
    return {
        "line_share": shares,
        "pca_line": pooled_pca_threshold(fraction=shares, d=params.d, n_samples=n),
        "escape_line": np.array([escape_strength(params, s) for s in shares]),
    }


def escape_strength(params: Params, share: float) -> float:
    """Return the θ at which escape takes exactly all prompts of one pass."""

    def surplus(log_theta: float) -> float:
        landscape = _mean_landscape(params, share, math.exp(log_theta))
        return math.log(landscape.escape_steps() / params.n_prompts)

    return math.exp(brentq(surplus, math.log(1e-3), math.log(1e2)))


def check(run: Run[Params]) -> list[Claim]:
    """Return where the head wins and loses, and whether theory's lines hold."""
    params, table = run.params, run.table
    head, pca = table["head"], table["pca"]
    # These corners, and the strengths 0.5 and 1, are in the grid of every preset.
    rare, common = 0, len(params.shares) - 1
    weak, strong = 0, len(params.strengths) - 1
    middle, one = params.strengths.index(0.5), params.strengths.index(1.0)
    others = np.maximum(table["kurtosis"], table["fastica"])
    return [
        at_least(
            f"rare and strong (share {params.shares[rare]}, θ = "
            f"{params.strengths[strong]}): the head's lead over PCA",
            head[rare, strong] - pca[rare, strong],
            0.15,
            "PCA is at its threshold; softmax weighs single strong tokens up",
            source="question",
        ),
        at_least(
            f"common (share {params.shares[common]}, θ = 0.5): the head's lead over "
            "kurtosis pursuit and FastICA",
            head[common, middle] - others[common, middle],
            0.15,
            "the fourth cumulant π(1 − 3π)A⁴ vanishes at a share of 1/3",
            source="question",
        ),
        at_least(
            f"common and weak (share {params.shares[common]}, θ = "
            f"{params.strengths[weak]}): PCA's lead over the head",
            pca[common, weak] - head[common, weak],
            0.02,
            "only second moments carry the signal, and the head adds noise to them",
            source="question",
        ),
        at_least(
            f"very rare (share {params.shares[rare]}, θ = 1): kurtosis pursuit's lead "
            "over the head",
            table["kurtosis"][rare, one] - head[rare, one],
            0.05,
            "after whitening only higher moments are left",
            source="question",
        ),
        *_theory_checks(params, table),
    ]


def _theory_checks(params: Params, table: Table) -> list[Claim]:
    n = params.n_prompts * params.n_tokens
    shares, strengths = table["shares"][:, None], table["strengths"]
    # The search rounds the informative tokens to a whole number, at least one; theory
    # gets the rounded share.
    realised = np.maximum(np.round(shares * n), 1) / n
    theory = pooled_pca_alignment(
        fraction=realised,
        amplitude=strengths * math.sqrt(params.d),
        d=params.d,
        n_samples=n,
    )
    line = pooled_pca_threshold(fraction=realised, d=params.d, n_samples=n)
    # Theory is a limit of large d; near its threshold PCA at d = 64 may be far from it.
    clear = strengths > 1.3 * line
    escape = np.array([escape_strength(params, share) for share in params.shares])
    ratio = strengths / escape[:, None]
    seen = ~np.isnan(table["one_pass"])
    # Cells near the line are not judged, since random starts decide there.
    above, under = seen & (ratio > 2.0), seen & (ratio < 0.6)
    right = np.concatenate(
        [table["one_pass"][above] >= FOUND, table["one_pass"][under] < FOUND]
    )
    best = max((table[name] >= FOUND).sum() for name in METHODS[1:])
    return [
        at_most(
            "PCA, θ > 1.3 times its threshold: largest gap to theory",
            np.abs(table["pca"] - theory)[clear].max(),
            0.1,
            "theory is a limit of large d; here d = 64, near the threshold",
            source="ours: spiked covariance",
        ),
        at_least(
            "one pass, θ off the escape line by a factor: share of cells on the right "
            "side",
            right.mean(),
            0.9,
            "above 2 and below 0.6 times the line; starts are random",
            source="ours: the head's escape rate",
        ),
        at_least(
            "cells that the head finds, less those of the best other method",
            (table["head"] >= FOUND).sum() - best,
            0.0,
            "cells on a border fall to either side",
            slack=2.0,
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw one diagram per method with theory's lines, and which methods succeed."""
    table = run.table
    axes: NDArray[Any] = figure.subplots(2, 3, sharex=True, sharey=True)
    for panel, (name, title) in zip(axes.flat, _TITLES, strict=False):
        image = _draw_cells(panel, table, table[name], cmap="viridis", vmin=0, vmax=1)
        panel.set_title(title)
        _draw_line(panel, table, "pca_line", INK)
    once = axes[1, 1]
    _draw_line(once, table, "escape_line", ORANGE)
    empty = np.isnan(table["one_pass"]).all(axis=1)
    if empty.any():
        note = "less than one\nsuch token\nper prompt"
        once.text(0.02, 0.05, note, transform=once.transAxes, color=GREY, fontsize=8)
    figure.colorbar(
        image, ax=axes[1, :2], location="bottom", label="alignment |cos|", shrink=0.7
    )
    _draw_outcomes(axes[1, 2], table)
    for panel in axes[1]:
        panel.set_xlabel("informative tokens, percent")
    for panel in axes[:, 0]:
        panel.set_ylabel("strength θ")


def _draw_line(axes: "Axes", table: Table, name: str, color: str) -> None:
    """Draw one of theory's lines with a white rim, to be seen on any cell."""
    axes.plot(table["line_share"], table[name], color="#ffffff", linewidth=2.6)
    axes.plot(table["line_share"], table[name], color=color)


def _draw_cells(axes: "Axes", table: Table, cells: Any, **options: Any) -> Any:
    edges = [_edges(table[name]) for name in ("shares", "strengths")]
    image = axes.pcolormesh(*edges, np.asarray(cells).T, rasterized=False, **options)
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(*edges[0][[0, -1]])
    axes.set_ylim(*edges[1][[0, -1]])
    percent = [f"{100 * share:.2g}" for share in table["shares"]]
    axes.set_xticks(table["shares"], percent)
    axes.set_yticks(table["strengths"], [f"{theta:g}" for theta in table["strengths"]])
    axes.minorticks_off()
    axes.grid(False)
    return image


def _draw_outcomes(axes: "Axes", table: Table) -> None:
    colors = category_colors([color for _, color in _OUTCOMES])
    _draw_cells(axes, table, table["outcome"], **colors)
    axes.set_title("who finds it (|cos| ≥ 0.8)")
    for label, color in _OUTCOMES:
        axes.plot([], [], "s", color=color, label=label)
    axes.plot([], [], color=INK, label="PCA's threshold")
    axes.plot([], [], color=ORANGE, label="escape in one pass")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    # Geometric means are the middles on logarithmic axes.
    middle = np.sqrt(values[1:] * values[:-1])
    first, last = values[0] ** 2 / middle[0], values[-1] ** 2 / middle[-1]
    return np.concatenate([[first], middle, [last]])


def _work(params: Params) -> float:
    """Return the searches, and the updates of the one-pass heads."""
    n_cells = len(params.shares) * len(params.strengths)
    n_shares = sum(round(share * params.n_tokens) >= 1 for share in params.shares)
    updates = max(5, params.n_repeats) * params.n_prompts
    return float(
        n_cells * params.n_repeats + n_shares * len(params.strengths) * updates
    )


_PCA = Boundary(label="PCA's threshold", distance=above_pca_threshold)

cells = Cells(
    presets=dict.fromkeys(("smoke", "demo", "paper"), CellParams()),
    run=run_point,
    shows=("head", "pca", "one_pass"),
    boundaries={
        "head": _PCA,
        "pca": _PCA,
        "one_pass": Boundary(label="escape in one pass", distance=spare_prompts),
    },
)

_PAPER = Params()

experiments = (
    Experiment(
        key="truong2026/phase_diagram",
        title="Rare or common, weak or strong: who finds the direction",
        source="ours",
        about=(
            CONSTANTS
            + "No paper asks when attention finds what simpler methods miss. All "
            "methods read the same 16 000 tokens in d = 64: the head in prompts of 125 "
            "tokens with sharpness 0.4; PCA of the pooled tokens; kurtosis pursuit and "
            "one-unit FastICA on whitened tokens; up to 40 passes and four random "
            "starts each. None is told the share or the strength. Attention wins over "
            "PCA for rare and strong tokens, since softmax weighs them up; it wins "
            "over kurtosis and FastICA for common tokens, whose fourth cumulant π(1 − "
            "3π)A⁴ is small or zero. It loses to PCA where tokens are common and weak, "
            "since there second moments are all there is; and to kurtosis pursuit "
            "where they are very rare, since whitening removes the noise of second "
            "moments. A head that reads each prompt once (steps by the rule of the "
            "other figures, which knows the law; averaged) needs more strength: the "
            "orange line is where its escape takes as many steps as there are prompts, "
            "the black line PCA's threshold."
        ),
        presets={
            "smoke": replace(
                _PAPER,
                shares=(0.0005, 0.336),
                strengths=(0.1, 0.5, 1.0, 1.5),
                n_repeats=3,
            ),
            "demo": replace(
                _PAPER,
                shares=(0.0005, 0.002, 0.008, 0.04, 0.336),
                strengths=(0.1, 0.25, 0.5, 1.0, 1.5),
                n_repeats=3,
            ),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(10.0, 6.8),
        cells=cells,
        tolerance=1e-4,
        unstable=("kurtosis", "fastica"),
    ),
)
