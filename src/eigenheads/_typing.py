"""Types that several layers share."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Any array with a shape and a dtype: NumPy or PyTorch, decided by the caller.
Array: TypeAlias = Any

FloatArray: TypeAlias = NDArray[np.float64]

# A number, or a callable of the 0-based index of the update.
Schedule: TypeAlias = float | Callable[[int], float]
