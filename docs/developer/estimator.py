"""Skeleton of an estimator, for ``estimators/_<system>.py``."""

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from eigenheads._checks import check_positive


class SoftmaxPooling(TransformerMixin, BaseEstimator):
    r"""Similarity of rows to their softmax-weighted mean.

    .. math:: m = \sum_i p_i x_i, \quad p = \operatorname{softmax}(\beta \|x\|)

    Parameters
    ----------
    inverse_temperature : float, default=1.0
        :math:`\beta > 0`.

    Attributes
    ----------
    mean_ : ndarray of shape (n_features,)
        Weighted mean :math:`m`.
    """

    def __init__(self, inverse_temperature=1.0):
        # Only assignments: scikit-learn clones an estimator from its parameters.
        self.inverse_temperature = inverse_temperature

    def fit(self, X, y=None):
        """Compute the weighted mean of the rows."""
        beta = check_positive("inverse_temperature", self.inverse_temperature)
        X = validate_data(self, X, dtype=np.float64)
        norms = np.linalg.norm(X, axis=1)
        # Subtracting the largest score leaves the weights as they are, and no
        # exponential overflows.
        weights = np.exp(beta * (norms - norms.max()))
        self.mean_ = weights @ X / weights.sum()
        return self

    def transform(self, X):
        """Return the inner product of each row with the mean, as one column."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ self.mean_[:, None]
