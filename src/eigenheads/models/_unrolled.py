"""Sums over tokens, unrolled: all sums of a kind in one loop.

For short sequences a loop per sum would spend its time on starting and ending; with all
sums in one loop each token is read once, and long loops still become vector code.
"""

# Sums in one loop: beyond it, registers spill.
_MOST_SUMS = 12
_HEAD = "@njit(fastmath=REORDER)"


def unrolled_outputs(n_axes: int, n_weights: int, n_combinations: int) -> str:
    """Return the source of sums for combinations of tokens (class B).

    ``_add_outputs(combinations, tokens, coordinates)`` adds the coordinates of the
    combinations, ``_write_meetings(coordinates, tokens, meetings)`` their products with
    all tokens, ``_add_gradient(slopes, tokens, gradient)`` adds sums of tokens with
    weights, on the frame and on the axes of the combinations.
    """
    size = n_axes + n_combinations
    outputs = [
        (f"coordinates[{k}, {j}]", f"combinations[{k}, i]", f"tokens[{j}, i]")
        for k in range(n_combinations)
        for j in range(size)
    ]
    meetings = [
        (
            f"meetings[{k}, i]",
            [(f"coordinates[{k}, {j}]", f"tokens[{j}, i]") for j in range(size)],
        )
        for k in range(n_combinations)
    ]
    gradient = [
        (f"gradient[{a}, {j}]", f"slopes[{a}, i]", f"tokens[{j}, i]")
        for a in range(n_weights)
        for j in range(size)
    ]
    return "\n\n".join(
        [
            _sums("_add_outputs", "combinations, tokens, coordinates", outputs),
            _projection("_write_meetings", "coordinates, tokens, meetings", meetings),
            _sums("_add_gradient", "slopes, tokens, gradient", gradient),
        ]
    )


def unrolled_sums(n_planted: int, n_weights: int) -> str:
    """Return the source of ``_project``, ``_add_products`` and ``_add_gram``.

    ``_project(state, tokens, fields)`` writes all fields, ``_add_products(slopes,
    tokens, gradient)`` adds sums of tokens with weights, ``_add_gram(slopes, outside)``
    adds inner products of weights, lower half.
    """
    n_axes = n_planted + n_weights
    # Weight a has coordinates on the planted axes and on a + 1 more.
    fields = [
        (
            f"fields[{a}, i]",
            [(f"state[{a}, {j}]", f"tokens[{j}, i]") for j in range(n_planted + a + 1)],
        )
        for a in range(n_weights)
    ]
    products = [
        (f"gradient[{a}, {j}]", f"slopes[{a}, i]", f"tokens[{j}, i]")
        for a in range(n_weights)
        for j in range(n_axes)
    ]
    gram = [
        (f"outside[{a}, {b}]", f"slopes[{a}, i]", f"slopes[{b}, i]")
        for a in range(n_weights)
        for b in range(a + 1)
    ]
    return "\n\n".join(
        [
            _projection("_project", "state, tokens, fields", fields),
            _sums("_add_products", "slopes, tokens, gradient", products),
            _sums("_add_gram", "slopes, outside", gram),
        ]
    )


def _projection(
    name: str, parameters: str, fields: list[tuple[str, list[tuple[str, str]]]]
) -> str:
    lines = [_HEAD, f"def {name}({parameters}):"]
    names: dict[str, str] = {}
    for _, terms in fields:
        for coordinate, _ in terms:
            names[coordinate] = f"s{len(names)}"
    lines += [f"    {name} = {coordinate}" for coordinate, name in names.items()]
    lines.append("    for i in range(N_TOKENS):")
    for target, terms in fields:
        total = " + ".join(f"{names[one]} * {other}" for one, other in terms)
        lines.append(f"        {target} = {total}")
    return "\n".join(lines) + "\n"


def _sums(name: str, parameters: str, sums: list[tuple[str, str, str]]) -> str:
    lines = [_HEAD, f"def {name}({parameters}):"]
    for start in range(0, len(sums), _MOST_SUMS):
        part = sums[start : start + _MOST_SUMS]
        lines += [f"    t{k} = 0.0" for k in range(len(part))]
        lines.append("    for i in range(N_TOKENS):")
        lines += [f"        t{k} += {a} * {b}" for k, (_, a, b) in enumerate(part)]
        lines += [f"    {target} += t{k}" for k, (target, _, _) in enumerate(part)]
    return "\n".join(lines) + "\n"
