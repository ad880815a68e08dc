"""Source code of a traced graph: as few fused loops as its reductions allow.

For short sequences a loop per sum would spend its time on starting and ending; with all
sums in one loop each token is read once, and long loops still become vector code.

Nodes with the same shape are computed in one loop, unless one needs a sum that another
loop must finish first. ``level`` counts the loops that must have ended before a node
can be computed; nodes of one level and one shape share a loop. Views, slices and their
adjoints are never computed: they only change the index at which a node is read.

Lengths of axes and first indices of slices are variables of the generated code, so that
models that differ in their number of tokens alone share one compiled module.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.models._engine import REORDER
from eigenheads.models._graph import SOURCES, Node

# --- The softmax of long rows --------------------------------------------------------


_LOG2_E = 1.0 / math.log(2.0)
# log 2 in two parts. The first has 24 bits, so that its multiples are exact; the
# second holds the rest, with what the double nearest to log 2 itself leaves out.
_LOG_2_HIGH = float(np.float32(math.log(2.0)))
_LOG_2_LOW = (math.log(2.0) - _LOG_2_HIGH) + 2.3190468138462996e-17
# Adding this puts a number's nearest integer into the lowest bits of the sum.
_MAGIC = 1.5 * 2.0**52
# The smallest argument whose exponential is a normal number, rounded up.
_SMALLEST = -708.0


@njit(fastmath=REORDER)
def fast_softmax(logits: Any, out: Any, scratch: Any) -> None:
    r"""Write the softmax of logits of any size, with vector instructions.

    Agrees with :func:`eigenheads._arrays.stable_softmax` up to rounding.

    .. math::

        p_i = \frac{\exp(\ell_i - \max \ell)}{\sum_j \exp(\ell_j - \max \ell)}

    Parameters
    ----------
    logits
        :math:`\ell`, (n,).
    out
        :math:`p`, (n,): written. A weight below 1e-307 of the largest becomes that.
    scratch
        (n,): overwritten.

    Notes
    -----
    Equals ``scipy.special.softmax`` per row, 3.8 (32 tokens) to 5.6 (64) times faster;
    compared with a compiled loop over ``math.exp``, 1.6 to 2.6 times.
    """
    n = logits.shape[0]
    largest = logits[0]
    for index in range(n):
        largest = max(largest, logits[index])
    _exponential(logits, largest, out, scratch)
    total = 0.0
    for index in range(n):
        total += out[index]
    inverse = 1.0 / total
    for index in range(n):
        out[index] *= inverse


# Said explicitly: without it, Numba hands the caller's fastmath down to this function.
@njit(fastmath={"contract"})
def _exponential(logits: Any, largest: float, out: Any, scratch: Any) -> None:
    r"""Write :math:`e^x` of :math:`x = \ell - \max \ell`, from -708 to 0.

    :math:`e^x = 2^k e^r` with k the integer nearest to :math:`x / \log 2`, and Taylor's
    polynomial of degree 13 for :math:`|r| \le \log(2) / 2`, where it is off by 4e-18.
    math.exp would be a call per token; these loops run on whole vectors. No sums may be
    reordered here: the rounding of ``+ _MAGIC`` is the point.
    """
    n = logits.shape[0]
    bits = scratch.view(np.int64)
    for index in range(n):
        x = max(logits[index] - largest, _SMALLEST)
        out[index] = x
        scratch[index] = x * _LOG2_E + _MAGIC
    for index in range(n):
        k = scratch[index] - _MAGIC
        r = (out[index] - k * _LOG_2_HIGH) - k * _LOG_2_LOW
        p = 1.0 / 6227020800.0
        p = p * r + 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        p = p * r + 1.0
        out[index] = p * r + 1.0
    for index in range(n):
        # The integer k becomes the exponent of a double.
        bits[index] = (bits[index] + 1023) << 52
    for index in range(n):
        out[index] *= scratch[index]


# --- Sums over tokens, unrolled ------------------------------------------------------


# Sums in one loop: beyond it, registers spill.
_MOST_SUMS = 12


def field_lines(n_planted: int, n_weights: int) -> list[str]:
    """Return lines that write ``fields`` from ``state`` and ``tokens``."""
    # Weight a has coordinates on the planted axes and on a + 1 more.
    fields = [
        (
            f"fields[{a}, i]",
            [(f"state[{a}, {j}]", f"tokens[{j}, i]") for j in range(n_planted + a + 1)],
        )
        for a in range(n_weights)
    ]
    return _projection(fields)


def gradient_lines(n_weights: int, n_axes: int, n_combinations: int) -> list[str]:
    """Return lines that add sums of ``tokens`` with ``slopes`` to ``gradient``.

    The coordinates on the axes of combinations go to ``revealed``.
    """
    sums = [
        (f"gradient[{a}, {j}] +", f"slopes[{a}, i]", f"tokens[{j}, i]")
        for a in range(n_weights)
        for j in range(n_axes)
    ]
    sums += [
        (f"revealed[{a}, {k}] ", f"slopes[{a}, i]", f"tokens[{n_axes + k}, i]")
        for a in range(n_weights)
        for k in range(n_combinations)
    ]
    return _sums(sums)


def gram_lines(n_weights: int) -> list[str]:
    """Return lines that add products of ``slopes`` to ``outside``, lower half."""
    return _sums(
        [
            (f"outside[{a}, {b}] +", f"slopes[{a}, i]", f"slopes[{b}, i]")
            for a in range(n_weights)
            for b in range(a + 1)
        ]
    )


def output_lines(n_axes: int, n_combinations: int) -> list[str]:
    """Return lines that write coordinates of combinations, and ``meetings``.

    Meetings are the products of all tokens with the combinations (class B).
    """
    size = n_axes + n_combinations
    outputs = [
        (f"coordinates[{k}, {j}] ", f"combinations[{k}, i]", f"tokens[{j}, i]")
        for k in range(n_combinations)
        for j in range(size)
    ]
    meetings = [
        (
            f"meetings[{k}, i]",
            [(f"t{k * size + j}", f"tokens[{j}, i]") for j in range(size)],
        )
        for k in range(n_combinations)
    ]
    return _sums(outputs) + _projection(meetings)


def _projection(fields: list[tuple[str, list[tuple[str, str]]]]) -> list[str]:
    """Return lines that write sums of coordinates times rows, token by token."""
    names: dict[str, str] = {}
    for _, terms in fields:
        for coordinate, _ in terms:
            if "[" in coordinate:
                names[coordinate] = f"s{len(names)}"
    lines = [f"{name} = {coordinate}" for coordinate, name in names.items()]
    lines.append("for i in range(n_tokens):")
    rows = _read_once([factor for _, terms in fields for _, factor in terms], lines)
    for target, terms in fields:
        total = " + ".join(
            f"{names.get(term_name, term_name)} * {rows[factor]}"
            for term_name, factor in terms
        )
        lines.append(f"    {target} = {total}")
    return lines


def _read_once(entries: list[str], lines: list[str]) -> dict[str, str]:
    """Add lines that read entries of arrays, each once; return their variables."""
    # Most of the time of a compilation goes to reads and writes of arrays.
    names = {entry: f"x{k}" for k, entry in enumerate(dict.fromkeys(entries))}
    lines += [f"    {name} = {entry}" for entry, name in names.items()]
    return names


def _sums(sums: list[tuple[str, str, str]]) -> list[str]:
    """Return lines for sums of products; a target ends in ``+`` to be added to.

    Sum k stays in the variable ``t{k}``.
    """
    lines: list[str] = []
    numbered = list(enumerate(sums))
    for start in range(0, len(sums), _MOST_SUMS):
        part = numbered[start : start + _MOST_SUMS]
        lines += [f"t{k} = 0.0" for k, _ in part]
        lines.append("for i in range(n_tokens):")
        names = _read_once([node for _, (_, *pair) in part for node in pair], lines)
        lines += [f"    t{k} += {names[a]} * {names[b]}" for k, (_, a, b) in part]
        lines += [f"{target}= t{k}" for k, (target, _, _) in part]
    return lines


# --- Loops ---------------------------------------------------------------------------


_INDICES = "ijklmn"
_VIRTUAL = ("view", "pick", "slice", "put", "pad", "stop")
_LEAVES = ("constant", "input")
_REDUCTIONS = {"sum": "0.0", "max": "-math.inf"}

Index = tuple[str, ...]
Loop = tuple[int, int, tuple[int, ...], bool]


@dataclass(frozen=True)
class Write:
    """One result: `target` is the memory it goes to, with ``{}`` for its index."""

    target: str
    node: Node


class Sizes:
    """Whole numbers that the generated code reads from an array at run time.

    Parameters
    ----------
    n_tokens
        Tokens per sample; the generated code calls it ``n_tokens``.
    """

    def __init__(self, n_tokens: int) -> None:
        self._n_tokens = n_tokens
        self._slots: dict[object, int] = {}
        self.values: list[int] = []

    def name(self, value: int, key: object = None) -> str:
        """Return the variable of a number; numbers with different keys differ."""
        if key is None and value in (0, self._n_tokens):
            return "n_tokens" if value else "0"
        slot = self._slots.setdefault(key or value, len(self.values))
        if slot == len(self.values):
            self.values.append(value)
        return f"n{slot}"

    def lines(self) -> list[str]:
        """Return the lines that read all numbers."""
        return [f"n{slot} = sizes[{slot}]" for slot in range(len(self.values))]


@dataclass
class Work:
    """Shapes of the arrays ``work`` that the generated code uses."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, shape: tuple[int, ...]) -> str:
        """Return the name of a new array."""
        self.shapes.append(shape)
        return f"w{len(self.shapes) - 1}"

    def lines(self) -> list[str]:
        """Return the lines that name all arrays."""
        return [f"w{number} = work[{number}]" for number in range(len(self.shapes))]


def emit(
    *,
    sizes: Sizes,
    work: Work,
    writes: Sequence[Write] = (),
    returned: Node | None = None,
    places: dict[int, str] | None = None,
) -> tuple[list[str], str, dict[int, str]]:
    """Return lines of source, the result's expression, and what they leave in `work`.

    Parameters
    ----------
    sizes, work
        Numbers and arrays that the lines read and write; new ones are added.
    writes
        Results that are written to memory.
    returned
        Result whose expression is returned (default: 0.0).
    given
        Memory of nodes that are known already, by node index.
    """
    emitter = _Emitter(places or {}, sizes, work)
    lines, value = emitter.lines(writes, returned)
    return lines, value, emitter.memory()


class _Emitter:
    def __init__(self, places: dict[int, str], sizes: Sizes, work: Work) -> None:
        self._given, self._sizes, self._work = places, sizes, work
        self._level: dict[int, int] = {}
        self._loop_of: dict[int, Loop] = {}
        self._loops: dict[Loop, list[Node]] = {}
        self._stored: dict[int, str] = {}  # memory of nodes that are stored
        self._numbers: dict[str, str] = {}  # variables of inputs that are numbers
        self._targets: dict[int, list[str]] = {}

    def memory(self) -> dict[int, str]:
        """Return where nodes lie in the work space after a call."""
        return self._stored

    def lines(
        self, writes: Sequence[Write], returned: Node | None
    ) -> tuple[list[str], str]:
        results = []
        for write in writes:
            if write.node.operation == "softmax" and not self._is_known(write.node):
                # Computed where it is to be.
                self._stored.setdefault(write.node.index, write.target)
                if self._stored[write.node.index] == write.target:
                    results.append(write.node)
                    continue
            # A copy has a loop of its own shape, where the result is written.
            graph, shape = write.node.graph, write.node.shape
            copy = graph.add("copy", [write.node], write.target, shape)
            self._targets.setdefault(copy.index, []).append(write.target)
            results.append(copy)
        targets = [*results, *([returned] if returned is not None else [])]
        for node in self._needed(targets):
            self._place(node)
        lines: list[str] = []
        # Loops are sorted by level, then by depth, so that whatever a loop reads from
        # another one is finished before it starts.
        for loop in sorted(self._loops):
            lines += self._loop_lines(loop)
        value = "0.0" if returned is None else self._read(returned, (), None)
        # Numbers are read once, not in every turn of a loop.
        read = [f"{name} = {place}" for place, name in self._numbers.items()]
        return read + lines, value

    def _needed(self, targets: list[Node]) -> list[Node]:
        """Return all nodes that the wanted ones depend on, arguments first."""
        # The search stops at given nodes: another function has computed them. Indices
        # grow from arguments to users, so sorting gives an order of evaluation.
        needed, waiting = {}, list(targets)
        while waiting:
            node = waiting.pop()
            if node.index not in needed:
                needed[node.index] = node
                if node.index not in self._given:
                    waiting += node.arguments
        return [needed[index] for index in sorted(needed)]

    def _is_known(self, node: Node) -> bool:
        return node.operation in _LEAVES or node.index in self._given

    def _place(self, node: Node) -> None:
        """Decide in which loop a node is computed, and which arguments are stored."""
        if self._is_known(node) or node.operation in _VIRTUAL:
            return
        is_softmax = node.operation == "softmax"
        reduces = node.operation in _REDUCTIONS
        shape = node.arguments[0].shape if reduces else node.shape
        level, loose = 0, []
        for argument in node.arguments:
            root, same = self._root(argument)
            if self._is_known(root):
                continue
            there = self._loop_of[root.index]
            # A node may share the loop of its argument only if it reads the argument at
            # the index at which it was just computed, and if the argument is no sum
            # that the loop must finish first. A number at depth 0 is computed before
            # all other loops of its level, so it delays nothing.
            ends_loop = root.operation in (*_REDUCTIONS, "softmax")
            fused = same and there[2] == shape and not ends_loop and not is_softmax
            number = there[2] == () and not ends_loop
            level = max(level, there[0] + (0 if fused or number else 1))
            loose.append(root)
        loop = (level, len(shape), shape, is_softmax)
        for root in loose:
            # Read in a later loop, or at another index than it was computed at.
            if self._loop_of[root.index] != loop and root.shape:
                self._store(root)
        for argument in node.arguments:
            root, same = self._root(argument)
            if not self._is_known(root) and not same and root.shape:
                self._store(root)
        self._loop_of[node.index] = loop
        self._loops.setdefault(loop, []).append(node)
        if is_softmax or (reduces and node.shape):
            self._store(node)

    def _store(self, node: Node) -> None:
        if node.index not in self._stored:
            self._stored[node.index] = self._work.add(node.shape) + "[{}]"

    def _root(self, node: Node) -> tuple[Node, bool]:
        """Return the node behind views, and whether they leave the index as it is."""
        shape, same = node.shape, True
        while node.operation in _VIRTUAL and node.index not in self._given:
            if node.operation == "view":
                same &= node.detail == tuple(range(node.ndim))
            else:
                same &= node.operation == "stop"
            node = node.arguments[0]
        return node, same and node.shape == shape

    def _read(self, node: Node, index: Index, loop: Loop | None) -> str:
        """Return the source that reads a node at an index."""
        name, detail = node.operation, node.detail
        if name == "constant":
            return _literal(detail)
        place = self._given.get(node.index, detail if name == "input" else None)
        if place is not None:
            if node.shape:
                return place.format(", ".join(index))
            return self._numbers.setdefault(place, f"q{len(self._numbers)}")
        if name in _VIRTUAL:
            return self._read_virtual(node, index, loop)
        # Inside its own loop and at the index of that loop, a node is a local variable.
        # A number is a local variable of the whole function. All other nodes are read
        # from the work space.
        if node.index in self._loop_of and self._loop_of[node.index] == loop:
            reduces = name in _REDUCTIONS
            if not reduces and index == tuple(_INDICES[: node.ndim]):
                return f"v{node.index}"
        if not node.shape:
            return f"v{node.index}"
        return self._stored[node.index].format(", ".join(index))

    def _read_virtual(self, node: Node, index: Index, loop: Loop | None) -> str:
        argument, detail = node.arguments[0], node.detail
        if node.operation == "stop":
            return self._read(argument, index, loop)
        if node.operation == "view":
            inner = tuple("0" if axis is None else index[axis] for axis in detail)
            return self._read(argument, inner, loop)
        axis, first = detail
        start = self._sizes.name(first)
        if node.operation == "pick":
            inner = (*index[:axis], start, *index[axis:])
            return self._read(argument, inner, loop)
        at = index[axis]
        if node.operation == "slice":
            shifted = f"({at} + {start})" if first else at
            inner = (*index[:axis], shifted, *index[axis + 1 :])
            return self._read(argument, inner, loop)
        # The adjoints of pick and slice: zero outside the entries that were read.
        if node.operation == "put":
            inner = (*index[:axis], *index[axis + 1 :])
            return f"({self._read(argument, inner, loop)} if {at} == {start} else 0.0)"
        inner = (*index[:axis], f"({at} - {start})", *index[axis + 1 :])
        stop = self._sizes.name(first + argument.shape[axis])
        value = self._read(argument, inner, loop)
        return f"({value} if {start} <= {at} < {stop} else 0.0)"

    def _loop_lines(self, loop: Loop) -> list[str]:
        _, depth, shape, is_softmax = loop
        if is_softmax:
            return [line for node in self._loops[loop] for line in self._softmax(node)]
        index = tuple(_INDICES[:depth])
        before: list[str] = []
        body: list[str] = []
        for node in self._loops[loop]:
            arguments = [self._read(a, index, loop) for a in node.arguments]
            if node.operation in _REDUCTIONS:
                start, update = self._reduction(node, index, arguments[0])
                before += start
                body.append(update)
                continue
            # Arguments are names, memory, literals or expressions in parentheses, so
            # the templates need no parentheses around them.
            source = SOURCES[node.operation].format(*arguments)
            if node.index in self._targets:
                place = ", ".join(index)
                body += [
                    f"{t.format(place)} = {source}" for t in self._targets[node.index]
                ]
                continue
            body.append(f"v{node.index} = {source}")
            if node.index in self._stored and node.shape:
                place = self._stored[node.index].format(", ".join(index))
                body.append(f"{place} = v{node.index}")
        return before + self._nested(shape, body)

    def _nested(self, shape: Sequence[int], body: list[str]) -> list[str]:
        """Return lines inside loops over all entries of a shape."""
        heads = [
            "    " * axis
            + f"for {_INDICES[axis]} in range({self._sizes.name(length)}):"
            for axis, length in enumerate(shape)
        ]
        return heads + ["    " * len(shape) + line for line in body]

    def _reduction(self, node: Node, index: Index, value: str) -> tuple[list[str], str]:
        zero = _REDUCTIONS[node.operation]
        letters = [
            letter for axis, letter in enumerate(index) if axis not in node.detail
        ]
        if letters:
            memory = self._stored[node.index]
            place = memory.format(", ".join(letters))
            entry = memory.format(", ".join(_INDICES[: node.ndim]))
            before = self._nested(node.shape, [f"{entry} = {zero}"])
        else:
            place, before = f"v{node.index}", [f"v{node.index} = {zero}"]
        if node.operation == "sum":
            return before, f"{place} += {value}"
        return before, f"{place} = max({place}, {value})"

    def _softmax(self, node: Node) -> list[str]:
        """Return calls of the vectorised softmax, one per row."""
        row = ", ".join([*_INDICES[: node.ndim - 1], ":"])
        rows = [
            self._stored[operand.index].format(row).replace("[:]", "")
            for operand in (node.arguments[0], node)
        ]
        scratch = self._work.add(node.shape[-1:])
        call = f"fast_softmax({rows[0]}, {rows[1]}, {scratch})"
        return self._nested(node.shape[:-1], [call])


def _literal(value: float) -> str:
    # Without parentheses, a negative base of a power would change its meaning.
    if math.isfinite(value):
        return repr(value) if value >= 0 else f"({value!r})"
    return "np.nan" if math.isnan(value) else ("np.inf" if value > 0 else "(-np.inf)")
