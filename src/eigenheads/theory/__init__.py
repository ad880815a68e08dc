"""Each theorem as a closed form."""

__all__: list[str] = []
