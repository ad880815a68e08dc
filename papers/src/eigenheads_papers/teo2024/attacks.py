"""Attacks of the paper's Table 2 that the library does not have.

They take a model (a function from inputs to logits), inputs from 0 to 1 and their
classes, as those of :data:`eigenheads.robustness.ATTACKS` do. To evaluate a model of
your own with them: ``evaluate_robustness(…, attacks={"carlini-wagner":
carlini_wagner})``. Options are not checked.
"""

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from eigenheads.extend.models import input_gradient, margin

Model = Callable[[Tensor], Tensor]


def carlini_wagner(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    weight: float = 1.0,
    confidence: float = 0.0,
    n_steps: int = 50,
    learning_rate: float = 0.01,
    max_distance: float = math.inf,
) -> Tensor:
    r"""Attack by the smallest change that fools the model (Carlini and Wagner 2017).

    Minimises :math:`\lVert x' - x \rVert_2^2 + c \max(z_y - \max_{i \ne y} z_i,
    -\kappa)` by Adam, over :math:`x'` written as a hyperbolic tangent, which keeps it
    between 0 and 1.

    Parameters
    ----------
    model, x, y
        Model, inputs and their classes.
    weight
        :math:`c`.
    confidence
        :math:`\kappa`: margin of the wrong class.
    n_steps, learning_rate
        Of Adam.
    max_distance
        Largest allowed Euclidean distance.

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
    # A tangent never reaches the bounds themselves: stay a little inside.
    inside = (2 * x.detach() - 1).clamp(-1 + 1e-6, 1 - 1e-6)
    attacked, nearest = x.detach().clone(), torch.full((len(x),), math.inf).to(x)
    with torch.enable_grad():
        free = torch.atanh(inside).requires_grad_(True)
        optimizer = torch.optim.Adam([free], lr=learning_rate)
        for _ in range(n_steps):
            at = (torch.tanh(free) + 1) / 2
            margins = margin(model(at), y)
            squares = (at - x).square().flatten(1).sum(1)
            with torch.no_grad():
                distance = squares.sqrt()
                fools = (margins > 0) & (distance <= max_distance)
                closer = fools & (distance < nearest)
                attacked[closer], nearest[closer] = at[closer], distance[closer]
            objective = squares + weight * (-margins).clamp_min(-confidence)
            optimizer.zero_grad()
            # Only the inputs' gradient: a backward pass would fill the model's, too.
            (free.grad,) = torch.autograd.grad(objective.sum(), free)
            optimizer.step()
    return attacked.detach()


def sparse_l1_descent(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    budget: float,
    n_steps: int = 20,
    share: float = 0.01,
) -> Tensor:
    """Attack by steps along few entries (Tramèr and Boneh 2019).

    Each step moves the entries with the largest gradients by twice the budget over
    `n_steps`, and projects onto the ball of the sum of absolute changes.

    Parameters
    ----------
    model, x, y
        Model, inputs and their classes.
    budget
        Largest sum of absolute changes: that many entries could change by the whole
        range.
    n_steps
        Number of steps.
    share
        Share of the entries that each step moves.

    Returns
    -------
    attacked
        Inputs within the budget, from 0 to 1.

    Examples
    --------
    >>> import torch
    >>> x = torch.full((1, 4), 0.5)
    >>> attacked = sparse_l1_descent(
    ...     lambda x: x[:, :2], x, torch.tensor([0]), budget=0.2, share=0.25)
    >>> bool((attacked - x).abs().sum() <= 0.2 + 1e-6), bool(attacked.argmax(1) != 0)
    (True, True)
    """
    at = x.detach().clone()
    n_moved = max(1, round(share * x[0].numel()))
    for _ in range(n_steps):
        slope = input_gradient(model, at, y)
        # Entries at a bound cannot move further, so they are no candidates.
        room = torch.where(slope > 0, at < 1, at > 0)
        sizes = (slope.abs() * room).flatten(1)
        chosen = torch.zeros_like(sizes, dtype=torch.bool)
        chosen.scatter_(1, sizes.topk(n_moved, dim=1).indices, True)
        signs = torch.where(chosen, slope.flatten(1).sign(), 0.0)
        count = signs.abs().sum(1, keepdim=True).clamp_min(1.0)
        at = at + (2 * budget / n_steps * signs / count).view_as(x)
        at = (x + project_l1(at - x, budget)).clamp(0.0, 1.0)
    return at.detach()


def project_l1(change: Tensor, radius: float) -> Tensor:
    """Return the nearest change whose absolute entries sum to at most `radius`."""
    # Soft thresholding with the threshold that makes the sum equal to the radius.
    flat = change.flatten(1)
    sizes = flat.abs().sort(1, descending=True).values
    index = torch.arange(1, flat.shape[1] + 1, device=flat.device)
    excess = (sizes.cumsum(1) - radius) / index
    # The threshold belongs to the last entry that stays above it.
    n_above = (sizes > excess).sum(1, keepdim=True).clamp_min(1)
    threshold = excess.gather(1, n_above - 1).clamp_min(0.0)
    shrunk = flat.sign() * (flat.abs() - threshold).clamp_min(0.0)
    is_inside = flat.abs().sum(1, keepdim=True) <= radius
    return torch.where(is_inside, flat, shrunk).view_as(change)


PAPERS_ATTACKS: Final[dict[str, Callable[..., Tensor]]] = {
    "carlini-wagner": carlini_wagner,
    "sparse-l1": sparse_l1_descent,
}
