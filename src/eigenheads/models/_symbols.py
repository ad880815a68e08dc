"""Symbols for vectors of R^d: the loss may combine them, but not look into them."""

from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

import numpy as np

from eigenheads.models._graph import Graph, Node, NotTraceable
from eigenheads.models._traced import put, reduced, unrolled


class ProductSource(Protocol):
    """Knows the inner products that the symbols of one loss may take."""

    graph: Graph
    n_tokens: int

    def overlap(self, row: int, other: int) -> Node:
        """Return the inner product of two directions."""

    def product(self, left: Node, right: Node) -> Node:
        """Return the inner product of two combinations of tokens."""


class Symbol:
    """A vector or a matrix of R^d that the loss may combine, but not look into."""

    is_vector = True
    __array_priority__ = 2000
    __hash__ = object.__hash__

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Any:
        # np.float64(2) * vector and array @ X arrive here.
        operators = {
            "multiply": lambda a, b: b.__rmul__(a),
            "matmul": lambda a, b: b.__rmatmul__(a),
        }
        if method == "__call__" and not options and ufunc.__name__ in operators:
            if isinstance(inputs[0], Symbol):
                return NotImplemented
            return operators[ufunc.__name__](*inputs)
        return _refuse_entries(f"np.{ufunc.__name__}")

    def __array_function__(
        self, function: Any, types: Any, arguments: Any, options: Any
    ) -> Any:
        name = function.__name__
        if name in ("dot", "inner") and not options:
            return arguments[0] @ arguments[1]
        if name == "norm" and len(arguments) == 1 and not options:
            return np.sqrt(arguments[0] @ arguments[0])
        if name in ("mean", "sum") and hasattr(self, name):
            return getattr(arguments[0], name)(*arguments[1:], **options)
        return _refuse_entries(f"np.{name}")

    def _no_entries(self, *_: object) -> NoReturn:
        self._refuse_operation()

    def _refuse_operation(self) -> NoReturn:
        _refuse_entries("an operation")

    # Subclasses define those of these operators that have a meaning.
    __array__: Any = _no_entries
    __float__: Any = _no_entries
    __bool__: Any = _no_entries
    __iter__: Any = _no_entries
    __pow__: Any = _no_entries
    __abs__: Any = _no_entries
    __lt__: Any = _no_entries
    __gt__: Any = _no_entries
    __add__: Any = _no_entries
    __radd__: Any = _no_entries
    __sub__: Any = _no_entries
    __rsub__: Any = _no_entries
    __truediv__: Any = _no_entries
    __mul__: Any = _no_entries
    __rmul__: Any = _no_entries
    __matmul__: Any = _no_entries
    __rmatmul__: Any = _no_entries


def _refuse_entries(operation: str) -> NoReturn:
    raise NotTraceable(
        f"{operation} on the entries of vectors of R^d",
        "Only inner products are known: write X @ w.k for fields, o @ o with "
        "o = a @ X for squared lengths, X[0] @ X[0] for the length of a token.",
    )


class Direction(Symbol):
    """A weight vector or a planted direction."""

    def __init__(self, program: ProductSource, field: Node, row: int) -> None:
        self.program, self.field, self.row = program, field, row

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Direction):
            return self.program.overlap(self.row, other.row)
        if isinstance(other, TokenCombination):
            return other @ self
        raise NotTraceable("w @ X", "Write X @ w.")

    def __getitem__(self, key: Any) -> NoReturn:
        _refuse_entries("an index")

    def _refuse_operation(self) -> NoReturn:
        raise NotTraceable(
            "arithmetic on w or u",
            "Take inner products first: 2 * (X @ w.k), X @ w.k - X @ u.key.",
        )


class TokenCombination(Symbol):
    r"""A vector :math:`\sum_i a_i x_i`."""

    def __init__(self, program: ProductSource, weights: Node) -> None:
        self.program, self.weights = program, weights

    def _with(self, weights: Any) -> "TokenCombination":
        return TokenCombination(self.program, weights)

    def __add__(self, other: Any) -> "TokenCombination":
        return self._with(self.weights + _weights_of(other))

    def __sub__(self, other: Any) -> "TokenCombination":
        return self._with(self.weights - _weights_of(other))

    def __neg__(self) -> "TokenCombination":
        return self._with(-self.weights)

    def __mul__(self, factor: Any) -> "TokenCombination":
        return self._with(self.weights * _number_of(self.program, factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> "TokenCombination":
        return self._with(self.weights / _number_of(self.program, divisor))

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Direction):
            return reduced("sum", self.weights * other.field)
        if isinstance(other, TokenCombination):
            return self.program.product(self.weights, other.weights)
        raise NotTraceable(
            "o @ X", "Products of an output with all tokens are not known."
        )


class TokenRows(Symbol):
    """Tokens `start` … ``stop - 1``, or rows of combinations: ``matrix @ X``."""

    def __init__(
        self,
        program: ProductSource,
        matrix: Node | None = None,
        span: tuple[int, int] | None = None,
    ) -> None:
        self.program, self.matrix = program, matrix
        self.span = span or (0, program.n_tokens)

    def __len__(self) -> int:
        if self.matrix is not None:
            return self.matrix.shape[0]
        return self.span[1] - self.span[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in unrolled(len(self)))

    def _rows(self) -> Node:
        if self.matrix is None:
            rows = np.eye(self.program.n_tokens)[slice(*self.span)]
            return self.program.graph.lift(rows)
        return self.matrix

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Direction):
            if self.matrix is not None:
                return self.matrix @ other.field
            return other.field[slice(*self.span)]
        if isinstance(other, TokenCombination):
            raise NotTraceable(
                "X @ (a combination of tokens)",
                "Scores that come from outputs (a second round) are not known; use "
                "o @ o or o @ X[0].",
            )
        raise NotTraceable("X @ an array", "Products are known with w and u alone.")

    def __rmatmul__(self, weights: Any) -> Any:
        mixed = self.program.graph.lift(weights)
        if mixed.shape[-1:] != (len(self),):
            raise NotTraceable(
                f"weights of shape {mixed.shape} @ {len(self)} tokens",
                "The last axis must have one weight per token.",
            )
        if self.matrix is not None:
            mixed = mixed @ self.matrix
        elif len(self) < self.program.n_tokens:
            axis = mixed.ndim - 1
            shape = (*mixed.shape[:-1], self.program.n_tokens)
            mixed = mixed.graph.add("pad", [mixed], (axis, self.span[0]), shape)
        if mixed.ndim == 1:
            return TokenCombination(self.program, mixed)
        return TokenRows(self.program, mixed)

    def __add__(self, other: Any) -> "TokenRows":
        return TokenRows(self.program, self._rows() + _rows_of(other))

    def __sub__(self, other: Any) -> "TokenRows":
        return TokenRows(self.program, self._rows() - _rows_of(other))

    def __mul__(self, factor: Any) -> "TokenRows":
        return TokenRows(self.program, self._rows() * _number_of(self.program, factor))

    __rmul__ = __mul__

    def __getitem__(self, key: Any) -> Any:
        if self.matrix is not None:
            rows = self.matrix[key]
            kind = TokenRows if rows.ndim > 1 else TokenCombination
            return kind(self.program, rows)
        if isinstance(key, int) and not -len(self) <= key < len(self):
            raise NotTraceable(f"X[{key}] of {len(self)} tokens", "Use fewer tokens.")
        places = range(*self.span)[key] if isinstance(key, int | slice) else None
        if isinstance(places, int):
            weight = self.program.graph.constant(1.0)
            shape = (self.program.n_tokens,)
            return TokenCombination(self.program, put(weight, 0, places, shape))
        if not places or places.step != 1:
            raise NotTraceable("this index of X", "Use X[0], X[1:] or X[start:stop].")
        return TokenRows(self.program, None, (places.start, places.stop))

    @property
    def T(self) -> NoReturn:
        """Refuse scores between all pairs of tokens."""
        raise NotTraceable(
            "X.T", "Scores between all pairs of tokens (X @ X.T) are not known."
        )

    def sum(self, axis: int | None = None) -> TokenCombination:
        """Return the sum of the tokens."""
        if axis != 0:
            _refuse_entries("np.sum without axis=0")
        ones = self.program.graph.lift(np.ones(len(self)))
        return self.__rmatmul__(ones)

    def mean(self, axis: int | None = None) -> TokenCombination:
        """Return the mean of the tokens."""
        return self.sum(axis) / len(self)


def _refuse_sum() -> NoReturn:
    raise NotTraceable(
        "a sum of tokens and something else",
        "Multiply out: (x - w) @ (x - w) is x @ x - 2 * (x @ w) + w @ w.",
    )


def _weights_of(other: Any) -> Node:
    if not isinstance(other, TokenCombination):
        _refuse_sum()
    return other.weights


def _rows_of(other: Any) -> Node:
    if not isinstance(other, TokenRows):
        _refuse_sum()
    return other._rows()


def _number_of(program: ProductSource, factor: Any) -> Node:
    if isinstance(factor, Symbol):
        _refuse_entries("a product (*)")
    node = program.graph.lift(factor)
    if node.shape:
        raise NotTraceable("an array times tokens (*)", "Write weights @ X.")
    return node
