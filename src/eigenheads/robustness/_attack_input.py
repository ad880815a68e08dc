"""Checked arguments of attacks, and two formulas that most attacks share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eigenheads._checks import (
    Got,
    check_callable,
    check_items,
    check_number,
    fail,
    shown,
)

Model = Callable[[Tensor], Tensor]
Bounds = tuple[float, float]
Budget = float | Tensor  # a tensor broadcasts to the inputs: one budget per channel

# Narrower ranges underflow in single precision.
_NARROWEST = 1e-20


class AttackInput(NamedTuple):
    """Checked arguments; the model raises if its output is no batch of logits."""

    model: Model
    x: Tensor
    y: Tensor
    bounds: Bounds


def check_attack(
    model: object,
    x: object,
    y: object,
    bounds: object,
    *,
    generator: object = None,
    least_axes: int = 2,
) -> AttackInput:
    """Return the arguments that all attacks share, or raise.

    `least_axes` is the least number of axes of the inputs, that of the batch included.
    """
    check_callable("model", model, "a function from inputs to logits")
    if generator is not None and not isinstance(generator, torch.Generator):
        fail("generator", "a torch.Generator or None", generator)
    points = _dense("x", x)
    if not points.is_floating_point() or points.itemsize == 1:
        fail("x", "a tensor of floats", Got(f"dtype {points.dtype}"))
    if points.ndim < least_axes or 0 in points.shape:
        axes = "(batch, …, height, width)" if least_axes > 2 else "(batch, …)"
        contract = f"of shape {axes}, without empty axes"
        fail("x", contract, Got(tuple(points.shape)))
    if not bool(points.detach().isfinite().all()):
        fail("x", "finite numbers", Got("nan or inf"))
    classes = _dense("y", y)
    if classes.is_floating_point() or classes.is_complex():
        contract = "a tensor of whole numbers"
        fail("y", contract, Got(f"dtype {classes.dtype}"))
    if classes.shape != points.shape[:1] or bool((classes < 0).any()):
        contract = f"classes >= 0 of shape ({len(points)},), one per input"
        got = shown(classes.detach().cpu().numpy())
        fail("y", contract, Got(got))
    classes = classes.long()
    limits = check_bounds(bounds)
    if max(map(abs, limits)) > torch.finfo(points.dtype).max:
        fail("bounds", f"numbers of {points.dtype}", bounds)
    checked = _with_checked_logits(model, int(classes.max()) + 1)
    return AttackInput(checked, points, classes, limits)


def check_bounded_attack(
    budget: object, *arguments: object, **options: Any
) -> tuple[AttackInput, Budget]:
    """Return the arguments of an attack and its radius in units of the inputs."""
    data = check_attack(*arguments, **options)
    return data, _read_budget(budget, data)


def check_bounds(bounds: object) -> Bounds:
    """Return the smallest and largest value of inputs, or raise."""
    contract = "two numbers, the smaller first"
    items = check_items("bounds", bounds, contract)
    if len(items) != 2:
        fail("bounds", contract, Got(f"{len(items)} of them"))
    low, high = (check_number("bounds", item) for item in items)
    if not high - low >= _NARROWEST:
        contract = f"two numbers, the second larger by at least {_NARROWEST:g}"
        fail("bounds", contract, bounds)
    return low, high


def _read_budget(budget: object, data: AttackInput) -> Budget:
    """Return the radius of a budget in 1/255 of the range."""
    low, high = data.bounds
    if not isinstance(budget, Tensor):
        number = check_number("budget", budget, minimum=0.0)
        return number * (high - low) / 255
    radius = _dense("budget", budget).detach()
    if not bool((radius >= 0).all()) or not bool(radius.isfinite().all()):
        got = Got("a tensor with other entries")
        fail("budget", "finite numbers >= 0", got)
    shape, expected = tuple(radius.shape), tuple(data.x.shape)
    pairs = zip(shape[::-1], expected[::-1], strict=False)
    if len(shape) > len(expected) or any(a not in (1, b) for a, b in pairs):
        contract = f"of a shape that broadcasts to that of `x`, {tuple(data.x.shape)}"
        fail("budget", contract, Got(tuple(radius.shape)))
    return radius.to(data.x) * (high - low) / 255


def _dense(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        fail(name, "a tensor", value, error=TypeError)
    is_other = value.is_nested or value.is_quantized or value.layout != torch.strided
    if value.is_meta or is_other:
        fail(name, "a dense tensor that holds numbers", Got("none"))
    return value


def _with_checked_logits(model: Any, n_classes: int) -> Model:
    def checked(x: Tensor) -> Tensor:
        logits = model(x)
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            contract = "a function that returns a tensor of logits"
            fail("model", contract, Got(type(logits).__name__))
        if logits.ndim != 2 or len(logits) != len(x) or logits.shape[1] < n_classes:
            contract = f"a function that returns ({len(x)}, {n_classes} or more) logits"
            fail("model", contract, Got(tuple(logits.shape)))
        return logits

    return checked


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Return the largest wrong logit minus the right one: positive if fooled."""
    right = logits.gather(1, y[:, None]).squeeze(1)
    hidden = logits.scatter(1, y[:, None], -torch.inf)
    return hidden.max(1).values - right


def project(at: Tensor, x: Tensor, radius: Budget, bounds: Bounds) -> Tensor:
    """Return the nearest point within the ball around `x` and the bounds."""
    return torch.min(torch.max(at, x - radius), x + radius).clamp(*bounds)
