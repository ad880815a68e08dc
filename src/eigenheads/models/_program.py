"""Trace a loss of token vectors, and write the source of its gradient.

The loss sees real vectors: ``X`` (tokens × d), ``w.k``, ``u.key``. Here they are
symbols, and only the products that a loss takes of them are arrays:

- ``X @ w.k`` and ``X @ u.key``: fields, one number per token (class A);
- ``a @ X``, ``X[0]``, differences of them: vectors that combine tokens. Their products
  with directions are fields; their products with each other (``o @ o``) are drawn by
  the engine (class B);
- ``w.k @ w.v``, ``w.k @ u.key``: overlaps, for penalties.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from eigenheads._checks import check_count, check_numbers, fail
from eigenheads._typing import FloatArray
from eigenheads.models._derivatives import gradients
from eigenheads.models._emit import Sizes, Work, Write, emit
from eigenheads.models._graph import Graph, Node, NotTraceable
from eigenheads.models._symbols import Direction, Symbol, TokenRows
from eigenheads.models._traced import (
    broadcast,
    reduced,
    stopped,
    traced_graph,
    traced_softmax,
)

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
