r"""
Find the frame that decides the class
=====================================

Each sample is a stream of handwritten digits. Exactly one frame is a 3 or an 8, and
only this frame decides the class. The classifier is trained on streams and classes;
its attention weights show which frame decides.
"""

# %%
# Streams of digits
# -----------------
# The images are those of scikit-learn. Training and test streams use different images.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from eigenheads.estimators import SingleLocationClassifier

rng = np.random.default_rng(0)
images, digits = load_digits(return_X_y=True)


def streams(images, digits, n, n_frames):
    """Return bags of frames, whether the deciding frame is an 8, and its place."""
    decides = np.isin(digits, (3, 8))
    frames = rng.choice(np.flatnonzero(~decides), (n, n_frames))
    places = rng.integers(n_frames, size=n)
    chosen = rng.choice(np.flatnonzero(decides), n)
    frames[np.arange(n), places] = chosen
    return images[frames], digits[chosen] == 8, places


half = rng.permutation(len(digits)) < len(digits) // 2
bags, is_eight, _ = streams(images[half], digits[half], 2000, 10)
test_bags, test_is_eight, test_places = streams(images[~half], digits[~half], 1000, 10)

# %%
# Fit the classifier
# ------------------
# The fitted head has two vectors, a key and a value.
model = SingleLocationClassifier().fit(bags, is_eight)
accuracy = model.score(test_bags, test_is_eight)
located = np.mean(model.locate(test_bags) == test_places)

# %%
# Attention weights of three streams
# ----------------------------------
# The bar above a frame is its attention weight; the deciding frame has a red outline.
figure, axes = plt.subplots(
    6, 10, figsize=(9, 4.6), height_ratios=[1, 1.6] * 3, layout="constrained"
)
for row, weights in enumerate(model.attention(test_bags[:3])):
    for column, weight in enumerate(weights):
        bar, frame = axes[2 * row : 2 * row + 2, column]
        bar.bar([0], [weight], color="C0")
        bar.set(ylim=(0, 1), xlim=(-1, 1))
        bar.axis("off")
        frame.imshow(test_bags[row, column].reshape(8, 8), cmap="gray_r")
        frame.set(xticks=[], yticks=[])
        frame.grid(False)
        is_deciding = column == test_places[row]
        for spine in frame.spines.values():
            spine.set(visible=True, color="C3" if is_deciding else "0.8", linewidth=2)
figure.suptitle(
    f"The head finds the deciding frame in {located:.0%} of the streams "
    f"and classifies {accuracy:.0%}"
)

# %%
# Key and value have the shape of an image. The key selects the frame, and the value
# reads its class.
templates, panels = plt.subplots(1, 2, figsize=(5, 2.6), layout="constrained")
for panel, name, vector in zip(
    panels, ("key", "value"), (model.coef_key_, model.coef_value_[0]), strict=True
):
    scale = np.abs(vector * images.std(axis=0)).max()
    panel.imshow(
        (vector * images.std(axis=0)).reshape(8, 8),
        cmap="RdBu_r",
        vmin=-scale,
        vmax=scale,
    )
    panel.set(title=name, xticks=[], yticks=[])
    panel.grid(False)
templates.suptitle("The key selects the frame, the value separates 8 from 3")
