"""Each formula once, pure, on NumPy or PyTorch arrays."""

__all__: list[str] = []
