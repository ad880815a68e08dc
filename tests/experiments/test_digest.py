"""Digests change with code that computes, and with nothing else."""

import ast

from eigenheads.experiments._digest import _plain, code_version

COMPUTES = '''
def double(x):
    """Return twice a number."""
    check_number("x", x, owner="double")
    if x < 0:
        raise ValueError("Negative.")
    return 2 * x
'''


def reduced(source: str) -> str:
    return _plain(ast.parse(source))


def test_docstrings_checks_and_texts_of_errors_do_not_count():
    changed = (
        COMPUTES.replace("Return twice a number.", "Double a number.")
        .replace('    check_number("x", x, owner="double")\n', "    # No check.\n")
        .replace('ValueError("Negative.")', 'TypeError("x must be positive.")')
    )
    assert changed != COMPUTES
    assert reduced(changed) == reduced(COMPUTES)


def test_notes_on_errors_do_not_count():
    noted = COMPUTES.replace(
        "    return 2 * x", "    with naming_errors('a'):\n        return 2 * x"
    )
    other = noted.replace("naming_errors", "errstate")
    assert reduced(noted) == reduced(COMPUTES) != reduced(other)


def test_shorter_compilations_do_not_count():
    short = "@njit(**INSIDE, short_loops=True)" + COMPUTES
    assert reduced(short) == reduced(short.replace(", short_loops=True", ""))
    other = short.replace("short_loops", "fastmath")
    assert reduced(other) != reduced(short)


def test_conditions_and_results_count():
    for old, new in (("x < 0", "x <= 0"), ("2 * x", "3 * x")):
        assert reduced(COMPUTES.replace(old, new)) != reduced(COMPUTES)


def test_results_of_checks_that_are_used_count():
    used = COMPUTES.replace("    check_number", "    x = check_number")
    assert reduced(used) != reduced(COMPUTES)


def test_papers_that_share_no_simulation_have_different_digests():
    assert code_version("marion2025/fig1") != code_version("maulensoto2026/fig1")
