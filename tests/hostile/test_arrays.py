"""NaN, infinity, masks and odd tensors never become a plausible number."""

import re

import numpy as np
import pytest

from eigenheads import functional
from eigenheads._checks import check_finite_array, check_float_arrays, escape_controls
from eigenheads.functional._similarity import best_matching

POINTS = np.arange(12.0).reshape(4, 3) ** 2


def spoilt(value):
    points = POINTS.copy()
    points[2, 1] = value
    return points


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_matching_refuses_what_is_not_finite(value, place):
    arrays = [np.eye(4), np.eye(4)]
    arrays[place][1, 2] = value
    name = ("first", "second")[place]
    start = f"matching_cosine: `{name}` must be finite numbers; got {value} at "
    with pytest.raises(ValueError, match=re.escape(f"{start}index (1, 2).")):
        functional.matching_cosine(*arrays)


def test_matching_of_a_matrix_that_is_not_finite_is_nan_and_of_the_others_right():
    scores = np.stack([np.eye(3), np.full((3, 3), np.nan), np.eye(3)[::-1]])
    np.testing.assert_array_equal(best_matching(scores), [1.0, np.nan, 1.0])


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_cosines_do_not_depend_on_the_size_of_rows(size):
    found = functional.matching_cosine(POINTS * size, POINTS[::-1].copy())
    np.testing.assert_allclose(found, 1.0)


@pytest.mark.parametrize("name", ["rbf_gram", "effective_rank", "kernel_pca"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("as_array", ["numpy", "torch"])
def test_one_bad_entry_is_named(name, value, as_array):
    points = spoilt(value)
    if as_array == "torch":
        points = pytest.importorskip("torch").asarray(points)
    with pytest.raises(ValueError, match=rf"{name}: .* got {value} at index \(2, 1\)"):
        getattr(functional, name)(points)


def test_masks_are_not_dropped():
    masked = np.ma.masked_greater(POINTS, 100.0)
    with pytest.raises(ValueError, match="without masked entries; got 1 masked of 12"):
        functional.rbf_gram(masked)
    with pytest.raises(ValueError, match="without masked entries"):
        check_finite_array("x", masked)
    full = np.ma.masked_greater(POINTS, 1e9)
    assert check_finite_array("x", full).shape == POINTS.shape


def test_tensors_on_meta_are_refused_and_gradients_detached_where_numpy_computes():
    torch = pytest.importorskip("torch")
    meta = torch.ones(4, 3, dtype=torch.float64, device="meta")
    for check in (
        lambda: check_finite_array("x", meta),
        lambda: check_float_arrays(x=meta),
    ):
        with pytest.raises(ValueError, match="`x` must be a dense tensor that holds"):
            check()
    trained = torch.tensor([0.25, 0.5], requires_grad=True)
    plain = check_finite_array("x", trained)
    np.testing.assert_array_equal(plain, [0.25, 0.5])


def test_gradients_flow_through_the_door_where_torch_computes():
    torch = pytest.importorskip("torch")
    points = torch.asarray(POINTS).requires_grad_()
    functional.rbf_gram(points).sum().backward()
    assert bool(torch.isfinite(points.grad).all())


def test_sums_that_overflow_are_not_taken_for_infinite_entries():
    large = np.full((4, 3), 1.7e308)
    assert check_float_arrays(x=large) is not None


def test_lists_and_mixed_libraries_get_a_sentence():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="`first` must be an array of NumPy or PyTorch"):
        functional.linear_cka(POINTS.tolist(), POINTS)
    with pytest.raises(TypeError, match="`first` must be an array of the same library"):
        functional.linear_cka(torch.asarray(POINTS), POINTS)


def test_control_characters_are_written_out():
    text = "a\x1b]0;title\x07\x9b2Jb\u202e\ud800\tc\nd"
    assert escape_controls(text) == ("a\\x1b]0;title\\x07\\x9b2Jb\\u202e\\ud800\tc\nd")


# Found: an error of LAPACK, which met squares that had overflowed.
@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e25), ("float64", 1e200)])
def test_squares_that_overflow_are_said_beforehand(rng, dtype, size):
    from eigenheads.estimators import SignalDirection, SingleLocationRegressor

    bags = (rng.standard_normal((30, 4, 3)) * size).astype(dtype)
    for model in (SignalDirection(), SingleLocationRegressor()):
        with pytest.raises(ValueError, match=r"`X` must be numbers of at most 1e\+"):
            model.fit(bags, bags[:, 0, 0] / size)


# Found: the integer value of a float was accepted, and then used as a float.
def test_counts_may_be_floats(rng):
    from eigenheads.estimators import AttentionPCA, SignalDirection

    rows = rng.standard_normal((60, 3))
    assert AttentionPCA(1, max_iter=1e2, batch_size=1e2).fit(rows).n_iter_ > 0
    model = SignalDirection(n_starts=2.0, max_iter=20.0, n_tokens=8.0)
    assert model.fit(rows).n_iter_ is not None
