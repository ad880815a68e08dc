"""Masks: every form is read into one, and its parts are told apart again."""

import math

import pytest
import torch

from eigenheads.nn import Visibility
from eigenheads.nn._visibility import is_visible

pytestmark = pytest.mark.torch

KEYS = torch.zeros(2, 3, 5, 4)
PADDING = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


@pytest.mark.parametrize("hidden", [-math.inf, torch.finfo(torch.float32).min, -1e4])
def test_all_ways_to_write_hidden_mean_the_same(hidden):
    numbers = torch.zeros(2, 1, 1, 5).masked_fill(~PADDING[:, None, None], hidden)
    assert torch.equal(is_visible(numbers), PADDING[:, None, None])
    read = Visibility.read(numbers, is_causal=False, keys=KEYS)
    same = Visibility.read(PADDING[:, None, None], is_causal=False, keys=KEYS)
    assert torch.equal(read.bias, same.bias)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("is_padded", [False, True])
def test_padding_and_causality_are_told_apart(is_padded, is_causal):
    padding = PADDING if is_padded else torch.ones_like(PADDING)
    visibility = Visibility.from_padding(padding, is_causal=is_causal)
    found, causal, rest = visibility.split(2)
    assert torch.equal(found, padding)
    assert causal == is_causal
    assert rest is None


def test_other_masks_are_kept_as_a_bias():
    window = torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)
    visibility = Visibility.read(window, is_causal=False, keys=KEYS)
    padding, causal, rest = visibility.split(2)
    assert padding.all()
    assert not causal
    assert torch.equal(rest.isfinite(), window.expand(2, 1, 5, 5))


@pytest.mark.parametrize("is_causal", [False, True])
def test_fused_and_explicit_attention_agree(is_causal):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 5, 4, generator=generator).unbind()
    visibility = Visibility.from_padding(PADDING, is_causal=is_causal)
    for n_queries in (5, 2):  # queries are the last tokens
        rows = q[..., -n_queries:, :]
        weights = visibility.weights(rows, k, scale=0.5)
        fused = visibility.attend(rows, k, v, scale=0.5)
        torch.testing.assert_close(weights @ v, fused)
        assert not weights[1, ..., 3:].any()


def test_a_row_that_sees_nothing_is_zero():
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    visibility = Visibility.read(mask, is_causal=False, keys=KEYS)
    weights = visibility.weights(KEYS, KEYS, scale=1.0)
    assert not weights[..., 2, :].any()
    assert torch.allclose(weights[..., 0, :].sum(-1), torch.ones(()))


def test_means_and_medians_are_over_what_a_row_sees():
    numbers = torch.tensor([[[1.0, 2.0, 9.0, 4.0, 5.0]]]).expand(2, 3, 5)
    visibility = Visibility.from_padding(PADDING, is_causal=True)
    means, medians = visibility.mean(numbers), visibility.median(numbers)
    assert means[0, 0, :, 0].tolist() == pytest.approx([1, 1.5, 4, 4, 4.2])
    assert medians[0, 0, :, 0].tolist() == pytest.approx([1, 1.5, 2, 3, 4])
    assert means[1, 0, 4, 0] == pytest.approx(4)  # padding is left out
