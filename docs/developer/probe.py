"""Skeleton of a probe: a statistic of heads, for ``probes/_statistics.py``."""

from eigenheads.probes import Head
from eigenheads.probes._statistics import ATTENTION, StatisticEntry


def largest_weight(head: Head):
    """Return the largest attention weight of each query, (tokens,).

    `head` may hold many draws of a null at once: work on the last axes only.
    """
    return head.weights.max(axis=-1)


# The null answers "compared with what?": queries in random directions keep norms and
# keys, and lose what was learned about directions.
ENTRY = StatisticEntry(
    measure=largest_weight,
    nulls="rotated_queries untrained",
    alternative="greater",
    about="Largest attention weight of a query, mean over queries.",
    finding="attend sharply",
    question=ATTENTION,
)
