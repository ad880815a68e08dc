"""Traced arrays: nodes that behave like NumPy arrays, and the operations on them.

The loss of a model is called once with the arrays of this module. They implement
NumPy's protocols (``__array_ufunc__``, ``__array_function__``), so ``np.exp``,
``np.sum``, ``@`` and ``scipy.special.erf`` add nodes to a graph instead of computing
numbers. What needs a number is refused, with a sentence on what to write instead.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from eigenheads.models._graph import SOURCES, Graph, Node, NotTraceable

# --- Operations ----------------------------------------------------------------------


# Rows at least this long use the package's vectorised softmax; shorter ones are
# faster inlined into the loops around them.
_LONG_ROW = 32
# A Python loop over an array is unrolled; longer ones would make a huge graph.
_MAX_UNROLLED = 64

_FOLDED: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negative": operator.neg,
    "square": lambda x: x * x,
}

KNOWN_FUNCTIONS = (
    "exp, expm1, log, log1p, sqrt, square, tanh, sin, cos, arctan, abs, sign, maximum, "
    "minimum, clip, where, logaddexp, sum, mean, max, min, dot, outer, scipy.special's "
    "erf and expit, and eigenheads.models.softmax"
)

_SAME_AS = {
    "true_divide": "divide",
    "logical_and": "multiply",
    "bitwise_and": "multiply",
    "logical_or": "maximum",
    "bitwise_or": "maximum",
    "fabs": "absolute",
}


def refuse_function(name: str) -> NoReturn:
    """Refuse a function of NumPy or SciPy."""
    shown = f"np.{name}" if hasattr(np, name) else name
    raise NotTraceable(
        f"{shown}, which has no compiled form", f"Known: {KNOWN_FUNCTIONS}."
    )


def unrolled(length: int) -> range:
    """Return the indices of a Python loop over an array, or refuse a long one."""
    if length > _MAX_UNROLLED:
        raise NotTraceable(
            f"a Python loop over {length} entries", "Use array operations."
        )
    return range(length)


def apply(graph: Graph, name: str, *inputs: object) -> Node:
    """Return an elementwise operation on inputs that broadcast."""
    name = _SAME_AS.get(name, name)
    if name == "power":
        return power(graph.lift(inputs[0]), inputs[1])
    if name == "positive":
        return graph.lift(inputs[0])
    if name == "reciprocal":
        return apply(graph, "divide", 1.0, *inputs)
    if name not in SOURCES:
        refuse_function(name)
    nodes = [graph.lift(value) for value in inputs]
    try:
        shape = np.broadcast_shapes(*(node.shape for node in nodes))
    except ValueError:
        shapes = " and ".join(str(node.shape) for node in nodes)
        raise NotTraceable(
            f"np.{name} of shapes {shapes}", "They must broadcast."
        ) from None
    if name == "multiply" and any(node.operation == "put" for node in nodes):
        return _put_product(*nodes)
    simple = _simplified(graph, name, nodes)
    if simple is not None:
        return broadcast(simple, shape)
    return graph.add(name, [broadcast(node, shape) for node in nodes], None, shape)


def _simplified(graph: Graph, name: str, nodes: list[Node]) -> Any:
    """Return a simpler equal node, or None: constants folded, neutral ones dropped."""
    # The reverse pass makes many factors 1 and terms 0. Without them the generated
    # loops do less work, and more expressions are found to be equal.
    values = [number_of(node) for node in nodes]
    if None not in values and name in _FOLDED:
        return graph.constant(_FOLDED[name](*values))
    if name == "multiply" and 0.0 in values:
        return graph.constant(0.0)
    neutral = {"multiply": 1.0, "add": 0.0}.get(name)
    if neutral is not None and neutral in values:
        return nodes[1 - values.index(neutral)]
    if (name, values[-1]) in (("subtract", 0.0), ("divide", 1.0)):
        return nodes[0]
    if name == "subtract" and values[0] == 0.0:
        return -nodes[1]
    if name == "negative" and nodes[0].operation == "negative":
        return nodes[0].arguments[0]
    return None


def _put_product(left: Node, right: Node) -> Node:
    """Return the product with an array that is zero but for one index of an axis."""
    # The slope of x[0] is zero but for one entry. Its product needs that entry of the
    # other factor alone, and no loop over the axis.
    sparse, dense = (left, right) if left.operation == "put" else (right, left)
    shape = np.broadcast_shapes(left.shape, right.shape)
    if shape != sparse.shape:  # the zeros are repeated: nothing to gain
        nodes = [broadcast(left, shape), broadcast(right, shape)]
        return sparse.graph.add("multiply", nodes, None, shape)
    axis, index = sparse.detail
    picked = broadcast(dense, shape)[(*[slice(None)] * axis, index)]
    return put(sparse.arguments[0] * picked, axis, index, shape)


def put(node: Node, axis: int, index: int, shape: tuple[int, ...]) -> Node:
    """Return zeros with the node at one index of an axis."""
    return node.graph.add("put", [node], (axis, index), shape)


def number_of(node: Node) -> float | None:
    """Return the value of a constant, also of a repeated one, or None."""
    if node.operation == "view":
        node = node.arguments[0]
    return node.detail if node.operation == "constant" else None


def power(base: Node, exponent: object) -> Node:
    if isinstance(exponent, Node) or not np.isscalar(exponent):
        raise NotTraceable("a power whose exponent varies", "Write np.exp(b * log(a)).")
    number = float(exponent)  # type: ignore[arg-type]
    if number == 0.5:
        return apply(base.graph, "sqrt", base)
    if number == 2.0:
        return apply(base.graph, "square", base)
    if number.is_integer() and 1 <= abs(number) <= 8:
        product = base
        for _ in range(int(abs(number)) - 1):
            product = product * base
        return product if number > 0 else 1.0 / product
    return base.graph.add(
        "power",
        [base, broadcast(base.graph.constant(number), base.shape)],
        None,
        base.shape,
    )


def view(node: Node, axes: tuple[int | None, ...], shape: tuple[int, ...]) -> Node:
    """Return the node seen with another shape.

    Axis a of the node lies along axis ``axes[a]`` of the view; None marks an axis of
    length 1 that the view drops or repeats.
    """
    if shape == node.shape and axes == tuple(range(node.ndim)):
        return node
    return node.graph.add("view", [node], axes, shape)


def broadcast(node: Node, shape: tuple[int, ...]) -> Node:
    """Return the node repeated to a shape, by NumPy's rule: new axes come first."""
    extra = len(shape) - node.ndim
    axes = tuple(
        None if length == 1 and shape[extra + axis] != 1 else extra + axis
        for axis, length in enumerate(node.shape)
    )
    return view(node, axes, shape)


def indexed(node: Node, key: tuple[Any, ...]) -> Node:
    places = [part is Ellipsis for part in key]
    if any(places):
        at, used = places.index(True), sum(part is not None for part in key) - 1
        key = (*key[:at], *[slice(None)] * (node.ndim - used), *key[at + 1 :])
    if sum(part is not None for part in key) > node.ndim:
        raise IndexError("too many indices for a traced array")
    axis, origins = 0, list[int | None]()  # None for a new axis, else an axis of `node`
    for part in key:
        if part is None:
            origins.append(None)
        elif isinstance(part, int | np.integer) and not isinstance(part, bool):
            node = _picked(node, axis, int(part))
        else:
            node = _sliced(node, axis, part)
            origins.append(axis)
            axis += 1
    origins += list(range(axis, node.ndim))
    shape = tuple(1 if part is None else node.shape[part] for part in origins)
    return view(node, tuple(origins.index(a) for a in range(node.ndim)), shape)


def _picked(node: Node, axis: int, index: int) -> Node:
    length = node.shape[axis]
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for size {length}")
    shape = node.shape[:axis] + node.shape[axis + 1 :]
    if node.operation == "view" and node.arguments[0].shape == ():
        return view(node.arguments[0], (), shape)
    return node.graph.add("pick", [node], (axis, index % length), shape)


def _sliced(node: Node, axis: int, part: object) -> Node:
    if not isinstance(part, slice):
        raise NotTraceable(
            "an index that is an array", "Use whole numbers, slices and np.newaxis."
        )
    start, stop, step = part.indices(node.shape[axis])
    if step != 1 or stop <= start:
        raise NotTraceable("an empty slice or one with a step", "Use start:stop.")
    if (start, stop) == (0, node.shape[axis]):
        return node
    shape = (*node.shape[:axis], stop - start, *node.shape[axis + 1 :])
    return node.graph.add("slice", [node], (axis, start), shape)


def reduced(kind: str, node: Node, axis: Any = None, keepdims: bool = False) -> Node:
    """Return the sum or the maximum of a node over some axes."""
    if axis is None:
        axis = tuple(range(node.ndim))
    axes = tuple(sorted(a % node.ndim for a in np.atleast_1d(axis).tolist()))
    if not axes:
        return node
    remaining = tuple(a for a in range(node.ndim) if a not in axes)
    if kind == "sum" and node.operation == "put" and axes == (node.detail[0],):
        result = node.arguments[0]
    else:
        shape = tuple(node.shape[a] for a in remaining)
        result = node.graph.add(kind, [node], axes, shape)
    if not keepdims:
        return result
    shape = tuple(1 if a in axes else node.shape[a] for a in range(node.ndim))
    return view(result, remaining, shape)


def mean(graph: Graph, value: object, axis: Any = None, keepdims: bool = False) -> Node:
    node = graph.lift(value)
    total = reduced("sum", node, axis, keepdims)
    # As an entry of a constant array, so that the source does not depend on the size.
    return total / graph.lift(np.array([node.size / total.size]))[0]


def matrix_product(left: Node, right: Node) -> Node:
    """Return the matrix product of arrays with one or two axes."""
    if not (1 <= left.ndim <= 2 and 1 <= right.ndim <= 2):
        raise NotTraceable("@ of a number or of three axes", "Use sums of products.")
    if left.shape[-1] != right.shape[0]:
        raise NotTraceable(
            f"@ of shapes {left.shape} and {right.shape}", "The inner sizes must agree."
        )
    # A matrix product is the sum of a broadcast product. Views cost nothing, and the
    # emitter fuses the product with the loop of the sum.
    if right.ndim == 1:
        return reduced("sum", left * right, axis=-1)
    if left.ndim == 1:
        return reduced("sum", left[:, None] * right, axis=0)
    return reduced("sum", left[:, None, :] * right.T[None, :, :], axis=-1)


def stopped(node: Node) -> Node:
    """Return the node with its derivative taken as zero."""
    return node.graph.add("stop", [node], None, node.shape)


def traced_softmax(node: Node, axis: int) -> Node:
    """Return the softmax of a node along one axis."""
    axis %= node.ndim
    if axis == node.ndim - 1 and node.shape[axis] >= _LONG_ROW:
        # A row of its own in memory, for the vectorised routine.
        stored = node.graph.add("copy", [node], None, node.shape)
        return node.graph.add("softmax", [stored], None, node.shape)
    # The maximum cancels in value and derivative.
    top = stopped(reduced("max", node, axis, keepdims=True))
    exponential = apply(node.graph, "exp", node - top)
    return exponential / reduced("sum", exponential, axis, keepdims=True)


def _norm(graph: Graph, value: object, axis: Any = None) -> Node:
    node = graph.lift(value)
    return apply(graph, "sqrt", reduced("sum", apply(graph, "square", node), axis))


def _clip(graph: Graph, value: object, low: object, high: object) -> Node:
    return apply(graph, "minimum", apply(graph, "maximum", value, low), high)


ARRAY_FUNCTIONS: dict[str, Callable[..., Node]] = {
    "sum": lambda g, x, axis=None, keepdims=False: reduced("sum", x, axis, keepdims),
    "max": lambda g, x, axis=None, keepdims=False: reduced("max", x, axis, keepdims),
    "amax": lambda g, x, axis=None, keepdims=False: reduced("max", x, axis, keepdims),
    "min": lambda g, x, axis=None, keepdims=False: x.min(axis, keepdims),
    "amin": lambda g, x, axis=None, keepdims=False: x.min(axis, keepdims),
    "mean": mean,
    "where": lambda g, c, a, b: apply(g, "where", c, a, b),
    "clip": _clip,
    "dot": lambda g, a, b: matrix_product(g.lift(a), g.lift(b)),
    "inner": lambda g, a, b: matrix_product(g.lift(a), g.lift(b).T),
    "outer": lambda g, a, b: g.lift(a)[:, None] * g.lift(b)[None, :],
    "transpose": lambda g, x: x.T,
    "norm": _norm,
}


# --- Arrays --------------------------------------------------------------------------


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
