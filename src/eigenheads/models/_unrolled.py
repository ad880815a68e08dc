"""Sums over tokens, unrolled: all sums of a kind in one loop.

For short sequences a loop per sum would spend its time on starting and ending; with all
sums in one loop each token is read once, and long loops still become vector code.
"""

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
    rows = _read_once([other for _, terms in fields for _, other in terms], lines)
    for target, terms in fields:
        total = " + ".join(
            f"{names.get(one, one)} * {rows[other]}" for one, other in terms
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
        names = _read_once([one for _, (_, *pair) in part for one in pair], lines)
        lines += [f"    t{k} += {names[a]} * {names[b]}" for k, (_, a, b) in part]
        lines += [f"{target}= t{k}" for k, (target, _, _) in part]
    return lines
