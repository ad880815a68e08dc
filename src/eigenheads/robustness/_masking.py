"""A warning of masked gradients, from the outcomes of attacks."""

import warnings
from typing import Any

import numpy as np

from eigenheads.robustness._intervals import mean_outcome
from eigenheads.robustness._plan import EvaluationPlan, Outcomes

# Attacks in the same norm, with and without gradients: the former should be stronger.
_WITH_GRADIENT = ("fgsm", "pgd", "apgd-ce", "apgd-dlr")
_WITHOUT = ("noise", "spsa", "square", *(f"{n} transferred" for n in _WITH_GRADIENT))
_ONE_POINT = 0.01


class GradientMaskingWarning(UserWarning):
    """Warning: gradient attacks are weaker than others; accuracy is overestimated."""


def warn_of_masking(name: str, outcomes: Outcomes, plan: EvaluationPlan) -> None:
    """Warn if the best attack with gradients is weaker than one without.

    Compared are the same examples; the difference must exceed one point and two
    standard errors.
    """
    by_level: dict[float | None, dict[str, np.ndarray[Any, Any]]] = {}
    for condition, arrays in zip(plan.conditions, outcomes, strict=True):
        if condition.condition in (*_WITH_GRADIENT, *_WITHOUT):
            own = by_level.setdefault(condition.level, {})
            own[condition.condition] = np.mean(arrays, axis=0)
    for level, found in by_level.items():
        # FGSM alone may be weak without any masking, so the strongest one counts.
        strong = [found[one] for one in _WITH_GRADIENT if one in found]
        if not strong:
            continue
        best = min(strong, key=mean_outcome)
        for other in (one for one in _WITHOUT if one in found):
            difference = best - found[other]
            # The examples are the same, so this is the error of paired differences.
            error = float(np.std(difference)) / max(len(difference), 1) ** 0.5
            gap = float(difference.mean())
            if gap > max(_ONE_POINT, 2 * error):
                warnings.warn(
                    f"evaluate_robustness: {name!r} keeps {100 * gap:.1f} points more "
                    f"accuracy under the strongest attack with gradients than under "
                    f"{other!r} at budget {level:g}. Its gradients may be masked: do "
                    "not take its accuracy under these attacks for robustness.",
                    GradientMaskingWarning,
                    stacklevel=4,
                )
                break
