"""Comparison of two samples of runs: one false-alarm probability for all columns."""

import numpy as np
from scipy import stats

# Of a whole test, for all its comparisons together.
FALSE_ALARM = 1e-4


def corrected_p_value(left, right):
    """Compare means, variances and distributions of all columns; Bonferroni.

    The first two by the normal limit of two averages of bounded numbers.
    """
    p_values = [
        stats.ks_2samp(one, other, method="asymp").pvalue
        for one, other in zip(left.T, right.T, strict=True)
    ]
    pooled = np.vstack([left, right]).mean(axis=0)
    for power in (1, 2):
        one, other = (left - pooled) ** power, (right - pooled) ** power
        p_values.extend(stats.ttest_ind(one, other, equal_var=False).pvalue)
    return min(p_values) * len(p_values)
