"""Traced arrays: nodes that behave like NumPy arrays.

The loss of a model is called once with the arrays of this module. They implement
NumPy's protocols (``__array_ufunc__``, ``__array_function__``), so ``np.exp``,
``np.sum``, ``@`` and ``scipy.special.erf`` add nodes to a graph instead of computing
numbers. What needs a number is refused, with a sentence on what to write instead.
"""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from eigenheads.models._graph import Graph, Node, NotTraceable
from eigenheads.models._operations import (
    ARRAY_FUNCTIONS,
    apply,
    indexed,
    matrix_product,
    mean,
    power,
    reduced,
    refuse_function,
    unrolled,
    view,
)


def traced_graph() -> Graph:
    """Return an empty graph of traced arrays."""
    return Graph(TracedArray)


class TracedArray(Node):
    """One node of the graph, used like a NumPy array."""

    __array_priority__ = 1000
    __hash__ = object.__hash__

    @property
    def T(self) -> Node:
        """The transpose."""
        axes = tuple(range(self.ndim))[::-1]
        return view(self, axes, self.shape[::-1])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a traced number")
        return self.shape[0]

    # What needs a number now, and not a node, has no compiled form.

    def __bool__(self) -> NoReturn:
        raise NotTraceable(
            "a branch on a value (if, and, or, max())",
            "Write np.where(condition, a, b) or np.maximum(a, b).",
        )

    def _no_number(self, *_: object, **__: object) -> NoReturn:
        raise NotTraceable(
            "a conversion to a plain number or array (float, int, np.array, math.exp)",
            "Use NumPy functions on whole arrays: np.exp instead of math.exp.",
        )

    __float__ = __int__ = __index__ = __complex__ = __array__ = _no_number

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise NotTraceable(
            "an assignment to entries of an array",
            "Build the array with np.where and constant arrays.",
        )

    def __iter__(self) -> Iterator[Node]:
        return (self[index] for index in unrolled(len(self)))

    def __getitem__(self, key: object) -> Node:
        return indexed(self, key if isinstance(key, tuple) else (key,))

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: object
    ) -> Node:
        # NumPy hands every ufunc with a traced argument to this method: np.exp(node),
        # an array times a node and the erf of SciPy all arrive here and become nodes.
        name = ufunc.__name__
        if method == "reduce" and name == "add":
            return reduced("sum", self, **options)  # type: ignore[arg-type]
        if method != "__call__" or options:
            raise NotTraceable(
                f"np.{name} with {method if method != '__call__' else 'options'}",
                "Call it with arrays alone.",
            )
        if name == "matmul":
            return matrix_product(*(self.graph.lift(value) for value in inputs))
        return apply(self.graph, name, *inputs)

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: object,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        # Functions that are no ufuncs (np.sum, np.where, np.clip) arrive here. One
        # without a compiled form is refused now, while its name is known.
        name = function.__name__
        if name not in ARRAY_FUNCTIONS:
            refuse_function(name)
        return ARRAY_FUNCTIONS[name](self.graph, *arguments, **options)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Node:
        """Return the sum over some axes."""
        return reduced("sum", self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Node:
        """Return the mean over some axes."""
        return mean(self.graph, self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Node:
        """Return the maximum over some axes."""
        return reduced("max", self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Node:
        """Return the minimum over some axes."""
        return -reduced("max", -self, axis, keepdims)

    def dot(self, other: object) -> Node:
        """Return the matrix product."""
        return self @ other

    def __matmul__(self, other: object) -> Node:
        # Tokens and directions are symbols, not arrays. Python then calls their
        # reflected operator, which knows what a combination of tokens is.
        if hasattr(other, "is_vector"):
            return NotImplemented
        return matrix_product(self, self.graph.lift(other))

    def __rmatmul__(self, other: object) -> Node:
        return matrix_product(self.graph.lift(other), self)

    def __pow__(self, exponent: object) -> Node:
        return power(self, exponent)

    def __neg__(self) -> Node:
        return apply(self.graph, "negative", self)

    def __pos__(self) -> Node:
        return self

    def __abs__(self) -> Node:
        return apply(self.graph, "absolute", self)

    def __invert__(self) -> Node:
        return 1.0 - self


def _operator(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: TracedArray, other: object) -> Any:
        if hasattr(other, "is_vector"):
            return NotImplemented
        pair = (other, self) if swapped else (self, other)
        return apply(self.graph, name, *pair)

    return method


# Conditions are the numbers 0.0 and 1.0 in the graph, so that "and" is a product and
# "or" is a maximum.
for _method, _name in (
    ("add", "add"),
    ("sub", "subtract"),
    ("mul", "multiply"),
    ("truediv", "divide"),
    ("and", "multiply"),
    ("or", "maximum"),
):
    setattr(TracedArray, f"__{_method}__", _operator(_name))
    setattr(TracedArray, f"__r{_method}__", _operator(_name, swapped=True))
# Comparisons need no swapped form: Python reflects them by itself.
for _method, _name in (
    ("gt", "greater"),
    ("ge", "greater_equal"),
    ("lt", "less"),
    ("le", "less_equal"),
    ("eq", "equal"),
    ("ne", "not_equal"),
):
    setattr(TracedArray, f"__{_method}__", _operator(_name))
