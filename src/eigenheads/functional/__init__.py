"""Each formula once, pure, on NumPy or PyTorch arrays."""

from eigenheads.functional._location import location_predictor
from eigenheads.functional._signal import signal_output, signal_output_gradient

__all__ = ["location_predictor", "signal_output", "signal_output_gradient"]
