"""Measure the accuracy of models on corrupted and attacked inputs and on outliers."""

from eigenheads._errors import missing as _missing

try:
    import torch as _torch  # noqa: F401 -- imported here, so that the error is clear
except ImportError as error:
    raise _missing("PyTorch", extra="torch") from error

from eigenheads.robustness._attacks import (
    ATTACKS,
    apgd,
    fgsm,
    pgd,
    spsa,
    square,
    uniform_noise,
)
from eigenheads.robustness._corruptions import (
    ALEXNET_ERRORS,
    CORRUPTIONS,
    IMAGENET_C,
    corrupt,
)
from eigenheads.robustness._evaluate import evaluate_robustness
from eigenheads.robustness._headroom import (
    Headroom,
    HeadroomRow,
    screening_headroom,
)
from eigenheads.robustness._plan import RobustnessPlan
from eigenheads.robustness._result import (
    GradientMaskingWarning,
    Robustness,
    RobustnessDifference,
    RobustnessRow,
)
from eigenheads.robustness._text import TEXT_CORRUPTIONS
from eigenheads.robustness._tokens import (
    PATCH_CORRUPTIONS,
    corrupt_patches,
    corrupting_tokens,
    swap_words,
)

__all__ = [
    "ALEXNET_ERRORS",
    "ATTACKS",
    "CORRUPTIONS",
    "IMAGENET_C",
    "PATCH_CORRUPTIONS",
    "TEXT_CORRUPTIONS",
    "GradientMaskingWarning",
    "Headroom",
    "HeadroomRow",
    "Robustness",
    "RobustnessDifference",
    "RobustnessPlan",
    "RobustnessRow",
    "apgd",
    "corrupt",
    "corrupt_patches",
    "corrupting_tokens",
    "evaluate_robustness",
    "fgsm",
    "pgd",
    "screening_headroom",
    "spsa",
    "square",
    "swap_words",
    "uniform_noise",
]
