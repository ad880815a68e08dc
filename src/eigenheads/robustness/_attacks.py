"""Attacks that use the gradient of the model.

FGSM, PGD and APGD change inputs within a maximum norm, sparse descent within a sum of
absolute changes; Carlini and Wagner's attack looks for the smallest change. Budgets in
the maximum norm are given in 1/255 of the pixel range, as papers do.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
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
    check_attack,
    check_bounded_attack,
)

# Larger numbers overflow in single precision.
_LARGEST = 1e30


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
    data, radius = check_bounded_attack(budget, model, x, y, bounds, owner="fgsm")
    model, x, y, bounds = data
    step = radius * _gradient(model, x, y).sign()
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
        budget, model, x, y, bounds, owner="pgd", generator=generator
    )
    model, x, y, bounds = data
    random_start = check_flag("random_start", random_start, owner="pgd")
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
    owner = "apgd"
    (model, x, y, bounds), radius = check_bounded_attack(
        budget, model, x, y, bounds, owner=owner, generator=generator
    )
    n_steps = check_count("n_steps", n_steps, owner=owner)
    check_choice("loss", loss, ("ce", "dlr"), owner=owner)
    measure = _cross_entropy if loss == "ce" else _logits_ratio
    noise = 2 * torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device) - 1
    # The start is scaled to touch the ball's surface.
    top = noise.abs().flatten(1).amax(1).clamp_min(1e-12)
    at = project(x + radius * noise / _per_input(top, x), x, radius, bounds)
    step = torch.full((len(x),), 2.0, dtype=x.dtype, device=x.device)  # in radii
    value, slope, fooled = _loss_and_gradient(model, at, y, measure)
    best, best_value, best_slope = at.clone(), value.clone(), slope.clone()
    found = at.clone()  # the best point, or a fooling one
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
        found = torch.where(_per_input(now & ~fooled, x), at, found)
        found = torch.where(_per_input(better & ~fooled & ~now, x), at, found)
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
    return found.detach()


def carlini_wagner(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    weight: float = 1.0,
    confidence: float = 0.0,
    n_steps: int = 50,
    learning_rate: float = 0.01,
    max_distance: float | None = None,
    bounds: Bounds = (0.0, 1.0),
) -> Tensor:
    r"""Attack by the smallest change that fools the model (Carlini and Wagner 2017).

    Minimises :math:`\lVert x' - x \rVert_2^2 + c \max(z_y - \max_{i \ne y} z_i,
    -\kappa)` by Adam, over :math:`x'` written as a hyperbolic tangent, which keeps the
    bounds.

    Parameters
    ----------
    model, x, y, bounds
        As in :func:`fgsm`.
    weight
        :math:`c`.
    confidence
        :math:`\kappa`: margin of the wrong class.
    n_steps, learning_rate
        Of Adam.
    max_distance
        Largest allowed Euclidean distance, in units of the range; None for any.

    Returns
    -------
    attacked
        For each input the nearest point found that fools the model, or the input.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[0.55, 0.45]])
    >>> attacked = carlini_wagner(lambda x: 20 * x, x, torch.tensor([0]))
    >>> bool(attacked.argmax(1) == 1 and (attacked - x).norm() < 0.2)
    True
    """
    owner = "carlini_wagner"
    model, x, y, bounds = check_attack(model, x, y, bounds, owner=owner)
    weight = check_positive("weight", weight, owner=owner)
    kappa = check_number(
        "confidence", confidence, owner=owner, minimum=0.0, maximum=_LARGEST
    )
    rate = check_positive("learning_rate", learning_rate, owner=owner)
    check_number("learning_rate", rate, owner=owner, maximum=_LARGEST)
    n_steps = check_count("n_steps", n_steps, owner=owner)
    limit = math.inf
    if max_distance is not None:
        limit = check_positive("max_distance", max_distance, owner=owner)
    low, high = bounds
    # A tangent never reaches the bounds themselves: stay a little inside.
    inside = (2 * (x.detach() - low) / (high - low) - 1).clamp(-1 + 1e-6, 1 - 1e-6)
    found, nearest = x.detach().clone(), torch.full((len(x),), math.inf).to(x)
    with torch.enable_grad():
        free = torch.atanh(inside).requires_grad_(True)
        optimizer = torch.optim.Adam([free], lr=rate)
        for _ in range(n_steps):
            at = low + (high - low) * (torch.tanh(free) + 1) / 2
            logits = model(at)
            squares = (at - x).square().flatten(1).sum(1)
            with torch.no_grad():
                distance = squares.sqrt() / (high - low)
                fools = (margin(logits, y) > 0) & (distance <= limit)
                closer = fools & (distance < nearest)
                found[closer], nearest[closer] = at[closer], distance[closer]
            objective = squares + weight * (-margin(logits, y)).clamp_min(-kappa)
            optimizer.zero_grad()
            # Only the inputs' gradient: a backward pass would fill the model's, too.
            (free.grad,) = torch.autograd.grad(objective.sum(), free)
            optimizer.step()
    return found.detach()


def sparse_l1_descent(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: float,
    n_steps: int = 20,
    share: float = 0.01,
    step_size: float | None = None,
    bounds: Bounds = (0.0, 1.0),
) -> Tensor:
    """Attack by steps along few entries (Tramèr and Boneh 2019).

    Each step moves the entries with the largest gradients, and projects onto the ball
    of the sum of absolute changes.

    Parameters
    ----------
    model, x, y, bounds
        As in :func:`fgsm`.
    budget
        Largest sum of absolute changes in units of the range: that many entries could
        change by the whole range.
    n_steps
        Number of steps.
    share
        Share of the entries that each step moves.
    step_size
        Sum of absolute changes of each step; by default twice the budget over
        `n_steps`.

    Returns
    -------
    attacked
        Inputs within the budget and the bounds.

    Examples
    --------
    >>> import torch
    >>> x = torch.full((1, 4), 0.5)
    >>> attacked = sparse_l1_descent(
    ...     lambda x: x[:, :2], x, torch.tensor([0]), budget=0.2, share=0.25)
    >>> bool((attacked - x).abs().sum() <= 0.2 + 1e-6), bool(attacked.argmax(1) != 0)
    (True, True)
    """
    owner = "sparse_l1_descent"
    model, x, y, bounds = check_attack(model, x, y, bounds, owner=owner)
    width = bounds[1] - bounds[0]
    radius = width * check_number(
        "budget", budget, owner=owner, minimum=0.0, maximum=_LARGEST
    )
    n_steps = check_count("n_steps", n_steps, owner=owner)
    share = check_number("share", share, owner=owner, minimum=0.0, maximum=1.0)
    size = 2 * radius / n_steps
    if step_size is not None:
        size = check_positive("step_size", step_size, owner=owner) * width
        check_number("step_size", size, owner=owner, maximum=_LARGEST)
    at, n_entries = x.detach().clone(), x[0].numel()
    n_moved = max(1, round(share * n_entries))
    for _ in range(n_steps):
        slope = _gradient(model, at, y)
        # Entries at a bound cannot move further, so they are no candidates.
        room = torch.where(slope > 0, at < bounds[1], at > bounds[0])
        size_of = (slope.abs() * room).flatten(1)
        chosen = torch.zeros_like(size_of, dtype=torch.bool)
        chosen.scatter_(1, size_of.topk(n_moved, dim=1).indices, True)
        signs = torch.where(chosen, slope.flatten(1).sign(), 0.0)
        count = signs.abs().sum(1, keepdim=True).clamp_min(1.0)
        at = at + (size * signs / count).view_as(x)
        at = (x + project_l1(at - x, radius)).clamp(*bounds)
    return at.detach()


def project_l1(change: Tensor, radius: float) -> Tensor:
    """Return the nearest change whose absolute entries sum to at most `radius`."""
    # Soft thresholding with the threshold that makes the sum equal to the radius.
    flat = change.flatten(1)
    sizes = flat.abs().sort(1, descending=True).values
    index = torch.arange(1, flat.shape[1] + 1, device=flat.device)
    excess = (sizes.cumsum(1) - radius) / index
    # The threshold belongs to the last entry that stays above it.
    n_kept = (sizes > excess).sum(1, keepdim=True).clamp_min(1)
    threshold = excess.gather(1, n_kept - 1).clamp_min(0.0)
    shrunk = flat.sign() * (flat.abs() - threshold).clamp_min(0.0)
    is_inside = flat.abs().sum(1, keepdim=True) <= radius
    return torch.where(is_inside, flat, shrunk).view_as(change)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Return the largest wrong logit minus the right one: positive if fooled."""
    right = logits.gather(1, y[:, None]).squeeze(1)
    hidden = logits.scatter(1, y[:, None], -torch.inf)
    return hidden.max(1).values - right


def project(at: Tensor, x: Tensor, radius: Budget, bounds: Bounds) -> Tensor:
    """Return the nearest point within the ball around `x` and the bounds."""
    return torch.min(torch.max(at, x - radius), x + radius).clamp(*bounds)


def _gradient(model: Model, x: Tensor, y: Tensor) -> Tensor:
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
            fail("model", contract, got, owner="attack")
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
