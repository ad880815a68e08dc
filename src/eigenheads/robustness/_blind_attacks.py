"""Attacks without gradients, in the maximum norm: noise, SPSA and Square."""

import torch
from torch import Tensor

from eigenheads._checks import (
    check_count,
    check_number,
    check_positive,
)
from eigenheads.robustness._attack_input import (
    Bounds,
    Budget,
    Model,
    check_bounded_attack,
)
from eigenheads.robustness._attacks import margin, project


@torch.no_grad()
def uniform_noise(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: Budget,
    n_draws: int = 1,
    bounds: Bounds = (0.0, 1.0),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Add uniform noise, as a baseline for attacks.

    Parameters
    ----------
    model, x, y, budget, bounds
        As in :func:`fgsm`.
    n_draws
        Number of draws per input; the one with the largest margin is kept.
    generator
        Random numbers.

    Returns
    -------
    attacked
        Inputs within the budget and the bounds.

    Examples
    --------
    >>> import torch
    >>> x = torch.full((1, 2), 0.5)
    >>> noisy = uniform_noise(lambda x: x, x, torch.tensor([0]), budget=8)
    >>> bool(0 < (noisy - x).abs().max() <= 8 / 255)
    True
    """
    data, radius = check_bounded_attack(
        budget, model, x, y, bounds, owner="uniform_noise", generator=generator
    )
    model, x, y, bounds = data
    n_draws = check_count("n_draws", n_draws, owner="uniform_noise")
    best: Tensor | None = None
    for _ in range(n_draws):
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device)
        tried = (x + radius * (2 * noise - 1)).clamp(*bounds)
        if n_draws == 1:
            return tried
        gain = margin(model(tried), y)
        if best is None:
            at, best = tried, gain
        better = gain > best
        at[better], best = tried[better], torch.maximum(gain, best)
    return at


@torch.no_grad()
def spsa(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: Budget,
    n_steps: int = 20,
    n_samples: int = 16,
    probe: float = 2.55,
    bounds: Bounds = (0.0, 1.0),
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Attack by a gradient estimated from pairs of queries (Uesato et al. 2018).

    With random signs :math:`v` and the margin :math:`m`, a step ascends along the mean
    of :math:`\frac{m(x + cv) - m(x - cv)}{2c} v`, by Adam, and projects.

    Parameters
    ----------
    model, x, y, budget, bounds
        As in :func:`fgsm`.
    n_steps
        Number of steps.
    n_samples
        Pairs of queries per step.
    probe
        :math:`c` in 1/255 of the range.
    generator
        Random numbers of the signs.

    Returns
    -------
    attacked
        Inputs within the budget and the bounds.

    Examples
    --------
    >>> import torch
    >>> x = torch.full((1, 2), 0.5)
    >>> attacked = spsa(lambda x: x, x, torch.tensor([0]), budget=8)
    >>> (255 * (attacked - x)).round().tolist()
    [[-8.0, 8.0]]
    """
    data, radius = check_bounded_attack(
        budget, model, x, y, bounds, owner="spsa", generator=generator
    )
    model, x, y, bounds = data
    n_steps = check_count("n_steps", n_steps, owner="spsa")
    n_samples = check_count("n_samples", n_samples, owner="spsa")
    # The probe has the unit of the budgets.
    unit = (bounds[1] - bounds[0]) / 255
    c = unit * check_number("probe", probe, owner="spsa", minimum=1e-6, maximum=1e30)
    at, first, second = x.clone(), torch.zeros_like(x), torch.zeros_like(x)
    for step in range(1, n_steps + 1):
        # Adam on the estimated gradient, with its usual correction of the start.
        slope = _slope(model, at, y, c, n_samples, generator)
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope.square()
        scale = (second / (1 - 0.99**step)).sqrt() + 1e-12
        move = first / (1 - 0.9**step) / scale
        # Adam's moves are of size one: two budgets in all, so that a far corner is
        # within reach.
        at = project(at + 2 * radius / n_steps * move, x, radius, bounds)
    return at


def _slope(
    model: Model,
    at: Tensor,
    y: Tensor,
    c: float,
    n_samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    total = torch.zeros_like(at)
    for _ in range(n_samples):
        signs = _signs(at.shape, at, generator)
        # Both queries at once: half the calls, and less memory than one gradient.
        above, below = model(torch.cat([at + c * signs, at - c * signs])).chunk(2)
        gain = margin(above, y) - margin(below, y)
        # There is one difference per input, broadcast over its entries.
        total += gain.view(-1, *[1] * (at.ndim - 1)) / (2 * c) * signs
    return total / n_samples


@torch.no_grad()
def square(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: Budget,
    n_queries: int = 200,
    share: float = 0.8,
    bounds: Bounds = (0.0, 1.0),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attack by random search over squares (Andriushchenko et al. 2020).

    It starts with random vertical stripes at the edge of the ball. A query sets a
    random square of each image to the edge of the ball, one sign per channel; the
    change is kept for images whose margin grows. The size of the squares follows the
    published schedule, compressed to `n_queries`. Images that already fool the model
    are not changed.

    Parameters
    ----------
    model, x, y, budget, bounds
        As in :func:`fgsm`; `x` of shape ``(batch, …, height, width)``.
    n_queries
        Queries per image.
    share
        Share of the image that the first squares cover.
    generator
        Random numbers.

    Returns
    -------
    attacked
        Inputs within the budget and the bounds.

    Examples
    --------
    >>> import torch
    >>> x = torch.full((1, 1, 2, 2), 0.5)
    >>> mean_of_rows = lambda x: x.mean(-1).flatten(1)
    >>> attacked = square(mean_of_rows, x, torch.tensor([0]), budget=8)
    >>> mean_of_rows(attacked).argmax(1).tolist()
    [1]
    """
    data, radius = check_bounded_attack(
        budget, model, x, y, bounds, owner="square", generator=generator, least_axes=3
    )
    model, x, y, bounds = data
    n_queries = check_count("n_queries", n_queries, owner="square")
    share = check_positive("share", share, owner="square")
    check_number("share", share, owner="square", maximum=1.0)
    stripes = _signs((*x.shape[:-2], 1, x.shape[-1]), x, generator)
    at = project(x + radius * stripes, x, radius, bounds)
    # A positive margin means that the image is fooled.
    best = margin(model(at), y)
    for query in range(n_queries):
        open_ = (best <= 0).nonzero().squeeze(1)  # images that are not fooled yet
        if not len(open_):
            break
        # Try one square per open image, and keep it where the margin grew.
        area = share * _shrunk(query / n_queries)
        signs, inside = _squares(x[open_], area, generator)
        edge = (x[open_] + radius * signs).clamp(*bounds)
        tried = torch.where(inside, edge, at[open_])
        found = margin(model(tried), y[open_])
        better = found > best[open_]
        at[open_[better]], best[open_[better]] = tried[better], found[better]
    return at


def _squares(
    x: Tensor, area: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return one sign per channel, and one random square of this share per image."""
    height, width = x.shape[-2:]
    # A square covers this share of the image: at least one pixel, at most all.
    side = (area * height * width) ** 0.5
    tall, wide = (min(max(1, round(side)), limit) for limit in (height, width))
    ones = [1] * (x.ndim - 3)
    row, column = (
        torch.randint(0, limit - size + 1, (len(x),), generator=generator).to(x.device)
        for limit, size in ((height, tall), (width, wide))
    )
    rows = torch.arange(height, device=x.device) - row.view(-1, *ones, 1)
    columns = torch.arange(width, device=x.device) - column.view(-1, *ones, 1)
    in_rows, in_columns = (rows >= 0) & (rows < tall), (columns >= 0) & (columns < wide)
    signs = _signs((*x.shape[:-2], 1, 1), x, generator)
    return signs, in_rows.unsqueeze(-1) & in_columns.unsqueeze(-2)


def _signs(
    shape: tuple[int, ...], x: Tensor, generator: torch.Generator | None
) -> Tensor:
    bits = torch.randint(0, 2, shape, generator=generator)
    return (2 * bits - 1).to(x)


def _shrunk(done: float) -> float:
    """Return the published schedule's factor when this share of queries is done."""
    ends = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
    return 0.5 ** sum(done > end for end in ends)
