"""Traced arrays: a function written in NumPy becomes a graph of operations.

The loss of a model is called once with the arrays of this module. They implement
NumPy's protocols (``__array_ufunc__``, ``__array_function__``), so ``np.exp``,
``np.sum``, ``@`` and ``scipy.special.erf`` add nodes to a graph instead of computing
numbers. Equal subexpressions become one node. :func:`gradients` adds the reverse pass
to the same graph; ``_emit`` turns it into fused loops.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from eigenheads._typing import FloatArray

# Rows at least this long use the package's vectorised softmax; shorter ones are
# faster inlined into the loops around them.
_LONG_ROW = 32
# A loop over a traced array is unrolled; longer ones would make a huge graph.
_MAX_UNROLLED = 64

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


class NotTraceable(Exception):
    """Something in the loss has no compiled form; holds what was found and a remedy."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found, self.remedy = found, remedy


class Graph:
    """Nodes in order of creation, each expression once."""

    def __init__(self) -> None:
        self.nodes: list[TracedArray] = []
        self.arrays: list[FloatArray] = []  # constant arrays of the loss
        self._known: dict[tuple[Any, ...], TracedArray] = {}

    def add(
        self,
        operation: str,
        arguments: Sequence["TracedArray"] = (),
        detail: Any = None,
        shape: tuple[int, ...] = (),
    ) -> "TracedArray":
        """Return the node of this expression, new or known."""
        key = (operation, tuple(node.index for node in arguments), detail, shape)
        if key not in self._known:
            node = TracedArray(self, operation, tuple(arguments), detail, shape)
            self._known[key] = node
            self.nodes.append(node)
        return self._known[key]

    def memory(self, template: str, shape: tuple[int, ...] = ()) -> "TracedArray":
        """Return an input: `template` is its source, with ``{}`` for its index."""
        return self.add("input", (), template, shape)

    def constant(self, value: float) -> "TracedArray":
        """Return a number as a node."""
        return self.add("constant", (), float(value))

    def lift(self, value: object) -> "TracedArray":
        """Return numbers and constant arrays as nodes, and nodes as they are."""
        if isinstance(value, TracedArray):
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

    def _array(self, array: FloatArray) -> "TracedArray":
        same = [np.array_equal(known, array, equal_nan=True) for known in self.arrays]
        number = same.index(True) if True in same else len(self.arrays)
        if number == len(self.arrays):
            self.arrays.append(array)
        return self.memory(f"constants[<{number}> + {{}}]", array.shape)


class TracedArray:
    """One node of the graph, used like a NumPy array."""

    __array_priority__ = 1000
    __hash__ = object.__hash__

    def __init__(
        self,
        graph: Graph,
        operation: str,
        arguments: tuple["TracedArray", ...],
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

    @property
    def T(self) -> "TracedArray":
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

    def __iter__(self) -> Iterator["TracedArray"]:
        if len(self) > _MAX_UNROLLED:
            raise NotTraceable(
                f"a Python loop over {len(self)} entries", "Use array operations."
            )
        return (self[index] for index in range(len(self)))

    def __getitem__(self, key: object) -> "TracedArray":
        return _indexed(self, key if isinstance(key, tuple) else (key,))

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: object
    ) -> "TracedArray":
        name = ufunc.__name__
        if method == "reduce" and name == "add":
            return reduced("sum", self, **options)  # type: ignore[arg-type]
        if method != "__call__" or options:
            raise NotTraceable(
                f"np.{name} with {method if method != '__call__' else 'options'}",
                "Call it with arrays alone.",
            )
        if name == "matmul":
            return _product(*(self.graph.lift(value) for value in inputs))
        return apply(self.graph, name, *inputs)

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: object,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        name = function.__name__
        if name not in _FUNCTIONS:
            raise NotTraceable(
                f"np.{name}, which has no compiled form", f"Known: {KNOWN_FUNCTIONS}."
            )
        return _FUNCTIONS[name](self.graph, *arguments, **options)

    def sum(self, axis: Any = None, keepdims: bool = False) -> "TracedArray":
        """Return the sum over some axes."""
        return reduced("sum", self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> "TracedArray":
        """Return the mean over some axes."""
        return _mean(self.graph, self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> "TracedArray":
        """Return the maximum over some axes."""
        return reduced("max", self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> "TracedArray":
        """Return the minimum over some axes."""
        return -reduced("max", -self, axis, keepdims)

    def dot(self, other: object) -> "TracedArray":
        """Return the matrix product."""
        return self @ other

    def __matmul__(self, other: object) -> "TracedArray":
        if hasattr(other, "is_vector"):
            return NotImplemented
        return _product(self, self.graph.lift(other))

    def __rmatmul__(self, other: object) -> "TracedArray":
        return _product(self.graph.lift(other), self)

    def __pow__(self, exponent: object) -> "TracedArray":
        return _power(self, exponent)

    def __neg__(self) -> "TracedArray":
        return apply(self.graph, "negative", self)

    def __pos__(self) -> "TracedArray":
        return self

    def __abs__(self) -> "TracedArray":
        return apply(self.graph, "absolute", self)

    def __invert__(self) -> "TracedArray":
        return 1.0 - self

    # Filled in below; declared for type checkers.
    __add__: Any
    __radd__: Any
    __sub__: Any
    __rsub__: Any
    __mul__: Any
    __rmul__: Any
    __truediv__: Any
    __rtruediv__: Any


def _operator(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: TracedArray, other: object) -> Any:
        if hasattr(other, "is_vector"):
            return NotImplemented
        pair = (other, self) if swapped else (self, other)
        return apply(self.graph, name, *pair)

    return method


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
for _method, _name in (
    ("gt", "greater"),
    ("ge", "greater_equal"),
    ("lt", "less"),
    ("le", "less_equal"),
    ("eq", "equal"),
    ("ne", "not_equal"),
):
    setattr(TracedArray, f"__{_method}__", _operator(_name))


# --- building nodes ---------------------------------------------------------------

_SAME_AS = {
    "true_divide": "divide",
    "logical_and": "multiply",
    "bitwise_and": "multiply",
    "logical_or": "maximum",
    "bitwise_or": "maximum",
    "fabs": "absolute",
}


def apply(graph: Graph, name: str, *inputs: object) -> TracedArray:
    """Return an elementwise operation on inputs that broadcast."""
    name = _SAME_AS.get(name, name)
    if name == "power":
        return _power(graph.lift(inputs[0]), inputs[1])
    if name == "positive":
        return graph.lift(inputs[0])
    if name == "reciprocal":
        return apply(graph, "divide", 1.0, *inputs)
    if name not in SOURCES:
        raise NotTraceable(
            f"np.{name}, which has no compiled form", f"Known: {KNOWN_FUNCTIONS}."
        )
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


def _simplified(graph: Graph, name: str, nodes: list[TracedArray]) -> Any:
    """Return a simpler equal node, or None: constants folded, neutral ones dropped."""
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


def _put_product(left: TracedArray, right: TracedArray) -> TracedArray:
    """Return the product with an array that is zero but for one index of an axis."""
    sparse, other = (left, right) if left.operation == "put" else (right, left)
    shape = np.broadcast_shapes(left.shape, right.shape)
    if shape != sparse.shape:  # the zeros are repeated: nothing to gain
        nodes = [broadcast(left, shape), broadcast(right, shape)]
        return sparse.graph.add("multiply", nodes, None, shape)
    axis, index = sparse.detail
    picked = broadcast(other, shape)[(*[slice(None)] * axis, index)]
    return put(sparse.arguments[0] * picked, axis, index, shape)


def put(
    node: TracedArray, axis: int, index: int, shape: tuple[int, ...]
) -> TracedArray:
    """Return zeros with the node at one index of an axis."""
    return node.graph.add("put", [node], (axis, index), shape)


def number_of(node: TracedArray) -> float | None:
    """Return the value of a constant, also of a repeated one, or None."""
    if node.operation == "view":
        node = node.arguments[0]
    return node.detail if node.operation == "constant" else None


def _power(base: TracedArray, exponent: object) -> TracedArray:
    if isinstance(exponent, TracedArray) or not np.isscalar(exponent):
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


def view(
    node: TracedArray, axes: tuple[int | None, ...], shape: tuple[int, ...]
) -> TracedArray:
    """Return the node seen with another shape.

    Axis a of the node lies along axis ``axes[a]`` of the view; None marks an axis of
    length 1 that the view drops or repeats.
    """
    if shape == node.shape and axes == tuple(range(node.ndim)):
        return node
    return node.graph.add("view", [node], axes, shape)


def broadcast(node: TracedArray, shape: tuple[int, ...]) -> TracedArray:
    """Return the node repeated to a shape, by NumPy's rule: new axes come first."""
    extra = len(shape) - node.ndim
    axes = tuple(
        None if length == 1 and shape[extra + axis] != 1 else extra + axis
        for axis, length in enumerate(node.shape)
    )
    return view(node, axes, shape)


def _indexed(node: TracedArray, key: tuple[Any, ...]) -> TracedArray:
    places = [part is Ellipsis for part in key]
    if any(places):
        at, used = places.index(True), sum(part is not None for part in key) - 1
        key = (*key[:at], *[slice(None)] * (node.ndim - used), *key[at + 1 :])
    if sum(part is not None for part in key) > node.ndim:
        raise IndexError("too many indices for a traced array")
    axis, kept = 0, list[int | None]()  # None for a new axis, else an axis of `node`
    for part in key:
        if part is None:
            kept.append(None)
        elif isinstance(part, int | np.integer) and not isinstance(part, bool):
            node = _picked(node, axis, int(part))
        else:
            node = _sliced(node, axis, part)
            kept.append(axis)
            axis += 1
    kept += list(range(axis, node.ndim))
    shape = tuple(1 if part is None else node.shape[part] for part in kept)
    return view(node, tuple(kept.index(a) for a in range(node.ndim)), shape)


def _picked(node: TracedArray, axis: int, index: int) -> TracedArray:
    length = node.shape[axis]
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for size {length}")
    shape = node.shape[:axis] + node.shape[axis + 1 :]
    if node.operation == "view" and node.arguments[0].shape == ():
        return view(node.arguments[0], (), shape)
    return node.graph.add("pick", [node], (axis, index % length), shape)


def _sliced(node: TracedArray, axis: int, part: object) -> TracedArray:
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


def reduced(
    kind: str, node: TracedArray, axis: Any = None, keepdims: bool = False
) -> TracedArray:
    """Return the sum or the maximum of a node over some axes."""
    if axis is None:
        axis = tuple(range(node.ndim))
    axes = tuple(sorted(a % node.ndim for a in np.atleast_1d(axis).tolist()))
    if not axes:
        return node
    kept = tuple(a for a in range(node.ndim) if a not in axes)
    if kind == "sum" and node.operation == "put" and axes == (node.detail[0],):
        result = node.arguments[0]
    else:
        shape = tuple(node.shape[a] for a in kept)
        result = node.graph.add(kind, [node], axes, shape)
    if not keepdims:
        return result
    shape = tuple(1 if a in axes else node.shape[a] for a in range(node.ndim))
    return view(result, kept, shape)


def _mean(
    graph: Graph, value: object, axis: Any = None, keepdims: bool = False
) -> TracedArray:
    node = graph.lift(value)
    total = reduced("sum", node, axis, keepdims)
    return total / (node.size / total.size)


def _product(left: TracedArray, right: TracedArray) -> TracedArray:
    """Return the matrix product of arrays with one or two axes."""
    if not (1 <= left.ndim <= 2 and 1 <= right.ndim <= 2):
        raise NotTraceable("@ of a number or of three axes", "Use sums of products.")
    if left.shape[-1] != right.shape[0]:
        raise NotTraceable(
            f"@ of shapes {left.shape} and {right.shape}", "The inner sizes must agree."
        )
    if right.ndim == 1:
        return reduced("sum", left * right, axis=-1)
    if left.ndim == 1:
        return reduced("sum", left[:, None] * right, axis=0)
    return reduced("sum", left[:, None, :] * right.T[None, :, :], axis=-1)


def stopped(node: TracedArray) -> TracedArray:
    """Return the node with its derivative taken as zero."""
    return node.graph.add("stop", [node], None, node.shape)


def traced_softmax(node: TracedArray, axis: int) -> TracedArray:
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


def _norm(graph: Graph, value: object, axis: Any = None) -> TracedArray:
    node = graph.lift(value)
    return apply(graph, "sqrt", reduced("sum", apply(graph, "square", node), axis))


def _clip(graph: Graph, value: object, low: object, high: object) -> TracedArray:
    return apply(graph, "minimum", apply(graph, "maximum", value, low), high)


_FUNCTIONS: dict[str, Callable[..., TracedArray]] = {
    "sum": lambda g, x, axis=None, keepdims=False: reduced("sum", x, axis, keepdims),
    "max": lambda g, x, axis=None, keepdims=False: reduced("max", x, axis, keepdims),
    "amax": lambda g, x, axis=None, keepdims=False: reduced("max", x, axis, keepdims),
    "min": lambda g, x, axis=None, keepdims=False: x.min(axis, keepdims),
    "amin": lambda g, x, axis=None, keepdims=False: x.min(axis, keepdims),
    "mean": _mean,
    "where": lambda g, c, a, b: apply(g, "where", c, a, b),
    "clip": _clip,
    "dot": lambda g, a, b: _product(g.lift(a), g.lift(b)),
    "inner": lambda g, a, b: _product(g.lift(a), g.lift(b).T),
    "outer": lambda g, a, b: g.lift(a)[:, None] * g.lift(b)[None, :],
    "transpose": lambda g, x: x.T,
    "norm": _norm,
}
