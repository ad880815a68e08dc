"""Draws tables on axes."""

__all__: list[str] = []
