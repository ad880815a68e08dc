"""The reverse pass: derivatives of a traced number, as nodes of the same graph."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eigenheads.models._graph import COMPARISONS, Node
from eigenheads.models._traced import apply, broadcast, number_of, reduced, view

# Derivative of y = f(x) with respect to x, from x and y.
# A slope that uses y reuses the value of the forward pass.
_SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "absolute": lambda x, y: np.sign(x),
    "arctan": lambda x, y: 1.0 / (1.0 + x * x),
    "copy": lambda x, y: 1.0,
    "cos": lambda x, y: -np.sin(x),
    "erf": lambda x, y: (2.0 / math.sqrt(math.pi)) * np.exp(-(x * x)),
    "exp": lambda x, y: y,
    "expit": lambda x, y: y * (1.0 - y),
    "expm1": lambda x, y: 1.0 + y,
    "log": lambda x, y: 1.0 / x,
    "log1p": lambda x, y: 1.0 / (1.0 + x),
    "sin": lambda x, y: np.cos(x),
    "sqrt": lambda x, y: 0.5 / y,
    "square": lambda x, y: 2.0 * x,
    "tanh": lambda x, y: 1.0 - y * y,
}


def gradients(output: Node, inputs: Sequence[Node]) -> list[Node | None]:
    """Return the derivatives of a traced number, None where it does not depend."""
    graph = output.graph
    # Reverse mode: nodes stand in order of creation, so in reverse order all users of a
    # node have passed on their parts before the node itself is reached, and its slope
    # is complete. The slice is a copy, because slopes are new nodes at the end of the
    # same list.
    slopes = {output.index: graph.constant(1.0)}
    for node in reversed(graph.nodes[: output.index + 1]):
        if node.index not in slopes or not node.arguments:
            continue
        parts = _pulled_back(node, broadcast(slopes[node.index], node.shape))
        for argument, part in zip(node.arguments, parts, strict=True):
            if part is None or argument.operation == "constant":
                continue
            before = slopes.get(argument.index)
            slopes[argument.index] = part if before is None else before + part
    return [slopes.get(node.index) for node in inputs]


def _pulled_back(node: Node, slope: Node) -> Sequence[Node | None]:
    """Return the derivatives with respect to a node's arguments, given its own."""
    name, arguments = node.operation, node.arguments
    if name in _SLOPES:
        return [slope * _SLOPES[name](arguments[0], node)]
    if name in _PULL_BACKS:
        return _PULL_BACKS[name](node, slope, *arguments)
    # These are constant almost everywhere, or declared constant (stop).
    if name in COMPARISONS or name in ("sign", "stop"):
        return [None] * len(arguments)
    raise AssertionError(f"no derivative of {name}")


def _from_view(node: Node, slope: Node, argument: Node) -> list[Node]:
    # An entry that the view repeats is read several times: its derivative is the sum
    # over the axes of the repetition.
    axes = node.detail
    repeated = tuple(a for a in range(node.ndim) if a not in axes)
    slope = reduced("sum", slope, repeated) if repeated else slope
    # What is left are the mapped axes in the view's order; put them in the argument's.
    order = sorted(a for a in axes if a is not None)
    back = [0] * len(order)
    for axis, place in enumerate(axes):
        if place is not None:
            back[order.index(place)] = axis
    return [view(slope, tuple(back), argument.shape)]


def _from_reduction(node: Node, slope: Node, argument: Node) -> list[Node]:
    axes = tuple(a for a in range(argument.ndim) if a not in node.detail)
    spread = view(slope, axes, argument.shape)
    if node.operation == "sum":
        return [spread]
    # A maximum passes its slope to the entry that attains it. At a tie, every largest
    # entry receives the full slope.
    largest = view(node, axes, argument.shape)
    is_largest = apply(node.graph, "greater_equal", argument, largest)
    return [apply(node.graph, "where", is_largest, spread, 0.0)]


def _from_slice(node: Node, slope: Node, argument: Node) -> list[Node]:
    # Reading entries and placing them among zeros are adjoint to each other.
    padding = "put" if node.operation == "pick" else "pad"
    return [node.graph.add(padding, [slope], node.detail, argument.shape)]


def _from_padding(node: Node, slope: Node, argument: Node) -> list[Node]:
    cut = "pick" if node.operation == "put" else "slice"
    return [node.graph.add(cut, [slope], node.detail, argument.shape)]


def _from_softmax(node: Node, slope: Node, argument: Node) -> list[Node]:
    # The Jacobian diag(p) - p pᵀ is applied to the slope and never built.
    mean = reduced("sum", slope * node, axis=-1, keepdims=True)
    return [node * (slope - mean)]


_PULL_BACKS: dict[str, Callable[..., Sequence[Node | None]]] = {
    "add": lambda n, s, a, b: [s, s],
    "subtract": lambda n, s, a, b: [s, -s],
    "negative": lambda n, s, a: [-s],
    "multiply": lambda n, s, a, b: [s * b, s * a],
    "divide": lambda n, s, a, b: [s / b, -(s * n / b)],
    "power": lambda n, s, a, b: [s * b * a ** (number_of(b) - 1.0), None],  # type: ignore[operator]
    "maximum": lambda n, s, a, b: [s * (a >= b), s * (a < b)],
    "minimum": lambda n, s, a, b: [s * (a <= b), s * (a > b)],
    "logaddexp": lambda n, s, a, b: [
        s * apply(n.graph, "expit", a - b),
        s * apply(n.graph, "expit", b - a),
    ],
    "where": lambda n, s, c, a, b: [
        None,
        apply(n.graph, "where", c, s, 0.0),
        apply(n.graph, "where", c, 0.0, s),
    ],
    "sum": _from_reduction,
    "max": _from_reduction,
    "view": _from_view,
    "pick": _from_slice,
    "slice": _from_slice,
    "put": _from_padding,
    "pad": _from_padding,
    "softmax": _from_softmax,
}
