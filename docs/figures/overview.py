"""Draw the figure at the top of README: a fitted head finds the frame that decides.

``python docs/figures/overview.py`` takes some seconds; every number is computed.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from eigenheads._plotting.svg import BLUE, ORANGE, render_svg
from eigenheads.estimators import SingleLocationClassifier
from eigenheads_papers.tour._chapters import _streams

HERE = Path(__file__).resolve().parent
# Streams that are shown.
N_SHOWN = 3


def draw(figure):
    """Draw streams of digits with the attention of a fitted head above each frame."""
    rng = np.random.default_rng(0)
    images, digits = load_digits(return_X_y=True)
    half = rng.permutation(len(digits)) < len(digits) // 2
    bags, labels, _ = _streams(images[half], digits[half], 2000, rng)
    others, truths, places = _streams(images[~half], digits[~half], 1000, rng)
    model = SingleLocationClassifier().fit(bags, labels)
    found = np.mean(np.asarray(model.locate(others)) == places)
    accuracy = model.score(others, truths)
    axes = figure.subplots(2 * N_SHOWN, 10, height_ratios=[0.8, 1.2] * N_SHOWN)
    for row, weights in enumerate(model.attention(others[:N_SHOWN])):
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
        "One frame of each stream, a 3 or an 8 (orange), gives the label; the fit is "
        "not told which.\n"
        f"Attention (blue) finds it in {found:.0%} of new streams (chance 10%); the "
        f"label is right in {accuracy:.0%}.",
        x=0.02,
        ha="left",
        fontsize="medium",
    )


if __name__ == "__main__":
    target = HERE / "overview.svg"
    target.write_bytes(render_svg(draw, size=(8.6, 4.4)))
    print(target, file=sys.stderr)
