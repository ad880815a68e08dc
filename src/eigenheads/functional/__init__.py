"""Each formula once, pure, on NumPy or PyTorch arrays."""

from eigenheads.functional._location import location_predictor

__all__ = ["location_predictor"]
