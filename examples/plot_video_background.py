r"""
Background and foreground of a video
====================================

The frames of a fixed camera are nearly of low rank: the scene changes only with the
light. Moving objects cover few pixels per frame. Robust PCA separates the two, and the
entries of its sparse part are the moving objects.
"""

# %%
# A generated video
# -----------------
# Two spots move over a scene whose light changes; every pixel has noise.
import matplotlib.pyplot as plt
import numpy as np

from eigenheads.estimators import RobustPCA

rng = np.random.default_rng(0)
height, width, n_frames = 24, 32, 60
y, x = np.mgrid[:height, :width]
scene = 120 + 40 * np.sin(x / 5) + 30 * np.cos(y / 7)
frames, spots = [], []
for t in range(n_frames):
    light = 1 + 0.1 * np.sin(t / 17) + 0.03 * np.sin(t / 5) * x / width
    spot = np.zeros(scene.shape, dtype=bool)
    for k in (0, 1):
        column = (width * (0.1 + 0.8 * k) + 0.5 * t * (1 - 2 * k)) % width
        row = height * (0.3 + 0.4 * k) + 4 * np.sin(t / 9 + k)
        spot |= ((x - column) / 2) ** 2 + ((y - row) / 3.4) ** 2 < 1
    frame = np.where(spot, 220.0 - 150 * (y < height / 2), scene * light)
    frames.append((frame + 2 * rng.standard_normal(scene.shape)).ravel())
    spots.append(spot.ravel())
frames, spots = np.array(frames), np.array(spots)

# %%
# The split
# ---------
# Every frame is a row. The noise level is estimated.
model = RobustPCA(sparsity=1.0, noise="auto").fit(frames)
moving = np.abs(model.sparse_) > 10
found = moving[spots].mean()
false = moving[~spots].mean()
print(f"rank {model.rank_}, noise {model.noise_:.2f}")
print(f"moving pixels found: {found:.0%}; others marked: {false:.1%}")

# %%
# Three frames
# ------------
figure, axes = plt.subplots(3, 3, figsize=(8, 6), layout="constrained")
parts = {"frame": frames, "low-rank part": model.low_rank_, "marked": moving}
for line, (label, rows) in zip(axes, parts.items(), strict=True):
    for axis, t in zip(line, (10, 30, 50), strict=True):
        limits = (0, 1) if label == "marked" else (0, 255)
        image = rows[t].reshape(height, width)
        axis.imshow(image, cmap="gray", vmin=limits[0], vmax=limits[1])
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
    line[0].set_ylabel(label)
figure.suptitle(f"Robust PCA marks {found:.0%} of the moving pixels")
