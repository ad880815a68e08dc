"""Risks, streams, descents, tables and panels that the figures of the paper share."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.datasets import GaussianPrompts, SpikedWishartPrompts
from eigenheads.extend import FloatArray, advance, generator
from eigenheads.extend.drawing import BLUE, COLORS, INK, ORANGE
from eigenheads.models import Trajectories, pca_start
from eigenheads.theory import PCALandscape
from eigenheads_papers._claims import Claim, at_most
from eigenheads_papers._core import Table, drawn_seed
from eigenheads_papers._drawing import draw_band, show_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def softmax_landscape(
    covariance: FloatArray, *, inverse_temperature: float, rank: int = 1
) -> PCALandscape:
    """Return the risk of a softmax head on infinitely long prompts."""
    law = GaussianPrompts(covariance)
    return PCALandscape(law, inverse_temperature=inverse_temperature, rank=rank)


def linear_landscape(
    covariance: FloatArray,
    *,
    n_tokens: int,
    inverse_temperature: float,
    rank: int = 1,
) -> PCALandscape:
    """Return the risk of a linear head on prompts of `n_tokens`."""
    law = GaussianPrompts(covariance, n_tokens)
    return PCALandscape(
        law, inverse_temperature=inverse_temperature, rank=rank, head="linear"
    )


def in_context_landscape(
    scale_matrix: FloatArray, *, degrees_of_freedom: int, inverse_temperature: float
) -> PCALandscape:
    """Return the risk of a softmax head on prompts with Wishart covariances."""
    law = SpikedWishartPrompts(len(scale_matrix), degrees_of_freedom=degrees_of_freedom)
    return PCALandscape(
        law, inverse_temperature=inverse_temperature, scale_matrix=scale_matrix
    )


# Results that several figures show are computed once in a process.
_SHARED: dict[tuple[str, Any, int], Table] = {}
_KEPT = 8


def shared(
    name: str,
    simulate: Callable[[Any, np.random.Generator], Table],
    params: Any,
    rng: np.random.Generator,
    work: float,
) -> Table:
    """Return the table of a simulation that several figures show.

    Its stream depends on its own name and the master seed, not on the figure: the
    entropy of a figure's stream is the master seed.
    """
    entropy = int(rng.bit_generator.seed_seq.entropy)  # type: ignore[attr-defined]
    key = (name, params, entropy)
    # A table from the store costs nothing, but the progress of this figure still has to
    # reach its announced total.
    if key in _SHARED:
        advance(work)
        return _SHARED[key]
    words = [*name.encode(), entropy]
    table = simulate(params, generator(words))
    # A dictionary keeps the order of insertion, so the oldest table is dropped first.
    while len(_SHARED) >= _KEPT:
        _SHARED.pop(next(iter(_SHARED)))
    _SHARED[key] = table
    return table


def starts(
    rng: np.random.Generator, d: int, n_runs: int, scale: float | None
) -> FloatArray:
    """Draw starts: Gaussian of this scale, or unit vectors."""
    return pca_start(d, n_runs=n_runs, seed=drawn_seed(rng), scale=scale)


def table_of(prefix: str, paths: Trajectories) -> dict[str, FloatArray]:
    """Return the curves with prefixed names."""
    return {f"{prefix}_{name}": curve for name, curve in paths.items()}


def descend_to_the_end(landscape: PCALandscape, start: FloatArray) -> FloatArray:
    """Return the final risks above the minimum of long descents, relative to it.

    Steps of a third of the largest stable one; as many as the slowest mode needs, for
    one direction, and at most 300 000.
    """
    rates = landscape.descent_rates()
    # Mode 0 is the length of μ along the top eigenvector, which has the largest
    # curvature; the other modes turn μ and decide how long a descent takes.
    slowest = rates[1:].min() if len(rates) > 1 else rates[0]
    step = landscape.largest_stable_step() / 3
    # Forty time constants of the slowest mode leave room for the time that a start next
    # to a saddle needs to get away.
    n_steps = int(min(300_000, 40 / (slowest * step)))
    paths = landscape.descend(
        start, step_size=step, n_steps=n_steps, record_every=n_steps
    )
    gap: FloatArray = (paths.final("risk") - landscape.minimum) / landscape.minimum
    return gap


def mode_rates(landscape: PCALandscape) -> tuple[FloatArray, FloatArray]:
    """Return how fast each mode i > 1 decays in a descent, and theory's rates.

    Each descent starts next to the minimum, displaced along one eigenvector.
    """
    vectors = landscape.subspace.eigenvectors
    minimiser = landscape.minimiser()
    # The shift is small, so that the linear theory applies, but not so small that the
    # squared sine, about 1e-8, is lost in rounding.
    shift = 1e-4 * np.linalg.norm(minimiser)
    # The curvature times this step is at most 0.02, so the discrete decay is at most
    # about 1 % faster than that of gradient flow.
    step, n_steps = landscape.largest_stable_step() / 100, 100
    theory = landscape.descent_rates()[1:]
    paths = landscape.descend(
        minimiser + shift * vectors[:, 1:].T,
        step_size=step,
        n_steps=n_steps,
        record_every=n_steps,
    )
    # The sine of the angle to the top eigenvector is proportional to the displacement,
    # whereas the alignment is flat at 1. Rounding may take the alignment above 1.
    sine = np.sqrt(1 - np.minimum(paths["alignment"], 1.0) ** 2)
    measured: FloatArray = -np.log(sine[:, -1] / sine[:, 0]) / (step * n_steps)
    return measured, theory


def limit_claims(
    table: Table, source: str = "maulensoto2026, theorem on convergence to the minimum"
) -> list[Claim]:
    """Return the claims on long descents and on the rates of their modes."""
    rates = table["mode_rates"] / table["theory_mode_rates"]
    return [
        at_most(
            "many random starts, descent to the end: largest risk above the "
            "global minimum, relative",
            np.abs(table["end_gaps"]).max(),
            1e-6,
            "a saddle is at least a gap of eigenvalues above; the slowest mode "
            "has fallen by e^-20 or more",
            source=source,
            own_setting=True,
        ),
        at_most(
            "rate at which each mode decays next to the minimum, over "
            "theory's: largest deviation from 1",
            np.abs(rates - 1).max(),
            0.02,
            "steps of 1 % of the largest stable one, first order in the step",
            source="ours: the Hessian's eigenvalues",
        ),
    ]


def draw_curves(figure: "Figure", table: Table, parts: Sequence[str]) -> None:
    """Draw panels by name, two per row: alignments, then loss, norm or error."""
    alignments = [part for part in parts if part in ("population", "finite")]
    panels = [("alignment", alignments)]
    panels += [(part, []) for part in parts if part not in alignments]
    if len(alignments) == 2:
        panels += [("loss", []), ("error", [])]
    n_rows = -(-len(panels) // 2)
    axes: Any = figure.subplots(n_rows, 2, squeeze=False).ravel()
    for panel, (name, shown) in zip(axes, panels, strict=False):
        if name == "alignment":
            _draw_alignment(panel, table, shown)
        else:
            _PANELS[name](panel, table)
    for panel in axes[len(panels) :]:
        panel.set_axis_off()


def _draw_alignment(axes: "Axes", table: Table, shown: Sequence[str]) -> None:
    steps = table["steps"]
    names = {"population": ("descent of the risk", BLUE), "finite": ("SGD", ORANGE)}
    for part in shown:
        label, color = names[part]
        draw_band(axes, steps, table[f"{part}_alignment"], label, color)
    if "finite" in shown:
        mean = table["theory_alignment"].mean(axis=0)
        label = "theory for SGD's starts"
        axes.plot(steps, mean, "--", color=INK, linewidth=1.2, label=label)
    axes.set_ylim(-0.03, 1.05)
    axes.set_title("Alignment with the top eigenvector, mean and range of runs")
    axes.legend(loc="lower right")
    show_steps(axes)


def _draw_loss(axes: "Axes", table: Table) -> None:
    steps = table["steps"]
    draw_band(axes, steps, table["finite_loss"], "SGD, loss of fresh prompts", ORANGE)
    mean = table["theory_risk"].mean(axis=0)
    axes.plot(steps, mean, "--", color=INK, linewidth=1.2, label="theory")
    axes.set(title="Loss", ylim=(0, None))
    axes.legend(loc="upper right")
    show_steps(axes)


def _draw_norm(axes: "Axes", table: Table) -> None:
    steps = table["steps"]
    draw_band(axes, steps, table["population_norm"], "descent of the risk", BLUE)
    best = float(table["population_best_norm"][0])
    axes.axhline(best, color=INK, linestyle="--", linewidth=1.2, label="minimiser")
    axes.set_title("Norm of μ")
    axes.legend(loc="lower right")
    show_steps(axes)


def _draw_error(axes: "Axes", table: Table) -> None:
    steps = table["steps"]
    for part, label, color in (
        ("population", "descent of the risk", BLUE),
        ("finite", "SGD", ORANGE),
        ("theory", "theory for SGD's starts", INK),
    ):
        # The mean over runs is taken before the logarithm; a run that is far off
        # therefore shows, as it should. The floor keeps exact zeros on the axis.
        error = np.mean(1 - table[f"{part}_alignment"] ** 2, axis=0)
        style = "--" if part == "theory" else "-"
        axes.plot(steps, np.maximum(error, 1e-17), style, color=color, label=label)
    axes.set(title="What is missing, 1 − alignment², mean", yscale="log")
    axes.legend(loc="upper right")
    show_steps(axes)


_PANELS = {
    "error": _draw_error,
    "loss": _draw_loss,
    "norm": _draw_norm,
}


def draw_against(axes: "Axes", table: Table, *, label: str) -> None:
    """Draw final alignments against one setting: runs, and theory on top.

    Table ``setting``, ``alignment`` (settings × runs) and, where they exist,
    ``theory`` (one number per setting) and ``limit`` (one number).
    """
    setting, finals = table["setting"], table["alignment"]
    axes.plot(setting, finals, ".", color=BLUE, markersize=3, alpha=0.35)
    axes.plot(setting, np.median(finals, axis=1), "o-", color=BLUE, markersize=4)
    axes.plot([], [], "o-", color=BLUE, markersize=4, label="median of the runs")
    if "theory" in table:
        axes.plot(setting, table["theory"], "s--", color=INK, markersize=3, linewidth=1)
        axes.plot([], [], "s--", color=INK, markersize=3, label="theory, same starts")
    if "limit" in table:
        limit = float(table["limit"][0])
        axes.axhline(limit, color=INK, linestyle="--", linewidth=1, label="L → ∞")
    axes.set(title="Alignment when the run stops", xlabel=label)
    # The axis starts a little below the worst run. The last summand keeps the limits
    # apart if every alignment is 1.
    low = float(min(finals.min(), 1.0))
    axes.set_ylim(max(0.0, 1 - 1.15 * (1 - low)), 1 + 0.06 * (1 - low) + 1e-6)
    axes.legend(loc="lower right")


def draw_quantiles(axes: "Axes", table: Table, *, label: str) -> None:
    """Draw quantiles over covariances against one setting."""
    setting, quantiles = table["setting"], table["quantiles"]
    levels = ("5 %", "25 %", "50 %", "75 %", "95 %")
    for column, (level, color) in enumerate(zip(levels, COLORS, strict=True)):
        axes.plot(setting, quantiles[:, column], "o-", color=color, ms=3, label=level)
    axes.set(title="The same over many Σ: quantiles", xlabel=label)
    axes.set_ylim(None, 1.01)
    axes.legend(loc="lower left")
