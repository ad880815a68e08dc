"""Expressions of a loss as a graph: each operation is a node, each expression once.

``_traced`` builds nodes that behave like NumPy arrays, ``_derivatives`` adds the
reverse pass, and ``_emit`` turns a graph into loops.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eigenheads._typing import FloatArray

COMPARISONS = {
    "greater": ">",
    "greater_equal": ">=",
    "less": "<",
    "less_equal": "<=",
    "equal": "==",
    "not_equal": "!=",
}

# Source of each elementwise operation; {0}, {1}, {2} are its arguments.
SOURCES = {
    "absolute": "abs({0})",
    "arctan": "math.atan({0})",
    "copy": "{0}",
    "cos": "math.cos({0})",
    "erf": "math.erf({0})",
    "exp": "math.exp({0})",
    "expit": "1.0 / (1.0 + math.exp(-{0}))",
    "expm1": "math.expm1({0})",
    "log": "math.log({0})",
    "log1p": "math.log1p({0})",
    "negative": "-{0}",
    "sign": "np.sign({0})",
    "sin": "math.sin({0})",
    "sqrt": "math.sqrt({0})",
    "square": "{0} * {0}",
    "tanh": "math.tanh({0})",
    "add": "{0} + {1}",
    "divide": "{0} / {1}",
    "logaddexp": "max({0}, {1}) + math.log1p(math.exp(-abs({0} - {1})))",
    "maximum": "max({0}, {1})",
    "minimum": "min({0}, {1})",
    "multiply": "{0} * {1}",
    "power": "{0} ** {1}",
    "subtract": "{0} - {1}",
    "where": "({1} if {0} != 0.0 else {2})",
} | {
    name: f"(1.0 if {{0}} {sign} {{1}} else 0.0)" for name, sign in COMPARISONS.items()
}


class NotTraceable(Exception):
    """Something in the loss has no compiled form; holds what was found and a remedy."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found, self.remedy = found, remedy


# Operations of a loss and its derivatives: about ten seconds of compilation.
MAX_OPERATIONS = 5_000


class LongLoss(NotTraceable, ValueError):
    """More operations than can be compiled; a sentence also where none is traced."""

    def __init__(self) -> None:
        length = f"more than {MAX_OPERATIONS} operations"
        super().__init__(length, "Use array operations instead of Python loops.")

    def __str__(self) -> str:
        contract = "a function that can be compiled"
        return f"Model: `loss` must be {contract}; got {self.found}. {self.remedy}"


def check_length(nodes: Sequence["Node"]) -> None:
    """Raise if the next node is one too many to be compiled."""
    if len(nodes) >= MAX_OPERATIONS:
        raise LongLoss


class Node:
    """One expression: an operation on other nodes, with the shape of its result."""

    def __init__(
        self,
        graph: "Graph",
        operation: str,
        arguments: tuple["Node", ...],
        detail: Any,
        shape: tuple[int, ...],
    ) -> None:
        self.graph, self.operation, self.arguments = graph, operation, arguments
        self.detail, self.shape, self.index = detail, shape, len(graph.nodes)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    # Operators of arrays, which the subclass defines.
    __add__: Any
    __radd__: Any
    __sub__: Any
    __rsub__: Any
    __mul__: Any
    __rmul__: Any
    __truediv__: Any
    __rtruediv__: Any
    __matmul__: Any
    __neg__: Any
    __pow__: Any
    __getitem__: Any
    __ge__: Any
    __gt__: Any
    __le__: Any
    __lt__: Any
    T: Any
    min: Any


class Graph:
    """Nodes in order of creation, each expression once.

    Parameters
    ----------
    node_type
        Class of the nodes, a subclass of :class:`Node`.
    """

    def __init__(self, node_type: Callable[..., Any]) -> None:
        self._node_type = node_type
        self.nodes: list[Node] = []
        self.arrays: list[FloatArray] = []  # constant arrays of the loss
        self._known: dict[tuple[Any, ...], Node] = {}

    def equals(self, graph: "Graph") -> bool:
        """Return whether both hold the same expressions of the same constants."""
        # As text, because a constant may be NaN.
        return repr(list(self._known)) == repr(list(graph._known)) and all(
            np.array_equal(array, counterpart, equal_nan=True)
            for array, counterpart in zip(self.arrays, graph.arrays, strict=True)
        )

    def add(
        self,
        operation: str,
        arguments: Sequence["Node"] = (),
        detail: Any = None,
        shape: tuple[int, ...] = (),
    ) -> "Node":
        """Return the node of this expression, new or known."""
        # Common subexpressions are merged here. Arguments were merged before, so two
        # expressions are equal if the indices of their arguments, the operation, the
        # detail and the shape agree. What the loss and its derivative share is computed
        # once.
        key = (operation, tuple(node.index for node in arguments), detail, shape)
        if key not in self._known:
            check_length(self.nodes)
            node = self._node_type(self, operation, tuple(arguments), detail, shape)
            # A node is appended after its arguments: the order of creation is an order
            # of evaluation, and the reverse pass and the emitter rely on it.
            self._known[key] = node
            self.nodes.append(node)
        return self._known[key]

    def memory(self, template: str, shape: tuple[int, ...] = ()) -> "Node":
        """Return an input: `template` is its source, with ``{}`` for its index."""
        return self.add("input", (), template, shape)

    def constant(self, value: float) -> "Node":
        """Return a number as a node."""
        return self.add("constant", (), float(value))

    def lift(self, value: object) -> "Node":
        """Return numbers and constant arrays as nodes, and nodes as they are."""
        if isinstance(value, Node):
            return value
        if hasattr(value, "is_vector"):
            raise NotTraceable(
                "arithmetic between numbers and vectors of R^d",
                "Take inner products first: X @ w.k, o @ o.",
            )
        try:
            array = np.asarray(value)
            if array.dtype.kind not in "biuf":
                raise TypeError
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise NotTraceable(
                f"a value of type {type(value).__name__}", "Use numbers and arrays."
            ) from None
        if array.ndim == 0:
            return self.constant(float(array))
        return self._array(array)

    def _array(self, array: FloatArray) -> "Node":
        # Equal arrays share one place.
        same = [np.array_equal(stored, array, equal_nan=True) for stored in self.arrays]
        number = same.index(True) if True in same else len(self.arrays)
        if number == len(self.arrays):
            self.arrays.append(array)
        return self.memory(f"c{number}[{{}}]", array.shape)
