"""Panels that compare dimensions, and close-ups of single steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from eigenheads._plotting._location import show_steps
from eigenheads._plotting.svg import BLUE, COLORS, GREEN, GREY, INK, ORANGE, PURPLE

Columns = Mapping[str, NDArray[np.float64]]


def draw_step_changes(axes: Sequence[Any], curve: NDArray[np.float64]) -> None:
    """Draw how far one number moves in a step, and the steps themselves up close."""
    changes = np.abs(np.diff(curve))
    size = max(len(changes) // 400, 1)
    whole = len(changes) - len(changes) % size
    largest = changes[:whole].reshape(-1, size).max(axis=1)
    steps = np.arange(0, whole, size)
    axes[0].plot(steps, np.maximum(largest, 1e-17), color=ORANGE)
    axes[0].set(title="Size of a single step of ρ, one run", yscale="log")
    show_steps(axes[0])
    window = slice(10_000, 10_030)
    axes[1].plot(np.arange(*window.indices(len(curve))), curve[window], ".-")
    axes[1].set(title="ρ step by step: to and fro", xlabel="step", ylabel="ρ")
    axes[1].xaxis.set_major_locator(MaxNLocator(5))
    axes[1].ticklabel_format(useOffset=False)


def draw_any_dimension(
    axes: Sequence[Any], table: Columns, dimensions: Sequence[int], *, start: float
) -> None:
    """Draw the fast phase, the gain in ν on log axes, and the excess risk."""
    _draw_fast_phase(axes[0], table, dimensions)
    axes = axes[1:]
    markers = ("o", "s", "D", "^")
    limit = table["limit_nu"] - start
    axes[0].plot(table["limit_time"], limit, "--", color=INK, label="theory, d → ∞")
    for d, color, marker in zip(dimensions, COLORS, markers, strict=False):
        time, gain = table[f"time_{d}"], table[f"nu_{d}"].mean(axis=0) - start
        label = _power_of_ten(d)
        shown = np.unique(np.geomspace(1, len(time) - 1, 12).astype(int))
        style = {"color": color, "marker": marker, "markersize": 4, "linestyle": ""}
        axes[0].plot(time[shown], gain[shown], label=label, **style)
        if time[-1] > 0.5:
            axes[1].plot(time, table[f"excess_{d}"].mean(axis=0), color=color)
            axes[1].plot(time, table[f"theory_excess_{d}"], "--", color=INK, lw=1)
            axes[1].plot([], [], color=color, label=label)
    axes[0].set(title="Gain in ν since the start", xlabel="time = step size × updates")
    axes[0].set(xscale="log", yscale="log")
    axes[0].legend()
    axes[1].plot([], [], "--", color=INK, lw=1, label="theory at that d")
    top = f"theory at {_power_of_ten(max(dimensions))}"
    axes[1].plot(table["limit_time"], table["limit_excess"], ":", color=INK, label=top)
    axes[1].set(title="Excess risk, whole curves", xlabel="time = step size × updates")
    axes[1].set_yscale("log")
    axes[1].legend()


def _draw_fast_phase(axes: Any, table: Columns, dimensions: Sequence[int]) -> None:
    for d, color in zip(dimensions, COLORS, strict=False):
        curves = table[f"fast_theta_{d}"]
        axes.plot(table["fast_steps"], curves.T, color=color, linewidth=0.8, alpha=0.7)
        axes.plot([], [], color=color, label=_power_of_ten(d))
    theory = table[f"theory_fast_theta_{max(dimensions)}"]
    axes.plot(table["fast_steps"], theory, "--", color=INK, label="theory")
    axes.set(title="Fast phase: θ, every run", xlabel="updates")
    axes.legend()


def draw_bayes(axes: Sequence[Any], table: Columns) -> None:
    """Draw risks where all conditions hold, and the oracle where one is broken."""
    d = table["d"]
    keeps, breaks = axes
    floor = 1e-6
    for name, label, style, color in (
        ("null", "null", "-", GREY),
        ("linear", "best linear", "-.", GREY),
        ("oracle_all", "oracle (k*, v*)", "o-", BLUE),
        ("bayes", "Bayes", "s-", GREEN),
    ):
        shown = np.where(table[name] > floor, table[name], np.nan)
        keeps.plot(d, shown, style, color=color, label=label, markersize=4)
    seen = d[table["bayes"] > floor].max(initial=d[0])
    keeps.plot([], [], " ", label=f"(below {floor:g} beyond d = {seen:.0f})")
    keeps.set(title="L = d^0.2, λ = d^−0.35", xlabel="d", ylabel="excess risk")
    for name, label, color in (
        ("all", "all conditions hold", BLUE),
        ("sharpness_too_small", "λ√d = 1", ORANGE),
        ("sharpness_too_large", "λ√L = 1", PURPLE),
        ("too_many_tokens", "L = d, best λ", GREEN),
    ):
        breaks.plot(d, table[f"oracle_{name}"], "o-", color=color, label=label, ms=4)
    breaks.axhline(table["null"][0], color=GREY, linewidth=1, label="null")
    breaks.set(title="The oracle, one condition broken", xlabel="d")
    for panel in (keeps, breaks):
        panel.set(xscale="log", yscale="log")
        panel.legend()


def _power_of_ten(d: int) -> str:
    digits = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return f"d = 10{str(round(np.log10(d))).translate(digits)}"
