"""Draw the figure at the top of README: fit, watch, and what holds.

``python docs/figures/overview.py`` takes some seconds; every number is computed, but
for the verdicts, which are those of the committed runs (docs/papers/ledger).
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from eigenheads._plotting.svg import BLUE, GREEN, GREY, INK, ORANGE, render_svg
from eigenheads._tour._chapters import _streams
from eigenheads.datasets import SignalTokens
from eigenheads.dynamics import simulate_signal
from eigenheads.estimators import SingleLocationClassifier
from eigenheads.experiments._untested import untested_claims
from eigenheads.theory import signal_mean_dynamics, signal_steps

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import ledger  # noqa: E402

NAMES = {
    "marion2025": "one token decides",
    "truong2026": "signal recovery",
    "maulensoto2026": "attention-based PCA",
    "teo2024": "attention as kernel PCA",
    "saritas2025": "its reproduction study",
}


def draw_stream(figure):
    """Draw streams of digits with the attention of a fitted head."""
    rng = np.random.default_rng(0)
    images, digits = load_digits(return_X_y=True)
    half = rng.permutation(len(digits)) < len(digits) // 2
    bags, labels, _ = _streams(images[half], digits[half], 2000, rng)
    others, truths, places = _streams(images[~half], digits[~half], 1000, rng)
    model = SingleLocationClassifier().fit(bags, labels)
    found = np.mean(np.asarray(model.locate(others)) == places)
    accuracy = model.score(others, truths)
    axes = figure.subplots(4, 10, height_ratios=[1, 1.4] * 2)
    for row, weights in enumerate(model.attention(others[:2])):
        for column, weight in enumerate(weights):
            bar, frame = axes[2 * row : 2 * row + 2, column]
            bar.bar([0], [weight], color=BLUE)
            bar.set(ylim=(0, 1), xlim=(-1, 1))
            bar.axis("off")
            frame.imshow(others[row, column].reshape(8, 8), cmap="gray_r")
            frame.set(xticks=[], yticks=[])
            frame.grid(False)
            for spine in frame.spines.values():
                is_deciding = column == places[row]
                color = ORANGE if is_deciding else "none"
                spine.set(visible=True, color=color, linewidth=2)
    figure.suptitle(
        "Fit: one frame, a 3 or an 8, decides; which one is not told\n"
        f"found in {found:.0%} of new streams (chance 10%), class right in "
        f"{accuracy:.0%}",
        x=0.02,
        ha="left",
        fontsize="medium",
    )


def draw_training(axes):
    """Draw queries that learn in a billion dimensions, theory on top."""
    law = SignalTokens(
        d=10**9,
        n_informative=30,
        n_nuisance=270,
        strength=0.35,
        inverse_temperature=2.5 / (0.35 * 10**4.5),
    )
    steps = signal_steps(law, error=1e-2)
    shared = {"step_size": steps, "n_steps": 60, "record_every": 1}
    runs = simulate_signal(law, **shared, n_runs=30, seed=0, start=0.05)
    theory = signal_mean_dynamics(law, 0.05, **shared)
    axes.plot(runs.steps, runs["alignment"].T, color=BLUE, linewidth=0.7, alpha=0.6)
    axes.plot([], [], color=BLUE, label="30 heads, exact in law")
    axes.plot(theory.steps, theory["alignment"][0], "--", color=INK, label="theory")
    axes.set(xlabel="steps", ylabel="alignment with the signal", ylim=(0, 1.02))
    axes.set_title("Watch: training in 1 000 000 000 dimensions")
    axes.legend(loc="lower right")


def draw_verdicts(axes):
    """Draw the claims of each paper by verdict, and write our checks beside them."""
    counts = {paper: Counter() for paper in NAMES}
    checks = {paper: [] for paper in NAMES}
    for key, claim in ledger.claims():
        if claim.is_check:
            # Measurements of ours without a paper are not shown here.
            checks.get(key.partition("/")[0], []).append(claim.verdict == "held")
        else:
            counts[claim.paper][claim.verdict] += 1
    colors = {"held": GREEN, "contradicted": ORANGE, "undecided": BLUE}
    left = np.zeros(len(NAMES))
    for verdict, color in colors.items():
        width = np.array([counts[paper][verdict] for paper in NAMES])
        axes.barh(list(NAMES.values()), width, left=left, color=color, label=verdict)
        left += width
    width = np.array([len(untested_claims(paper)) for paper in NAMES])
    axes.barh(
        list(NAMES.values()), width, left=left, color=GREY, label="not testable here"
    )
    for place, paper in enumerate(NAMES):
        own = checks[paper]
        text = f" checks of ours: {sum(own)} of {len(own)}" if own else ""
        end = left[place] + width[place]
        axes.text(end, place, text, va="center", fontsize="x-small", color=INK)
    axes.invert_yaxis()
    axes.set(xlabel="claims of the papers", xlim=(0, 1.7 * (left + width).max()))
    axes.set_title("Know: five papers, measured again")
    axes.legend(loc="lower right")


def draw(figure):
    """Put the three beside each other."""
    left, middle, right = figure.subfigures(1, 3, width_ratios=[1.15, 0.9, 1.05])
    draw_stream(left)
    draw_training(middle.subplots())
    draw_verdicts(right.subplots())


if __name__ == "__main__":
    target = HERE / "overview.svg"
    target.write_bytes(render_svg(draw, size=(14.0, 3.7)))
    print(target, file=sys.stderr)
