"""The corruptions of ImageNet-C: sizes, severities, and independence of images."""

import io

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from eigenheads.robustness import IMAGENET_C, corrupt  # noqa: E402
from eigenheads.robustness._imagenet_c import (  # noqa: E402
    KINDS,
    _resolved,
    corrupt_as_imagenet_c,
)

pytestmark = pytest.mark.torch


def pictures(n=4, channels=3, side=48, seed=0, grain=6):
    """Smooth random colours with edges, entries 0 to 1."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.rand(n, channels, grain, grain, generator=generator)
    smooth = torch.nn.functional.interpolate(small, (side, side), mode="bilinear")
    smooth[..., side // 2 :, : side // 3] *= 0.3
    return smooth.clamp(0.02, 0.98)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 33), (1, 28)])
def test_any_size_stays_an_image(kind, channels, side):
    images = pictures(2, channels, side)
    before = images.clone()
    for severity in (1, 5):
        out = corrupt_as_imagenet_c(images, kind, severity, [1, 2])
        assert out.shape == images.shape
        assert out.min() >= 0
        assert out.max() <= 1
        assert out.isfinite().all()
    assert torch.equal(images, before)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_does_not_depend_on_its_batch(kind):
    images = pictures(3)
    together = corrupt_as_imagenet_c(images, kind, 3, [5, 6, 7])
    alone = corrupt_as_imagenet_c(images[1:2], kind, 3, [6])
    torch.testing.assert_close(together[1:2], alone, rtol=0, atol=1e-5)
    again = corrupt_as_imagenet_c(images, kind, 3, [5, 6, 7])
    assert torch.equal(together, again)


# The published settings are not ordered by distance for these: snow's and frost's
# blending, fog (3 and 4 add the same amount), pixels (half the side aligns with the
# grid), the elastic map (severities 1-2 and 3-5 are two kinds of it).
UNORDERED = {"snow", "frost", "fog", "pixelate", "elastic_transform", "glass_blur"}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - UNORDERED))
def test_distance_grows_with_severity(kind):
    images = pictures(6, side=224)
    distances = [
        float(
            (corrupt_as_imagenet_c(images, kind, s, range(6)) - images).square().mean()
        )
        for s in (1, 2, 3, 4, 5)
    ]
    assert distances[0] > 1e-5
    assert np.all(np.diff(distances) > 0)


@pytest.mark.parametrize("kind", ["fog", "pixelate", "glass_blur", "frost"])
def test_the_last_severity_is_worse_than_the_first(kind):
    images = pictures(6, side=224)
    mild, severe = (
        (corrupt_as_imagenet_c(images, kind, s, range(6)) - images).square().mean()
        for s in (1, 5)
    )
    assert severe > mild > 0


def test_noise_has_the_published_size():
    grey = torch.full((1, 3, 224, 224), 0.5)
    for severity, size in enumerate((0.08, 0.12, 0.18), start=1):
        noisy = corrupt_as_imagenet_c(grey, "gaussian_noise", severity, [0])
        assert abs(float(noisy.std()) - size) < 0.02 * size + 1e-3
    shot = corrupt_as_imagenet_c(grey, "shot_noise", 1, [0])
    assert abs(float(shot.var()) - 0.5 / 60) < 5e-4
    hit = corrupt_as_imagenet_c(grey, "impulse_noise", 4, [0]) != 0.5
    assert abs(float(hit.float().mean()) - 0.17) < 0.005


def test_blurs_keep_constant_images_and_total_light():
    flat = torch.full((1, 3, 64, 64), 0.4)
    for kind in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "pixelate"):
        out = corrupt_as_imagenet_c(flat, kind, 5, [0])
        torch.testing.assert_close(out, flat, rtol=0, atol=1e-5)


def test_brightness_keeps_hue_and_saturation():
    images = pictures()
    out = corrupt_as_imagenet_c(images, "brightness", 2, range(4))
    value, raised = images.amax(1, keepdim=True), out.amax(1, keepdim=True)
    torch.testing.assert_close(raised, (value + 0.2).clamp_max(1.0))
    torch.testing.assert_close(out / raised, images / value)


def test_jpeg_agrees_with_an_encoder():
    image = pytest.importorskip("PIL.Image")
    x = pictures(1, side=64)
    pixels = (255 * x[0]).round().byte().permute(1, 2, 0).numpy()
    for severity, quality in ((1, 25), (3, 15), (5, 7)):
        buffer = io.BytesIO()
        image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
        theirs = np.asarray(image.open(buffer), dtype=float)
        ours = 255 * corrupt_as_imagenet_c(x, "jpeg_compression", severity, [0])
        error = np.abs(ours[0].permute(1, 2, 0).numpy() - theirs).mean()
        lost = np.abs(pixels - theirs).mean()
        assert error < 0.35 * lost  # colours are enlarged in another way


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
    for kind in (IMAGENET_C[0], "imagenet-c/contrast"):
        array = corrupt(images, kind, 2, np.random.default_rng(3))
        tensor = corrupt(torch.from_numpy(images), kind, 2, np.random.default_rng(3))
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(array, tensor.numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="Did you mean 'imagenet-c/fog'"):
        corrupt(images, "imagenet-c/fogg", 2, np.random.default_rng(3))
