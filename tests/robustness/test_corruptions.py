"""Corruptions stay images, do more as they get severer, and are reproducible."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from eigenheads.robustness import CORRUPTIONS, corrupt  # noqa: E402
from eigenheads.robustness._corruptions import SEVERITIES  # noqa: E402

pytestmark = pytest.mark.torch


def blobs(n=40, channels=(1,), side=28, seed=0):
    """Smooth bright blobs on a dark ground: something every corruption can change."""
    rng = np.random.default_rng(seed)
    at = np.arange(side) / side
    centre = rng.uniform(0.3, 0.7, (n, 2))
    rows = np.exp(-((at - centre[:, :1]) ** 2) / 0.02)
    columns = np.exp(-((at - centre[:, 1:]) ** 2) / 0.02)
    images = rows[:, :, None] * columns[:, None, :]
    shape = (n, *channels, side, side)
    return np.broadcast_to(images.reshape(n, *[1] * len(channels), side, side), shape)


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize(
    ("channels", "side"), [((), 8), ((1,), 28), ((3,), 33), ((1,), 1)]
)
def test_any_size_stays_an_image_and_is_not_changed_in_place(kind, channels, side):
    images = blobs(5, channels, side)
    before = images.copy()
    for severity in SEVERITIES:
        out = corrupt(images, kind, severity, np.random.default_rng(0))
        assert out.shape == images.shape
        assert out.min() >= 0
        assert out.max() <= 1
        again = corrupt(images, kind, severity, np.random.default_rng(0))
        np.testing.assert_array_equal(out, again)
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_distance_grows_with_severity(kind):
    images = blobs()
    distances = [
        np.sqrt(
            np.mean((corrupt(images, kind, s, np.random.default_rng(1)) - images) ** 2)
        )
        for s in SEVERITIES
    ]
    assert distances[0] > 0.005
    assert np.all(np.diff(distances) > 0)


def test_what_kinds_keep():
    images = blobs()
    rng = np.random.default_rng(0)
    # Contrast keeps the mean and scales the deviation by its factor, exactly.
    low = corrupt(images, "contrast", 3, rng)
    np.testing.assert_allclose(low.mean(axis=(-2, -1)), images.mean(axis=(-2, -1)))
    np.testing.assert_allclose(
        low.std(axis=(-2, -1)), 0.3 * images.std(axis=(-2, -1)), rtol=1e-12
    )
    # Blur and pixelation leave a flat image alone; occlusion greys its share.
    flat = np.full((3, 20, 20), 0.2)
    for kind in ("blur", "motion blur", "pixelate", "translation"):
        np.testing.assert_allclose(corrupt(flat, kind, 5, rng), flat)
    assert np.sum(corrupt(flat, "occlusion", 5, rng) == 0.5) == 3 * 11**2
    # Shot noise is unbiased: 1e5 photons' worth of a flat image, 5 standard errors.
    grey = np.full((1, 100, 100), 0.4)
    shot = corrupt(grey, "shot noise", 1, rng)
    assert abs(shot.mean() - 0.4) < 5 * np.sqrt(0.4 / 60) / 100


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((np.zeros((2, 4, 4)), "gausian noise", 1), "Did you mean 'gaussian noise'"),
        ((np.zeros((2, 4, 4)), "blur", 6), "from 1 to 5; got 6"),
        ((np.full((2, 4, 4), 255.0), "blur", 1), "entries from 0 to 1; got entries"),
        ((np.zeros((4, 4)), "blur", 1), "shape (n, …, height, width)"),
        ((np.full((1, 4, 4), np.nan), "blur", 1), "entries from 0 to 1"),
    ],
)
def test_bad_input_is_said_in_one_sentence(arguments, sentence):
    with pytest.raises(ValueError, match="corrupt: ") as caught:
        corrupt(*arguments, np.random.default_rng(0))
    assert sentence in str(caught.value)
