"""Corruptions of images: sizes, severities, published pixels, and names."""

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

torch = pytest.importorskip("torch")
from eigenheads.robustness import (  # noqa: E402
    CORRUPTIONS,
    IMAGENET_C,
    _corruptions,
    corrupt,
)
from eigenheads.robustness._corruptions import (  # noqa: E402
    _resolved,
    corrupt_seeded,
)

pytestmark = pytest.mark.torch


def pictures(n=4, channels=3, side=48, seed=0, grain=6):
    """Smooth random colours with edges, entries 0 to 1."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.rand(n, channels, grain, grain, generator=generator)
    smooth = torch.nn.functional.interpolate(small, (side, side), mode="bilinear")
    smooth[..., side // 2 :, : side // 3] *= 0.3
    return smooth.clamp(0.02, 0.98)


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize(("channels", "side"), [(1, 1), (1, 8), (3, 33), (1, 28)])
def test_any_size_stays_an_image(kind, channels, side):
    images = pictures(2, channels, side)
    before = images.clone()
    for severity in (1, 5):
        out = corrupt_seeded(images, kind, severity, [1, 2])
        assert out.shape == images.shape
        assert out.min() >= 0
        assert out.max() <= 1
        assert out.isfinite().all()
    assert torch.equal(images, before)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_an_image_does_not_depend_on_its_batch(kind):
    images = pictures(3)
    together = corrupt_seeded(images, kind, 3, [5, 6, 7])
    alone = corrupt_seeded(images[1:2], kind, 3, [6])
    torch.testing.assert_close(together[1:2], alone, rtol=0, atol=1e-5)
    again = corrupt_seeded(images, kind, 3, [5, 6, 7])
    assert torch.equal(together, again)


# Distances of the published settings are not ordered for these: snow's and frost's
# blending, fog (3 and 4 add the same amount), glass (1 shuffles twice, 2 once).
UNORDERED = {"snow", "frost", "fog", "glass_blur"}


@pytest.mark.parametrize("kind", sorted(set(CORRUPTIONS) - UNORDERED))
def test_distance_grows_with_severity(kind):
    images = pictures(6, side=224, grain=24)
    distances = [
        float((corrupt_seeded(images, kind, s, range(6)) - images).square().mean())
        for s in (1, 2, 3, 4, 5)
    ]
    assert min(distances) > 1e-5
    steps = np.diff(distances)
    if kind == "elastic_transform":  # a strong affine map at 1 and 2, a weak one after
        steps = np.delete(steps, 1)
    assert np.all(steps > 0)


@pytest.mark.parametrize("kind", ["fog", "glass_blur", "frost"])
def test_the_last_severity_is_worse_than_the_first(kind):
    images = pictures(6, side=224)
    mild, severe = (
        (corrupt_seeded(images, kind, s, range(6)) - images).square().mean()
        for s in (1, 5)
    )
    assert severe > mild > 0


def test_noise_has_the_published_size():
    grey = torch.full((1, 3, 224, 224), 0.5)
    for severity, size in enumerate((0.08, 0.12, 0.18), start=1):
        noisy = corrupt_seeded(grey, "gaussian_noise", severity, [0])
        assert abs(float(noisy.std()) - size) < 0.02 * size + 1e-3
    shot = corrupt_seeded(grey, "shot_noise", 1, [0])
    assert abs(float(shot.var()) - 0.5 / 60) < 5e-4
    hit = corrupt_seeded(grey, "impulse_noise", 4, [0]) != 0.5
    assert abs(float(hit.float().mean()) - 0.17) < 0.005


def test_blurs_keep_constant_images_and_total_light():
    flat = torch.full((1, 3, 64, 64), 0.4)
    for kind in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "pixelate"):
        out = corrupt_seeded(flat, kind, 5, [0])
        torch.testing.assert_close(out, flat, rtol=0, atol=1e-5)


def test_brightness_keeps_hue_and_saturation():
    images = pictures()
    out = corrupt_seeded(images, "brightness", 2, range(4))
    value, raised = images.amax(1, keepdim=True), out.amax(1, keepdim=True)
    torch.testing.assert_close(raised, (value + 0.2).clamp_max(1.0))
    torch.testing.assert_close(out / raised, images / value)


@pytest.mark.parametrize(("height", "width"), [(224, 224), (100, 61)])
def test_pixelation_is_that_of_pillow(height, width):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    picture = Image.fromarray(pixels)
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    for severity, kept in enumerate((0.6, 0.5, 0.4, 0.3, 0.25), start=1):
        small = picture.resize((int(kept * width), int(kept * height)), Image.BOX)
        theirs = np.asarray(small.resize((width, height), Image.BOX), dtype=float)
        ours = 255 * corrupt_seeded(x, "pixelate", severity, [0])
        np.testing.assert_allclose(ours[0].permute(1, 2, 0), theirs, atol=1e-3)


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_elastic_displacements_are_blurred_with_reflected_edges(severity):
    """A ramp shows how far its rows move, if the affine map moves nothing."""
    noise = torch.rand(1, 2, 224, 224, generator=torch.Generator().manual_seed(0))

    class Draws:
        def uniform(self, *shape):
            return noise if shape[0] == 2 else torch.full((1, *shape), 0.5)

    ramp = (torch.arange(224.0) / 223)[:, None].expand(1, 1, 224, 224)
    found = _corruptions._elastic_transform(ramp, severity - 1, Draws())
    alpha, sigma = ((488, 170.8), (488, 19.52), (12.2, 2.44))[severity - 1]
    moved = alpha * ndimage.gaussian_filter(
        2 * noise[0, 0].double().numpy() - 1, sigma, truncate=3, mode="reflect"
    )
    inside = slice(20, -20)  # rows that no displacement takes over an edge
    expected = np.arange(224)[inside, None] + moved[inside]
    # Rows up to 223 in single precision: 1e-5 each for the blur and the places.
    np.testing.assert_allclose(223 * found[0, 0, inside], expected, atol=5e-4)


# The mean distance from the image, ours over theirs, less one. The six at the end
# differ from the published program in theirs: glass swaps pixels (published: copies),
# motion and snow blur with equal weights (published: half a Gaussian), fog has one
# decay for all severities, the elastic map has 224 (published: 244); and ours in
# frost, a synthetic texture instead of photographs.
TOLERANCES = {
    "gaussian_noise": 0.01,
    "shot_noise": 0.01,
    "impulse_noise": 0.02,
    "snow": 0.05,
    "fog": 0.06,
    "elastic_transform": 0.12,
    "frost": 0.2,
    "motion_blur": 0.35,
    "glass_blur": 0.45,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", IMAGENET_C)
def test_all_kinds_against_another_program(kind):
    """Install it by ``pip install --no-deps corrupt-tta opencv-python-headless``.

    It also imports scikit-image with lazy-loader. Kinds without random numbers give the
    same pixels, up to the rounding of 8-bit images.
    """
    theirs = pytest.importorskip("corrupt_tta").corrupt
    pixels = (255 * pictures(6, side=224, grain=24)).round()
    before = pixels.permute(0, 2, 3, 1).numpy()
    for severity in (1, 2, 3, 4, 5):
        ours = 255 * corrupt_seeded(pixels / 255, kind, severity, range(6))
        ours = ours.permute(0, 2, 3, 1).numpy()
        np.random.seed(0)  # noqa: NPY002 -- theirs draws from the global generator
        others = np.stack(
            [
                np.asarray(theirs(one, severity=severity, corruption_name=kind), float)
                for one in before.astype(np.uint8)
            ]
        )
        if kind not in TOLERANCES:
            assert np.abs(ours - others).max() < 1.01
        else:
            near, far = (np.sqrt(np.mean((x - before) ** 2)) for x in (ours, others))
            assert near / far == pytest.approx(1, abs=TOLERANCES[kind])


def test_copies_in_sequence_are_resolved_at_once(rng):
    """Sources of pixels that were copied before hold their new values."""
    for _ in range(20):
        n = 30
        source = np.clip(np.arange(n) + rng.integers(-4, 4, n), 0, n - 1)
        moved = rng.random(n) < 0.8
        source = np.where(moved, source, np.arange(n))
        expected = np.arange(n)
        for place in range(n - 1, -1, -1):
            if moved[place]:
                expected[place] = expected[source[place]]
        found = _resolved(torch.from_numpy(source)[None], torch.from_numpy(moved))
        np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("shape", [(3, 12, 12), (3, 1, 12, 12), (3, 3, 12, 12)])
def test_arrays_and_tensors_give_the_same(shape):
    images = np.random.default_rng(0).random(shape).astype(np.float32)
    for kind in ("gaussian_noise", "contrast"):
        array = corrupt(images, kind, 2, np.random.default_rng(3))
        tensor = corrupt(torch.from_numpy(images), kind, 2, np.random.default_rng(3))
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(array, tensor.numpy(), atol=1e-6)


def test_occlusion_greys_its_share_and_translation_shifts_by_its_share():
    flat = torch.full((40, 2, 20, 30), 0.2)
    grey = corrupt_seeded(flat, "occlusion", 5, range(40)) == 0.5
    assert (grey.sum((1, 2, 3)) == 2 * 11 * 16).all()
    assert grey[:, 0].any(2).any(0).all() and grey[:, 0].any(1).any(0).all()
    assert torch.equal(corrupt_seeded(flat, "translation", 5, range(40)), flat)
    ramp = torch.arange(600.0).view(1, 1, 20, 30).expand(40, 1, 20, 30) / 600
    moved = 600 * (corrupt_seeded(ramp, "translation", 3, range(40)) - ramp)
    # Three of 20 rows (90 entries) or four of 30 columns, each of four ways.
    inside = moved[:, 0, 10, 15].round().unique()
    assert inside.tolist() == [-90, -4, 4, 90]


def test_tensors_in_formats_that_numpy_lacks():
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    formats = (torch.bfloat16, torch.float8_e4m3fn)
    for x in (torch._neg_view(-images), *map(images.to, formats)):
        found, plain = (
            corrupt(one, "contrast", 1, np.random.default_rng(0))
            for one in (x, x.float())
        )
        assert found.dtype == x.dtype
        # Floats of eight bits here have three bits after the point: an error of 1/16.
        torch.testing.assert_close(found.float(), plain, rtol=1 / 16, atol=1e-3)


MASKED = np.ma.masked_array(np.full((4, 4), 0.5), mask=np.eye(4))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((np.zeros((2, 4, 4)), "gausian_noise", 1), "Did you mean 'gaussian_noise'"),
        ((np.zeros((2, 4, 4)), "fogg", 1), "Did you mean 'fog'"),
        ((np.zeros((2, 4, 4)), "fog", 6), "from 1 to 5; got 6"),
        ((np.full((2, 4, 4), 255.0), "fog", 1), "entries from 0 to 1; got entries"),
        ((np.zeros((4, 4)), "fog", 1), "shape (n, …, height, width)"),
        ((np.full((1, 4, 4), np.nan), "fog", 1), "entries from 0 to 1"),
        (([[MASKED], [MASKED]], "fog", 1), "arrays without masked entries; got a list"),
        ((torch.eye(4)[None].to_sparse(), "fog", 1), "got a nested or sparse tensor"),
    ],
)
def test_bad_input_is_said_in_one_sentence(arguments, sentence):
    with pytest.raises(ValueError, match="corrupt: ") as caught:
        corrupt(*arguments, np.random.default_rng(0))
    assert sentence in str(caught.value)
