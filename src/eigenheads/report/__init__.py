"""The HTML report."""

__all__: list[str] = []
