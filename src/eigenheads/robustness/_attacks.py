"""Attacks with and without the gradient of the model, all in the maximum norm.

Budgets are in 1/255 of the pixel range, as in papers.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_positive,
    fail,
)
from eigenheads.robustness._attack_input import (
    Bounds,
    Budget,
    Model,
    check_bounded_attack,
    margin,
    project,
)

# --- With gradients ------------------------------------------------------------------


def fgsm(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: Budget,
    bounds: Bounds = (0.0, 1.0),
) -> Tensor:
    r"""Attack by one signed gradient step (Goodfellow et al. 2015).

    .. math::

        x' = \operatorname{clip}(x + \varepsilon \operatorname{sign} \nabla_x \ell)

    Parameters
    ----------
    model
        Function from inputs to logits.
    x, y
        Inputs and their classes.
    budget
        :math:`\varepsilon` in 1/255 of the range of the inputs; a tensor gives one
        budget per channel or entry.
    bounds
        Smallest and largest value of the inputs.

    Returns
    -------
    attacked
        Inputs within the budget and the bounds.

    Examples
    --------
    >>> import torch
    >>> x = torch.full((1, 2), 0.5)
    >>> model = lambda x: x  # class 0 wins where its entry is the larger
    >>> (255 * (fgsm(model, x, torch.tensor([0]), budget=8) - x)).round().tolist()
    [[-8.0, 8.0]]
    """
    data, radius = check_bounded_attack(budget, model, x, y, bounds)
    model, x, y, bounds = data
    step = radius * input_gradient(model, x, y).sign()
    return (x + step).clamp(*bounds).detach()


def pgd(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: Budget,
    n_steps: int = 20,
    step_size: float | None = None,
    random_start: bool = True,
    bounds: Bounds = (0.0, 1.0),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attack by projected signed gradient ascent (Madry et al. 2018).

    Parameters
    ----------
    model, x, y, budget, bounds
        As in :func:`fgsm`.
    n_steps
        Number of steps.
    step_size
        In 1/255 of the range; by default 2.5 times the budget over `n_steps`, which
        reaches every corner of the ball from any point in it.
    random_start
        Whether to start uniformly in the ball instead of at `x`.
    generator
        Random numbers of the start.

    Returns
    -------
    attacked
        Inputs within the budget and the bounds: the last iterate.

    Notes
    -----
    One step of size `budget` without a random start is :func:`fgsm`.

    Examples
    --------
    >>> import torch
    >>> x = torch.full((1, 2), 0.5)
    >>> attacked = pgd(lambda x: x, x, torch.tensor([0]), budget=8)
    >>> (255 * (attacked - x)).round().tolist()
    [[-8.0, 8.0]]
    """
    data, radius = check_bounded_attack(
        budget, model, x, y, bounds, generator=generator
    )
    model, x, y, bounds = data
    random_start = check_flag("random_start", random_start)
    n_steps = check_count("n_steps", n_steps)
    size = 2.5 * radius / n_steps
    if step_size is not None:
        unit = (bounds[1] - bounds[0]) / 255
        size = check_positive("step_size", step_size) * unit
    at = x.detach().clone()
    if random_start:
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device)
        at = (at + radius * (2 * noise - 1)).clamp(*bounds)
    for _ in range(n_steps):
        at = at + size * input_gradient(model, at, y).sign()
        at = project(at, x, radius, bounds)
    return at.detach()


def apgd(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: Budget,
    loss: Literal["ce", "dlr"] = "ce",
    n_steps: int = 50,
    bounds: Bounds = (0.0, 1.0),
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Attack by PGD with momentum and automatic steps (Croce and Hein 2020).

    The first step size is twice the radius. At checkpoints it is halved for inputs
    whose loss rarely increased since the last checkpoint, and these inputs restart at
    their best point.

    Parameters
    ----------
    model, x, y, budget, bounds
        As in :func:`fgsm`.
    loss
        ``"ce"``: cross-entropy. ``"dlr"``: difference of logits ratio,
        :math:`-(z_y - \max_{i \ne y} z_i) / (z_{(1)} - z_{(3)})` with the largest and
        the third largest logit, which does not change with the scale of the logits.
    n_steps
        Number of steps; AutoAttack takes 100.
    generator
        Random numbers of the start.

    Returns
    -------
    attacked
        Inputs within the budget and the bounds: a point that fools the model if one
        was found, else the point with the largest loss.

    Examples
    --------
    >>> import torch
    >>> x = torch.full((1, 3), 0.5)
    >>> attacked = apgd(lambda x: x, x, torch.tensor([0]), budget=8, loss="dlr")
    >>> bool(attacked.argmax(1) != 0)
    True
    """
    (model, x, y, bounds), radius = check_bounded_attack(
        budget, model, x, y, bounds, generator=generator
    )
    n_steps = check_count("n_steps", n_steps)
    check_choice("loss", loss, ("ce", "dlr"))
    measure = _cross_entropy if loss == "ce" else _logits_ratio
    noise = 2 * torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device) - 1
    # The start is scaled to touch the ball's surface.
    top = noise.abs().flatten(1).amax(1).clamp_min(1e-12)
    at = project(x + radius * noise / _per_input(top, x), x, radius, bounds)
    step = torch.full((len(x),), 2.0, dtype=x.dtype, device=x.device)  # in radii
    value, slope, fooled = _loss_and_gradient(model, at, y, measure)
    best, best_value, best_slope = at.clone(), value.clone(), slope.clone()
    kept_at = at.clone()  # the best point, or a fooling one
    before, n_rises = at.clone(), torch.zeros_like(value)
    marks = _checkpoints(n_steps)
    last_step, last_best, last_mark = step.clone(), best_value.clone(), 0
    for index in range(1, n_steps + 1):
        # A gradient step, then momentum towards it, each projected onto the ball.
        move = project(
            at + _per_input(step, x) * radius * slope.sign(), x, radius, bounds
        )
        weight = 0.75 if index > 1 else 1.0
        ahead = at + weight * (move - at) + (1 - weight) * (at - before)
        before, at = at, project(ahead, x, radius, bounds)
        old = value
        value, slope, now = _loss_and_gradient(model, at, y, measure)
        n_rises += value > old
        better = value > best_value
        best[better], best_slope[better] = at[better], slope[better]
        best_value = torch.where(better, value, best_value)
        # A fooling point is kept for good; before that, the best one.
        kept_at = torch.where(_per_input(now & ~fooled, x), at, kept_at)
        kept_at = torch.where(_per_input(better & ~fooled & ~now, x), at, kept_at)
        fooled = fooled | now
        if index in marks:
            # Halve where the loss rose in fewer than three of four steps, or where
            # neither step nor best loss changed since the last checkpoint.
            rarely = n_rises < 0.75 * (index - last_mark)
            stuck = (step == last_step) & (best_value <= last_best)
            halve = rarely | stuck
            last_step, last_best, last_mark = step.clone(), best_value.clone(), index
            step = torch.where(halve, step / 2, step)
            at[halve], slope[halve] = best[halve], best_slope[halve]
            value = torch.where(halve, best_value, value)
            before = torch.where(_per_input(halve, x), at, before)
            n_rises = torch.zeros_like(value)
    return kept_at.detach()


def input_gradient(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the summed cross-entropy: batches do not interact."""
    return _loss_and_gradient(model, x, y, _cross_entropy)[1]


def _loss_and_gradient(
    model: Model, x: Tensor, y: Tensor, measure: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of each input, its gradient, and whether the model is fooled."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        logits = model(x)
        if not logits.requires_grad:
            contract = "differentiable in its inputs"
            got = Got("logits without a gradient")
            fail("model", contract, got)
        losses = measure(logits, y)
        (slope,) = torch.autograd.grad(losses.sum(), x)
    return losses.detach(), slope, logits.detach().argmax(1) != y


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def _logits_ratio(logits: Tensor, y: Tensor) -> Tensor:
    """Return the difference of logits ratio; with two classes, over the difference."""
    ordered = logits.sort(1, descending=True).values
    third = ordered[:, min(2, logits.shape[1] - 1)]
    return margin(logits, y) / (ordered[:, 0] - third + 1e-12)


def _checkpoints(n_steps: int) -> set[int]:
    """Return the steps at which APGD reconsiders its step size, as published."""
    # Gaps start at 22 % of the steps and shrink by 3 points, down to 6 %.
    shares, gap = [0.0, 0.22], 0.22
    while shares[-1] < 1:
        gap = max(gap - 0.03, 0.06)
        shares.append(shares[-1] + gap)
    return {math.ceil(share * n_steps) for share in shares[1:]}


def _per_input(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.ndim - 1))


# --- Without gradients ---------------------------------------------------------------


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
        budget, model, x, y, bounds, generator=generator
    )
    model, x, y, bounds = data
    n_draws = check_count("n_draws", n_draws)
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
        budget, model, x, y, bounds, generator=generator
    )
    model, x, y, bounds = data
    n_steps = check_count("n_steps", n_steps)
    n_samples = check_count("n_samples", n_samples)
    # The probe has the unit of the budgets.
    unit = (bounds[1] - bounds[0]) / 255
    c = unit * check_number("probe", probe, minimum=1e-6, maximum=1e30)
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
        budget, model, x, y, bounds, generator=generator, least_axes=3
    )
    model, x, y, bounds = data
    n_queries = check_count("n_queries", n_queries)
    share = check_positive("share", share)
    check_number("share", share, maximum=1.0)
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
        margins = margin(model(tried), y[open_])
        better = margins > best[open_]
        at[open_[better]], best[open_[better]] = tried[better], margins[better]
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


# --- Of another package --------------------------------------------------------------

AUTOATTACK: Final = "autoattack"


def autoattack(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: Budget,
    bounds: Bounds = (0.0, 1.0),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attack by AutoAttack (Croce and Hein 2020), standard version, of pyautoattack.

    Parameters
    ----------
    model, x, y, budget, bounds
        As in :func:`fgsm`; one budget for all entries, bounds 0 and 1, and at least
        four classes.
    generator
        Random numbers.
    """
    data, radius = check_bounded_attack(
        budget, model, x, y, bounds, generator=generator, least_axes=3
    )
    model, x, y, bounds = data
    if bounds != (0.0, 1.0):
        fail("bounds", "(0.0, 1.0) for AutoAttack", bounds)
    if isinstance(radius, Tensor):
        fail("budget", "one number for AutoAttack", Got("a tensor"))
    with torch.no_grad():
        n_classes = model(x[:1]).shape[1]
    if n_classes < 4:
        fail("model", "a model of at least 4 classes for AutoAttack", n_classes)
    try:
        program: Any = import_module("pyautoattack")
    except ImportError as error:
        advice = "Run `pip install --no-deps pyautoattack`."
        raise ImportError(f"autoattack: needs pyautoattack. {advice}") from error

    class Module(nn.Module):
        """The function as a module, whose parts AutoAttack looks for."""

        def forward(self, x: Tensor) -> Tensor:
            return model(x)

    seed = int(torch.randint(2**31, (1,), generator=generator))
    attack = program.AutoAttack(Module(), eps=radius, seed=seed, device=x.device)
    # It attacks the nine most likely classes, of which there may be fewer.
    n_targets = min(9, n_classes - 1)
    attack.apgd_targeted.n_target_classes = n_targets
    attack.fab.n_target_classes = n_targets
    with torch.random.fork_rng(), torch.enable_grad():
        attacked, _ = attack.run_standard_evaluation(x, y, batch_size=len(x))
    return project(attacked.detach(), x, radius, bounds)


#: Attacks by name: functions of a model, inputs, classes and a budget.
ATTACKS: Final[Mapping[str, Callable[..., Tensor]]] = MappingProxyType(
    {
        "fgsm": fgsm,
        "pgd": pgd,
        "spsa": spsa,
        "square": square,
        "noise": uniform_noise,
        "apgd-ce": partial(apgd, loss="ce"),
        "apgd-dlr": partial(apgd, loss="dlr"),
    }
)
