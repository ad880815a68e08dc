"""The corruptions of ImageNet-C with their published severities, and two of our own.

Settings are those of Hendrycks and Dietterich (2019) for images of 224 pixels. On other
images lengths scale with the smaller side; strengths of noise, light, contrast and
compression stay. Each image has its own random numbers, so a corrupted image does not
depend on the others of its batch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eigenheads._checks import check_choice, check_count, check_text
from eigenheads._rng import check_generator, torch_generator
from eigenheads.robustness._read import check_images

_SIDE = 224.0
SEVERITIES: Final = (1, 2, 3, 4, 5)
Pixels = TypeVar("Pixels", NDArray[Any], Tensor)


class _Draws:
    """Random numbers of a batch: one generator per image."""

    def __init__(self, seeds: Sequence[int], like: Tensor) -> None:
        self._generators = [torch_generator(int(s)) for s in seeds]
        self._like = like

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers from 0 to 1, ``(images, *shape)``."""
        rows = [torch.rand(shape, generator=g) for g in self._generators]
        return torch.stack(rows).to(self._like)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, ``(images, *shape)``."""
        rows = [torch.randn(shape, generator=g) for g in self._generators]
        return torch.stack(rows).to(self._like)

    def poisson(self, rates: Tensor) -> Tensor:
        """Return Poisson numbers with these rates, of the same shape."""
        pairs = zip(rates.cpu().float(), self._generators, strict=True)
        return torch.stack([torch.poisson(r, generator=g) for r, g in pairs]).to(rates)


# --- Noise ---------------------------------------------------------------------------


def _gaussian_noise(x: Tensor, at: int, draws: _Draws) -> Tensor:
    return x + (0.08, 0.12, 0.18, 0.26, 0.38)[at] * draws.normal(*x.shape[1:])


def _shot_noise(x: Tensor, at: int, draws: _Draws) -> Tensor:
    photons = (60.0, 25.0, 12.0, 5.0, 3.0)[at]
    return draws.poisson(x * photons) / photons


def _impulse_noise(x: Tensor, at: int, draws: _Draws) -> Tensor:
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[at]
    # Salt and pepper with equal chances, each entry by itself.
    hit = draws.uniform(*x.shape[1:]) < share
    salt = (draws.uniform(*x.shape[1:]) < 0.5).to(x)
    return torch.where(hit, salt, x)


# --- Blur ----------------------------------------------------------------------------


def _defocus_blur(x: Tensor, at: int, draws: _Draws) -> Tensor:
    pixels, alias = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[at]
    radius = pixels * _scale(x)
    reach = max(8, pixels) if _scale(x) == 1 else math.ceil(radius) + 3
    line = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    distance = (line[:, None] ** 2 + line**2).sqrt()
    disk = (distance <= radius).to(x)
    if _scale(x) != 1:  # a smooth edge, so that radii below one pixel count
        disk = (radius + 0.5 - distance).clamp(0.0, 1.0)
    blur = _blur_matrix(2 * reach + 1, alias, 2 if radius > 8 else 1, disk, "mirror")
    return _filtered(x, blur @ (disk / disk.sum()) @ blur.T)


def _glass_blur(x: Tensor, at: int, draws: _Draws) -> Tensor:
    sigma, reach, times = (
        (0.7, 1, 2),
        (0.9, 2, 1),
        (1.0, 2, 3),
        (1.1, 3, 2),
        (1.5, 4, 2),
    )[at]
    reach = max(1, round(reach * _scale(x)))
    x = _gaussian_blur(x, sigma * _scale(x))
    height, width = x.shape[-2:]
    rows = torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device)
    for _ in range(times):
        shift = (draws.uniform(2, height, width) * 2 * reach).floor().long() - reach
        inside = ((rows > reach) & (rows <= height - reach))[:, None] & (
            (columns > reach) & (columns <= width - reach)
        )
        row = torch.where(inside, rows[:, None] + shift[:, 0], rows[:, None])
        column = torch.where(inside, columns + shift[:, 1], columns)
        row, column = row.clamp(0, height - 1), column.clamp(0, width - 1)
        source = _resolved((row * width + column).flatten(1), inside.flatten())
        flat = x.flatten(2)
        x = flat.gather(2, source[:, None].expand_as(flat)).view_as(x)
    return _gaussian_blur(x, sigma * _scale(x))


def _resolved(source: Tensor, is_moved: Tensor) -> Tensor:
    """Return where pixels finally come from when they are copied one after the other.

    The published program copies pixels in place from the last to the first. A copy
    takes the new value of a pixel that comes earlier in this order, so sources form
    chains. Each chain is followed to its end by doubling: all pixels at once.
    """
    place = torch.arange(source.shape[1], device=source.device).expand_as(source)
    is_done = (source > place) & is_moved.expand_as(source).gather(1, source)
    end = torch.where(is_done, source, place)
    for _ in range(math.ceil(math.log2(source.shape[1])) + 1):
        further = end.gather(1, end)
        if torch.equal(further, end):
            break
        end = further
    return source.gather(1, end)


def _motion_blur(x: Tensor, at: int, draws: _Draws) -> Tensor:
    radius, sigma = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[at]
    angle = 90 * draws.uniform() - 45
    return _moved(x, radius * _scale(x), sigma * _scale(x), angle)


def _zoom_blur(x: Tensor, at: int, draws: _Draws) -> Tensor:
    end, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))[
        at
    ]
    factors = np.arange(1, end, step)  # rounding decides whether the end belongs to it
    total = x.clone()
    for factor in factors:
        total += _zoomed(x, float(factor))
    return total / (len(factors) + 1)


# --- Weather -------------------------------------------------------------------------


def _snow(x: Tensor, at: int, draws: _Draws) -> Tensor:
    mean, spread, zoom, least, radius, sigma, weight = (
        (0.1, 0.3, 3.0, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[at]
    # Bright spots of noise, enlarged to flakes, blurred along a falling direction.
    flakes = mean + spread * draws.normal(1, *x.shape[-2:])
    flakes = _zoomed(flakes, zoom)
    flakes = torch.where(flakes < least, 0.0, flakes).clamp(0.0, 1.0)
    angle = 90 * draws.uniform() - 135
    flakes = _moved(flakes, radius * _scale(x), sigma * _scale(x), angle)
    pale = torch.maximum(x, _grey(x) * 1.5 + 0.5)
    return weight * x + (1 - weight) * pale + flakes + flakes.flip(-2, -1)


def _frost(x: Tensor, at: int, draws: _Draws) -> Tensor:
    """Blend with an ice-like texture: the published photographs are not available."""
    weight, added = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[at]
    ridges = 1 - (2 * _plasma(x, 1.6, draws) - 1).abs()
    return weight * x + added * ridges.square()


def _fog(x: Tensor, at: int, draws: _Draws) -> Tensor:
    amount, decay = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[at]
    top = x.flatten(1).amax(1).view(-1, 1, 1, 1)
    return (x + amount * _plasma(x, decay, draws)) * top / (top + amount)


def _plasma(x: Tensor, decay: float, draws: _Draws) -> Tensor:
    """Return fractal noise from 0 to 1, ``(n, 1, height, width)``: diamond-square.

    Each round sets the centres of squares, then of diamonds, to the mean of their four
    neighbours plus noise, whose size falls by `decay` per round. The map is periodic.
    """
    side = 2 ** max(1, math.ceil(math.log2(max(x.shape[-2:]))))
    grid = torch.zeros(len(x), side, side, dtype=x.dtype, device=x.device)
    step, size = side, 100.0
    while step >= 2:
        half = step // 2

        def noisy(total: Tensor, size: float = size) -> Tensor:
            noise = 2 * draws.uniform(*total.shape[1:]) - 1
            return total / 4 + size * size * noise

        corners = grid[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        grid[:, half::step, half::step] = noisy(pairs + pairs.roll(-1, 2))
        centres = grid[:, half::step, half::step]
        across = corners + corners.roll(-1, 2) + centres + centres.roll(1, 1)
        down = corners + corners.roll(-1, 1) + centres + centres.roll(1, 2)
        grid[:, ::step, half::step] = noisy(across)
        grid[:, half::step, ::step] = noisy(down)
        step, size = half, size / decay
    grid = grid - grid.amin((1, 2), keepdim=True)
    grid = grid / grid.amax((1, 2), keepdim=True).clamp_min(1e-12)
    return grid[:, None, : x.shape[-2], : x.shape[-1]]


def _brightness(x: Tensor, at: int, draws: _Draws) -> Tensor:
    """Raise the value (HSV): colours keep hue and saturation."""
    value = x.amax(1, keepdim=True)
    raised = (value + (0.1, 0.2, 0.3, 0.4, 0.5)[at]).clamp_max(1.0)
    return torch.where(value > 0, x * raised / value.clamp_min(1e-12), raised)


# --- Digital -------------------------------------------------------------------------


def _contrast(x: Tensor, at: int, draws: _Draws) -> Tensor:
    mean = x.mean((-2, -1), keepdim=True)
    return mean + (0.4, 0.3, 0.2, 0.1, 0.05)[at] * (x - mean)


def _elastic_transform(x: Tensor, at: int, draws: _Draws) -> Tensor:
    size = 244 * _scale(x)
    alpha, sigma, jitter = (
        size * share
        for share in (
            (2.0, 0.7, 0.1),
            (2.0, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        )[at]
    )
    n, _, height, width = x.shape
    # Three points around the middle move at random; the map between is affine.
    third = min(height, width) // 3
    middle = torch.tensor([height // 2, width // 2], dtype=x.dtype, device=x.device)
    offsets = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]).to(x) * third
    fixed = middle + offsets
    moved = fixed + jitter * (2 * draws.uniform(3, 2) - 1)
    ones = torch.ones(n, 3, 1, dtype=x.dtype, device=x.device)
    # Output places map back to input places.
    affine = torch.linalg.solve(torch.cat([moved, ones], 2), fixed.expand(n, 3, 2))
    rows = torch.arange(height, dtype=x.dtype, device=x.device)
    columns = torch.arange(width, dtype=x.dtype, device=x.device)
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1).flatten(0, 1)
    warped = _sampled(
        x, (grid @ affine[:, :2] + affine[:, 2:]).view(n, height, width, 2)
    )
    wobble = 2 * draws.uniform(2, height, width) - 1
    wobble = alpha * _gaussian_blur(wobble, sigma, 3.0, "reflect")
    places = grid.view(height, width, 2) + wobble.permute(0, 2, 3, 1)
    return _sampled(warped, places, align=False)


def _pixelate(x: Tensor, at: int, draws: _Draws) -> Tensor:
    resolution = (0.6, 0.5, 0.4, 0.3, 0.25)[at]
    width, height = x.shape[-1], x.shape[-2]
    small = max(1, int(resolution * width)), max(1, int(resolution * height))
    box = Image.Resampling.BOX
    return _by_pillow(x, lambda p: p.resize(small, box).resize((width, height), box))


def _jpeg_compression(x: Tensor, at: int, draws: _Draws) -> Tensor:
    def compressed(picture: Image.Image) -> Image.Image:
        file = BytesIO()
        picture.save(file, "JPEG", quality=(25, 18, 15, 10, 7)[at])
        return Image.open(file)

    return _by_pillow(x, compressed)


def _by_pillow(x: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Change 8-bit pictures: three channels are a colour picture, others grey ones."""
    is_colour = x.shape[1] == 3
    pixels = (255 * x).round().byte().cpu()
    pixels = pixels.permute(0, 2, 3, 1) if is_colour else pixels.flatten(0, 1)
    pictures = [
        np.array(change(Image.fromarray(picture))) for picture in pixels.numpy()
    ]
    changed = torch.from_numpy(np.stack(pictures)).to(x) / 255
    return changed.permute(0, 3, 1, 2) if is_colour else changed.view_as(x)


# --- Filters -------------------------------------------------------------------------


def _scale(x: Tensor) -> float:
    return min(x.shape[-2:]) / _SIDE


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114]).to(x)
    return (x * weights.view(3, 1, 1)).sum(1, keepdim=True)


def _blur_matrix(
    side: int, sigma: float, reach: int, like: Tensor, edges: str
) -> Tensor:
    """Return the matrix of a Gaussian filter along one axis; SciPy's names of edges."""
    line = torch.arange(-reach, reach + 1, dtype=like.dtype, device=like.device)
    weights = torch.exp(-(line**2) / (2 * sigma**2))
    weights = weights / weights.sum()
    place = torch.arange(side, device=like.device)[:, None] + line.long()
    if edges == "nearest":
        place = place.clamp(0, side - 1)
    else:  # there and back again; "mirror" does not repeat the last pixel
        period = 2 * side if edges == "reflect" else max(2 * side - 2, 1)
        place = place % period
        place = torch.minimum(place, 2 * side - 1 - (edges == "mirror") - place)
    matrix = torch.zeros(side, side, dtype=like.dtype, device=like.device)
    return matrix.scatter_add_(1, place, weights.expand(side, -1).contiguous())


def _gaussian_blur(
    x: Tensor, sigma: float, truncate: float = 4.0, edges: str = "nearest"
) -> Tensor:
    reach = max(1, int(truncate * sigma + 0.5))
    rows, columns = (_blur_matrix(n, sigma, reach, x, edges) for n in x.shape[-2:])
    return rows @ x @ columns.T


def _filtered(x: Tensor, kernel: Tensor) -> Tensor:
    """Return images filtered with one square kernel; edges reflect where they can."""
    reach = len(kernel) // 2
    mode = "reflect" if reach < min(x.shape[-2:]) else "replicate"
    padded = F.pad(x, (reach,) * 4, mode=mode).flatten(0, 1)[:, None]
    return F.conv2d(padded, kernel[None, None]).view_as(x)


def _moved(x: Tensor, radius: float, sigma: float, angle: Tensor) -> Tensor:
    """Return images blurred along a direction, one angle in degrees per image."""
    # A half Gaussian along the direction: the image trails to one side.
    count = 2 * math.ceil(radius) + 1
    weights = [math.exp(-((i / sigma) ** 2) / 2) for i in range(count)]
    height, width = x.shape[-2:]
    rows = torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device)
    radians = torch.deg2rad(angle).view(-1, 1)
    total, flat = torch.zeros_like(x), x.flatten(2)
    for i, weight in enumerate(weights):
        down = torch.ceil(i * torch.sin(radians) - 0.5).long()
        right = torch.ceil(i * torch.cos(radians) - 0.5).long()
        row = (rows + down).clamp(0, height - 1)
        column = (columns + right).clamp(0, width - 1)
        index = (row[:, :, None] * width + column[:, None, :]).flatten(1)
        total += weight * flat.gather(2, index[:, None].expand_as(flat)).view_as(x)
    return total / sum(weights)


def _zoomed(x: Tensor, factor: float) -> Tensor:
    """Return the middle of images, enlarged to their size."""
    height, width = x.shape[-2:]
    tall, wide = (max(1, math.ceil(side / factor)) for side in (height, width))
    top, start = (height - tall) // 2, (width - wide) // 2
    part = x[..., top : top + tall, start : start + wide]
    size = [round(tall * factor), round(wide * factor)]
    large = F.interpolate(part, size, mode="bilinear", align_corners=True)
    top, start = (size[0] - height) // 2, (size[1] - width) // 2
    return large[..., top : top + height, start : start + width]


def _sampled(x: Tensor, places: Tensor, *, align: bool = True) -> Tensor:
    """Return images at places (row, column), between pixels, with reflected edges.

    If `align`, edges reflect at the middles of the last pixels, else at their borders.
    """
    sizes = torch.tensor([max(n - align, 1) for n in x.shape[-2:]]).to(x)
    grid = ((2 * places + (not align)) / sizes - 1).flip(-1)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=align)


# --- Our own -------------------------------------------------------------------------


def _occlusion(x: Tensor, at: int, draws: _Draws) -> Tensor:
    share = (0.04, 0.08, 0.14, 0.2, 0.3)[at]
    inside = []
    for side, place in zip(x.shape[-2:], draws.uniform(2, 1).unbind(1), strict=True):
        size = max(1, round(share**0.5 * side))
        start = (place * (side - size + 1)).floor()
        line = torch.arange(side, device=x.device)
        inside.append((line >= start) & (line < start + size))
    return torch.where(inside[0][:, None, :, None] & inside[1][:, None, None], 0.5, x)


def _translation(x: Tensor, at: int, draws: _Draws) -> Tensor:
    share = (0.06, 0.1, 0.15, 0.2, 0.25)[at]
    way = (4 * draws.uniform(1)).long()  # up, down, left, right
    index = []
    for side, sign in zip(x.shape[-2:], (way, way - 2), strict=True):
        pixels = max(1, round(share * side)) * ((sign == 1).long() - (sign == 0).long())
        line = torch.arange(side, device=x.device)
        index.append((line - pixels).clamp(0, side - 1))
    images = torch.arange(len(x), device=x.device)[:, None, None]
    return x[images, :, index[0][:, :, None], index[1][:, None]].permute(0, 3, 1, 2)


# --- By name -------------------------------------------------------------------------

_Change = Callable[[Tensor, int, _Draws], Tensor]
# Every kind takes any size and any number of channels. Snow, brightness and JPEG treat
# three channels as red, green and blue.
KINDS: Final[dict[str, tuple[_Change, str]]] = {
    "gaussian_noise": (_gaussian_noise, "normal noise"),
    "shot_noise": (_shot_noise, "Poisson noise of few photons"),
    "impulse_noise": (_impulse_noise, "entries set to zero or one"),
    "defocus_blur": (_defocus_blur, "blur by a disk"),
    "glass_blur": (_glass_blur, "pixels copied from near ones, blurred"),
    "motion_blur": (_motion_blur, "blur along one direction"),
    "zoom_blur": (_zoom_blur, "mean of enlarged copies"),
    "snow": (_snow, "falling flakes, paler colours"),
    "frost": (_frost, "an ice-like texture, synthetic"),
    "fog": (_fog, "a bright cloud of fractal noise"),
    "brightness": (_brightness, "a raised value, hue and saturation kept"),
    "contrast": (_contrast, "less distance from the mean of each channel"),
    "elastic_transform": (_elastic_transform, "an affine map and a local warp"),
    "pixelate": (_pixelate, "larger pixels"),
    "jpeg_compression": (_jpeg_compression, "JPEG of low quality"),
    "occlusion": (_occlusion, "one grey square; not of ImageNet-C"),
    "translation": (_translation, "a shift with repeated edges; not of ImageNet-C"),
}
#: What each corruption of images does, by name.
CORRUPTIONS: Final = MappingProxyType(
    {name: about for name, (_, about) in KINDS.items()}
)
IMAGENET_C: Final = tuple(CORRUPTIONS)[:15]
#: Errors of AlexNet on ImageNet-C, means over severities (Hendrycks, Dietterich 2019).
ALEXNET_ERRORS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "gaussian_noise": 0.886428,
        "shot_noise": 0.894468,
        "impulse_noise": 0.922640,
        "defocus_blur": 0.819880,
        "glass_blur": 0.826268,
        "motion_blur": 0.785948,
        "zoom_blur": 0.798360,
        "snow": 0.866816,
        "frost": 0.826572,
        "fog": 0.819324,
        "brightness": 0.564592,
        "contrast": 0.853204,
        "elastic_transform": 0.646056,
        "pixelate": 0.717840,
        "jpeg_compression": 0.606500,
    }
)


def check_corruption(name: str, kind: str) -> str:
    """Return the name of a corruption of images, or raise."""
    return check_choice(name, check_text(name, kind), list(CORRUPTIONS))


def corrupt(
    images: Pixels,
    kind: str,
    severity: int,
    rng: np.random.Generator,
) -> Pixels:
    """Return corrupted copies of images.

    Parameters
    ----------
    images
        Array or tensor of shape ``(n, …, height, width)``, entries from 0 to 1.
    kind
        A name in :data:`CORRUPTIONS`: one of the fifteen of ImageNet-C
        (:data:`IMAGENET_C`) with their published severities, ``"occlusion"`` or
        ``"translation"``.
    severity
        From 1 (mild) to 5.
    rng
        Random numbers: one seed per image is drawn from it.

    Returns
    -------
    corrupted
        Of the same shape, entries from 0 to 1: a tensor on the same device, or an array
        in double precision, computed in single precision.

    Notes
    -----
    The severities of ImageNet-C are for images of 224 pixels. On other images lengths
    scale with the smaller side, and strengths of noise, light, contrast and compression
    stay. CIFAR-10-C, for images of 32 pixels, has severities of its own, mostly weaker,
    which are not used here: results are not comparable with its published ones.

    Kinds without random numbers give the pixels of the published program at 224 pixels.
    Frost uses a synthetic texture instead of photographs, so its results are not
    comparable with published ones.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noisy = corrupt(np.full((1, 8, 8), 0.5), "gaussian_noise", 3, rng)
    >>> bool(0.1 < noisy.std() < 0.3)
    True
    >>> CORRUPTIONS["pixelate"]
    'larger pixels'
    """
    kind = check_corruption("kind", kind)
    level = check_count("severity", severity, maximum=5)
    rng = check_generator(rng)
    array = check_images("images", images)
    seeds = rng.integers(2**62, size=len(array)).tolist()
    if isinstance(images, Tensor):
        return corrupt_seeded(images, kind, level, seeds)
    return corrupt_seeded(torch.from_numpy(array), kind, level, seeds).numpy()


def corrupt_seeded(
    images: Tensor, kind: str, severity: int, seeds: Sequence[int]
) -> Tensor:
    """Return corrupted copies of images ``(n, …, height, width)`` in 0 to 1.

    The axes between images and rows are channels. Each image has a seed.
    """
    x = images.detach().float().reshape(len(images), -1, *images.shape[-2:])
    corrupted = KINDS[kind][0](x.clamp(0.0, 1.0), severity - 1, _Draws(seeds, x))
    return corrupted.clamp(0.0, 1.0).reshape(images.shape).to(images)
