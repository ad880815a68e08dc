"""Passages of text that are shipped, for probes of language models."""

from importlib.resources import files


def load_passages() -> list[str]:
    """Return 12 passages of plain English, about many subjects.

    Examples
    --------
    >>> len(load_passages())
    12
    """
    text = (files("eigenheads.datasets") / "texts.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]
