"""Source code of a traced graph: as few fused loops as its reductions allow.

Nodes with the same shape are computed in one loop, unless one needs a sum that another
loop must finish first. ``level`` counts the loops that must have ended before a node
can be computed; nodes of one level and one shape share a loop. Views, slices and their
adjoints are never computed: they only change the index at which a node is read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eigenheads.models._graph import SOURCES, Node

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


def emit(
    name: str,
    parameters: str,
    *,
    writes: Sequence[Write] = (),
    returned: Node | None = None,
    given: dict[int, str] | None = None,
    size: int = 0,
) -> tuple[str, int, dict[int, str]]:
    """Return a function's source, the work space in use, and what it leaves there.

    Parameters
    ----------
    name, parameters
        Of the generated function; it must have a parameter ``work``.
    writes
        Results that are written to memory.
    returned
        Result that is returned (default: 0.0).
    given
        Memory of nodes that are known already, by node index.
    size
        Numbers of the work space that are taken already.
    """
    emitter = _Emitter(given or {}, size)
    source = emitter.function(name, parameters, writes, returned)
    return source, emitter.size, emitter.memory()


class _Emitter:
    def __init__(self, given: dict[int, str], size: int) -> None:
        self._given, self.size = given, size
        self._level: dict[int, int] = {}
        self._loop_of: dict[int, Loop] = {}
        self._loops: dict[Loop, list[Node]] = {}
        self._offset: dict[int, int] = {}  # of nodes that are stored
        self._targets: dict[int, list[str]] = {}

    def memory(self) -> dict[int, str]:
        """Return where nodes lie in the work space after a call."""
        return {index: f"work[{at} + {{}}]" for index, at in self._offset.items()}

    def function(
        self,
        name: str,
        parameters: str,
        writes: Sequence[Write],
        returned: Node | None,
    ) -> str:
        results = []
        for write in writes:
            # A copy has a loop of its own shape, where the result is written.
            graph, shape = write.node.graph, write.node.shape
            copy = graph.add("copy", [write.node], write.target, shape)
            self._targets.setdefault(copy.index, []).append(write.target)
            results.append(copy)
        wanted = [*results, *([returned] if returned is not None else [])]
        for node in self._needed(wanted):
            self._place(node)
        lines: list[str] = []
        # Loops are sorted by level, then by depth, so that whatever a loop reads from
        # another one is finished before it starts.
        for loop in sorted(self._loops):
            lines += self._loop_lines(loop)
        value = "0.0" if returned is None else self._read(returned, (), None)
        head = f"def {name}({parameters}):\n"
        body = "".join(f"    {line}\n" for line in [*lines, f"return {value}"])
        return head + body

    def _needed(self, wanted: list[Node]) -> list[Node]:
        """Return all nodes that the wanted ones depend on, arguments first."""
        # The search stops at given nodes: another function has computed them. Indices
        # grow from arguments to users, so sorting gives an order of evaluation.
        seen, waiting = {}, list(wanted)
        while waiting:
            node = waiting.pop()
            if node.index not in seen:
                seen[node.index] = node
                if node.index not in self._given:
                    waiting += node.arguments
        return [seen[index] for index in sorted(seen)]

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
        if node.index not in self._offset:
            self._offset[node.index] = self.size
            # The vectorised softmax needs one row of scratch behind its result.
            scratch = node.shape[-1] if node.operation == "softmax" else 0
            self.size += node.size + scratch

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
            flat = place.startswith(("constants[", "work["))
            return place.format(_flat(node.shape, index) if flat else ", ".join(index))
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
        return f"work[{self._offset[node.index]} + {_flat(node.shape, index)}]"

    def _read_virtual(self, node: Node, index: Index, loop: Loop | None) -> str:
        argument, detail = node.arguments[0], node.detail
        if node.operation == "stop":
            return self._read(argument, index, loop)
        if node.operation == "view":
            inner = tuple("0" if axis is None else index[axis] for axis in detail)
            return self._read(argument, inner, loop)
        axis, start = detail
        if node.operation == "pick":
            inner = (*index[:axis], str(start), *index[axis:])
            return self._read(argument, inner, loop)
        at = index[axis]
        if node.operation == "slice":
            shifted = f"({at} + {start})" if start else at
            inner = (*index[:axis], shifted, *index[axis + 1 :])
            return self._read(argument, inner, loop)
        # The adjoints of pick and slice: zero outside the entries that were read.
        if node.operation == "put":
            inner = (*index[:axis], *index[axis + 1 :])
            return f"({self._read(argument, inner, loop)} if {at} == {start} else 0.0)"
        inner = (*index[:axis], f"({at} - {start})", *index[axis + 1 :])
        stop = start + argument.shape[axis]
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
            if node.index in self._offset and node.shape:
                at = f"{self._offset[node.index]} + {_flat(shape, index)}"
                body.append(f"work[{at}] = v{node.index}")
        heads = [
            "    " * axis + f"for {letter} in range({shape[axis]}):"
            for axis, letter in enumerate(index)
        ]
        return before + heads + ["    " * depth + line for line in body]

    def _reduction(self, node: Node, index: Index, value: str) -> tuple[list[str], str]:
        zero = _REDUCTIONS[node.operation]
        kept = [letter for axis, letter in enumerate(index) if axis not in node.detail]
        if kept:
            offset = self._offset[node.index]
            place = f"work[{offset} + {_flat(node.shape, tuple(kept))}]"
            before = [
                f"for i in range({node.size}):",
                f"    work[{offset} + i] = {zero}",
            ]
        else:
            place, before = f"v{node.index}", [f"v{node.index} = {zero}"]
        if node.operation == "sum":
            return before, f"{place} += {value}"
        return before, f"{place} = max({place}, {value})"

    def _softmax(self, node: Node) -> list[str]:
        """Return calls of the vectorised softmax, one per row."""
        length, rows = node.shape[-1], node.size // node.shape[-1]
        source, result = self._offset[node.arguments[0].index], self._offset[node.index]
        scratch = result + node.size
        row = f"i * {length}"
        return [
            f"for i in range({rows}):",
            "    vector_softmax(",
            f"        work[{source} + {row} : {source + length} + {row}],",
            f"        work[{result} + {row} : {result + length} + {row}],",
            f"        work[{scratch} : {scratch + length}],",
            "    )",
        ]


def _flat(shape: tuple[int, ...], index: Index) -> str:
    """Return the position in an array that is stored row by row."""
    position = ""
    for length, letter in zip(shape, index, strict=True):
        position = f"({position}) * {length} + {letter}" if position else letter
    return position or "0"


def _literal(value: float) -> str:
    # Without parentheses, a negative base of a power would change its meaning.
    if math.isfinite(value):
        return repr(value) if value >= 0 else f"({value!r})"
    return "np.nan" if math.isnan(value) else ("np.inf" if value > 0 else "(-np.inf)")
