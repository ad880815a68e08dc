"""Batches and Dask arrays meet the same checks as arrays in memory."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler
from tests.hostile.files import check_sentence

from eigenheads.estimators import (
    AttentionPCA,
    SingleLocationRegressor,
    TokenTransformer,
)

BAGS = np.random.default_rng(0).standard_normal((12, 4, 3))
TARGETS = BAGS[:, 0, 0]
MASK = BAGS > 1


def fit_bags(bags, targets=TARGETS, weights=None):
    batch = (bags, targets) if weights is None else (bags, targets, weights)
    return SingleLocationRegressor().fit(iter([batch]))


def fit_rows(bags):
    return AttentionPCA(1).fit(iter([bags[:, 0]]))


def sentence(call, *arguments):
    with pytest.raises((ValueError, TypeError)) as caught:
        call(*arguments)
    check_sentence(caught.value)
    return str(caught.value)


# Found: what is kept in files lost its mask, and the numbers behind it were fitted.
@pytest.mark.parametrize("fit", [fit_bags, fit_rows])
def test_masks_of_batches_are_not_dropped(fit):
    assert "without masked entries" in sentence(fit, np.ma.masked_array(BAGS, MASK))


def test_masks_of_targets_and_weights_are_not_dropped():
    masked = np.ma.masked_array(np.ones(12), MASK[:, 0, 0])
    assert "`y` must be" in sentence(fit_bags, BAGS, masked)
    assert "`sample_weight` must be" in sentence(fit_bags, BAGS, TARGETS, masked)
    array = pytest.importorskip("dask.array").from_array(BAGS, chunks=(5, 4, 3))
    assert "`y` must be" in sentence(SingleLocationRegressor().fit, array, masked)


# Found: NumPy's and PyTorch's own errors.
@pytest.mark.parametrize("fit", [fit_bags, fit_rows])
def test_tensors_in_batches_are_read_or_refused(fit):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(BAGS)
    assert fit(tensor.requires_grad_()) is not None
    assert "a dense tensor that holds numbers" in sentence(fit, tensor.to("meta"))


BATCHES = {
    "nothing": None,
    "bags of two widths": [np.ones((2, 3)), np.ones((2, 4))],
    "no bags": [],
    "an empty bag": [np.ones((0, 3))],
    "texts": [np.array([["a", "b"]])],
    "a mapping": {},
}


@pytest.mark.parametrize("bags", BATCHES.values(), ids=list(BATCHES))
def test_hostile_batches_are_refused(bags):
    assert "`X` must be" in sentence(fit_bags, bags, TARGETS[:1])


@pytest.mark.parametrize("batch", [1.0, (1.0,), "text", (1, 2, 3, 4), None])
def test_what_is_no_batch_is_named(batch):
    for model in (SingleLocationRegressor(), TokenTransformer(StandardScaler())):
        for X in (iter([batch]), lambda: [batch]):
            said = sentence(model.fit, X)
            assert "must be batches (bags, targets)" in said


def test_objects_that_are_numbers_or_texts_are_kept():
    plain = fit_bags(BAGS)
    objects = fit_bags(BAGS.astype(object), TARGETS.astype(object))
    np.testing.assert_allclose(objects.coef_key_, plain.coef_key_)


def test_tokens_of_a_dask_array_are_transformed_as_in_memory():
    array = pytest.importorskip("dask.array").from_array(BAGS, chunks=(5, 4, 3))
    here = TokenTransformer(StandardScaler()).fit(BAGS)
    there = TokenTransformer(StandardScaler()).fit(array)
    np.testing.assert_allclose(there.transform(array), here.transform(BAGS))
