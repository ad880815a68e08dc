"""Trace a loss of token vectors, and write the source of its gradient.

The loss sees real vectors: ``X`` (tokens × d), ``w.k``, ``u.key``. Here they are
symbols, and only the products that a loss takes of them are arrays:

- ``X @ w.k`` and ``X @ u.key``: fields, one number per token (class A);
- ``a @ X``, ``X[0]``, differences of them: vectors that combine tokens. Their products
  with directions are fields; their products with each other (``o @ o``) are drawn by
  the engine (class B);
- ``w.k @ w.v``, ``w.k @ u.key``: overlaps, for penalties.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from eigenheads._checks import check_count, check_numbers, fail
from eigenheads._typing import FloatArray
from eigenheads.models._emit import Sizes, Work, Write, emit
from eigenheads.models._graph import COMPARISONS, Graph, Node, NotTraceable
from eigenheads.models._symbols import Direction, Symbol, TokenRows
from eigenheads.models._traced import (
    apply,
    broadcast,
    number_of,
    reduced,
    stopped,
    traced_graph,
    traced_softmax,
    view,
)

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


# Each combination costs one more normal per token, and a K × K factor per sample.
_MAX_COMBINATIONS = 8


def softmax(x: Any, axis: int = -1) -> Any:
    r"""Return :math:`e^{x_i} / \sum_j e^{x_j}` along one axis, inside a loss.

    Works on NumPy arrays and, while a :class:`Model` is traced, on traced arrays. Rows
    with NaN or plus infinity give NaN.

    Examples
    --------
    >>> softmax(np.zeros(4))
    array([0.25, 0.25, 0.25, 0.25])
    """
    if isinstance(x, Node):
        return traced_softmax(x, axis)
    x = check_numbers("x", x)
    if not x.size or not x.ndim:
        fail("x", "an array with numbers along an axis", x)
    axis = check_count("axis", axis, minimum=-x.ndim, maximum=x.ndim - 1)
    weights = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return weights / np.sum(weights, axis=axis, keepdims=True)


class _Names(SimpleNamespace):
    """Attributes by name; an unknown one gets a sentence."""

    def __init__(self, kind: str, values: Mapping[str, Any]) -> None:
        super().__init__(**values)
        object.__setattr__(self, "_kind", kind)

    def __getattr__(self, name: str) -> NoReturn:
        declared = ", ".join(n for n in vars(self) if not n.startswith("_")) or "none"
        kind = self.__dict__.get("_kind", "names")
        where = {"w": "weights", "u": "planted", "g": "latents"}.get(kind, "Model")
        raise NotTraceable(f"{kind}.{name}", f"Declared in `{where}`: {declared}.")


class _Latents(_Names):
    """Labels and noise: ``g[0]``, ``g[1]`` are normals, ``g.label`` has a name."""

    def __init__(self, normals: Sequence[Any], named: Mapping[str, Any]) -> None:
        super().__init__("g", named)
        object.__setattr__(self, "_normals", list(normals))

    def __getitem__(self, index: int) -> Any:
        if not -len(self._normals) <= index < len(self._normals):
            raise NotTraceable(
                f"g[{index}]", f"Declare normals={index + 1} in Model(...)."
            )
        return self._normals[index]


class _Parameters:
    """Every attribute is a parameter; their names are collected."""

    def __init__(self, graph: Graph, names: list[str]) -> None:
        self._graph, self._found = graph, names

    def __getattr__(self, name: str) -> Node:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._found:
            self._found.append(name)
        return self._graph.memory(f"parameters[{self._found.index(name)}]")


class ProgramLines(NamedTuple):
    """Source of a traced loss and its gradient.

    Attributes
    ----------
    combinations
        Lines that write the weights of token combinations (class B).
    gradient
        Lines that write the derivatives along fields and overlaps.
    value
        Expression of the loss after these lines.
    names
        Lines that name constant arrays and work space, to stand before both.
    shapes
        Shapes of the arrays of the work space.
    """

    combinations: list[str]
    gradient: list[str]
    value: str
    names: list[str]
    shapes: list[tuple[int, ...]]


class Program:
    """A traced loss: its graph, and the source of its gradient.

    Parameters
    ----------
    loss
        ``loss(X, w, u, g, p)``, written with NumPy.
    n_tokens
        Tokens per sample.
    weights, planted
        Names of weight vectors and of planted directions.
    normals
        Number of standard normals ``g[0]``, … per sample.
    latents
        Names of the other random numbers of a sample.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        *,
        n_tokens: int,
        weights: Sequence[str],
        planted: Sequence[str],
        normals: int = 0,
        latents: Sequence[str] = (),
    ) -> None:
        self.graph, self.n_tokens = traced_graph(), n_tokens
        self.n_planted, self.n_weights = len(planted), len(weights)
        self.parameters: list[str] = []
        self._combinations: list[Node] = []
        self._products: dict[tuple[int, int], Node] = {}
        self._overlaps: dict[tuple[int, int], Node] = {}
        shape = (n_tokens,)
        self._fields = [
            self.graph.memory(f"fields[{row}, {{}}]", shape)
            for row in range(len(weights))
        ]
        on_planted = [
            self.graph.memory(f"tokens[{row}, {{}}]", shape)
            for row in range(len(planted))
        ]
        # Planted directions count from -1 downwards, weights from 0 upwards.
        w = {
            name: Direction(self, field, row)
            for row, (name, field) in enumerate(zip(weights, self._fields, strict=True))
        }
        u = {
            name: Direction(self, field, -1 - row)
            for row, (name, field) in enumerate(zip(planted, on_planted, strict=True))
        }
        numbers = [
            self.graph.memory(f"latents[{index}]")
            for index in range(normals + len(latents))
        ]
        g = _Latents(
            numbers[:normals], dict(zip(latents, numbers[normals:], strict=True))
        )
        p = _Parameters(self.graph, self.parameters)
        # The loss runs once, on symbols; from here on the graph stands for it.
        value = loss(TokenRows(self), _Names("w", w), _Names("u", u), g, p)
        self.loss = self._check_number(value)
        self._check_weights(list(weights))

    def _check_number(self, value: object) -> Node:
        if value is None:
            raise NotTraceable("a loss that returns None", "Return a number.")
        if isinstance(value, Symbol):
            raise NotTraceable("a loss that returns a vector", "Return a number.")
        node = self.graph.lift(value)
        if node.shape:
            raise NotTraceable(
                f"a loss of shape {node.shape}", "Return a number: np.sum(...)."
            )
        return node

    def _check_weights(self, names: list[str]) -> None:
        """Raise unless every weight vector has a derivative."""
        slopes = self._slopes()
        for row, name in enumerate(names):
            in_overlap = any(row in pair for pair in self._overlaps)
            if slopes[row] is None and not in_overlap:
                raise NotTraceable(
                    f"a loss that does not depend on w.{name}",
                    f"Use it, or remove {name!r} from `weights`.",
                )

    @property
    def n_combinations(self) -> int:
        """Number of token combinations whose products the loss takes (0: class A)."""
        return len(self._combinations)

    def overlap(self, row: int, other: int) -> Node:
        """Return the inner product of two directions."""
        row, other = max(row, other), min(row, other)
        if row < 0:  # planted directions are orthonormal
            return self.graph.constant(float(row == other))
        column = -1 - other if other < 0 else self.n_planted + other
        node = self.graph.memory(f"overlaps[{row}, {column}]")
        self._overlaps[row, other] = node
        return node

    def product(self, left: Node, right: Node) -> Node:
        """Return the inner product of two combinations of tokens."""
        pair = sorted((self._combination(left), self._combination(right)))
        key = (pair[0], pair[1])
        if key not in self._products:
            node = self.graph.memory(f"products[{key[0]}, {key[1]}]")
            self._products[key] = node
        return self._products[key]

    def _combination(self, weights: Node) -> int:
        # Equal expressions are one node, so that identity decides.
        for number, combination in enumerate(self._combinations):
            if combination is weights:
                return number
        if len(self._combinations) == _MAX_COMBINATIONS:
            raise NotTraceable(
                f"products of more than {_MAX_COMBINATIONS} combinations of tokens",
                "Scores between all pairs of tokens (X @ X.T) are not known.",
            )
        self._combinations.append(weights)
        return len(self._combinations) - 1

    def _slopes(self) -> list[Node | None]:
        r"""Return the derivatives with respect to the fields of each weight.

        A product :math:`o_k \cdot o_l` depends on the fields through the weights
        :math:`P_k` of the combinations: its derivative along :math:`P_{ki}` is
        :math:`x_i \cdot o_l`, which the engine reveals (``meetings``).
        """
        # The surrogate has the same derivative along the fields as the loss. Each
        # product contributes its slope times x_i · o_l, held fixed, as a coefficient of
        # P_ki. Both factors of a product move, hence the two terms; for k = l they are
        # equal and give the factor 2 of a square.
        pairs = list(self._products)
        bars = gradients(self.loss, [self._products[pair] for pair in pairs])
        surrogate = self.loss
        for (left, right), bar in zip(pairs, bars, strict=True):
            if bar is None:
                continue
            for target, source in ((left, right), (right, left)):
                place = f"meetings[{source}, {{}}]"
                meeting = self.graph.memory(place, (self.n_tokens,))
                seed = stopped(bar * meeting)
                surrogate = surrogate + reduced(
                    "sum", self._combinations[target] * seed
                )
        return gradients(surrogate, self._fields)

    def lines(self, sizes: Sizes) -> "ProgramLines":
        """Return the generated source, as lines for the body of a function.

        They read ``fields``, ``tokens``, ``latents``, ``parameters``, ``overlaps``
        and, in class B, ``meetings`` and ``products``.
        """
        shape, zero = (self.n_tokens,), self.graph.constant(0.0)
        slopes = [
            broadcast(zero if slope is None else slope, shape)
            for slope in self._slopes()
        ]
        writes = [Write(f"slopes[{a}, {{}}]", node) for a, node in enumerate(slopes)]
        overlaps = gradients(self.loss, list(self._overlaps.values()))
        for (row, partner), slope in zip(self._overlaps, overlaps, strict=True):
            if slope is None:
                continue
            column = -1 - partner if partner < 0 else self.n_planted + partner
            writes.append(Write(f"overlap_slopes[{row}, {column}]", slope))
        work = Work()
        # The engine draws the products between the two parts, and fields do not change
        # meanwhile. So the second part reads what the first one has left in `work`.
        first, _, places = emit(
            sizes=sizes,
            work=work,
            writes=[
                Write(f"combinations[{k}, {{}}]", broadcast(node, shape))
                for k, node in enumerate(self._combinations)
            ],
        )
        second, value, _ = emit(
            sizes=sizes, work=work, writes=writes, returned=self.loss, places=places
        )
        names = [
            f"c{number} = constants[{number}]"
            for number in range(len(self.graph.arrays))
        ]
        return ProgramLines(first, second, value, names + work.lines(), work.shapes)

    @property
    def constants(self) -> tuple[FloatArray, ...]:
        """All constant arrays of the loss, and one more."""
        return (*self.graph.arrays, np.zeros(1))

    @property
    def uses_overlaps(self) -> bool:
        """True if the loss takes products of weights, as penalties do."""
        return bool(self._overlaps)
