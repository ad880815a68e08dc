"""Attacks that see the gradient: FGSM and PGD, in the maximum norm.

Budgets are counted in 1/255 of the range of pixels, as papers do.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from eigenheads._checks import check_count, check_number, check_positive

Model = Callable[[Tensor], Tensor]
Bounds = tuple[float, float]


def fgsm(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: float,
    bounds: Bounds = (0.0, 1.0),
) -> Tensor:
    r"""Attack by one signed gradient step (Goodfellow et al. 2015).

    .. math::

        x' = \operatorname{clip}(x + \varepsilon \operatorname{sign} \nabla_x \ell)

    Parameters
    ----------
    model
        Inputs to logits.
    x, y
        Inputs and their classes.
    budget
        :math:`\varepsilon` in 1/255 of the range of the inputs.
    bounds
        Least and greatest entry that an input may have.

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
    radius = read_budget(budget, bounds, owner="fgsm")
    step = radius * _gradient(model, x, y).sign()
    return (x + step).clamp(*bounds).detach()


def pgd(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: float,
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
        reaches every corner of the ball from anywhere in it.
    random_start
        Whether to start uniformly in the ball instead of at `x`.
    generator
        Randomness of the start.

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
    radius = read_budget(budget, bounds, owner="pgd")
    n_steps = check_count("n_steps", n_steps, owner="pgd")
    size = 2.5 * radius / n_steps
    if step_size is not None:
        unit = (bounds[1] - bounds[0]) / 255
        size = check_positive("step_size", step_size, owner="pgd") * unit
    at = x.detach().clone()
    if random_start:
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device)
        at = (at + radius * (2 * noise - 1)).clamp(*bounds)
    for _ in range(n_steps):
        at = at + size * _gradient(model, at, y).sign()
        at = project(at, x, radius, bounds)
    return at.detach()


def project(at: Tensor, x: Tensor, radius: float, bounds: Bounds) -> Tensor:
    """Return the nearest point within the ball around `x` and the bounds."""
    return torch.min(torch.max(at, x - radius), x + radius).clamp(*bounds)


def read_budget(budget: object, bounds: Bounds, *, owner: str) -> float:
    """Return the radius that a budget in 1/255 of the range means."""
    low, high = bounds
    number = check_number("budget", budget, owner=owner, minimum=0.0)
    return number * (high - low) / 255


def _gradient(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the cross-entropy; sums, so that batches do not matter."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        loss = F.cross_entropy(model(x), y, reduction="sum")
        return torch.autograd.grad(loss, x)[0]
