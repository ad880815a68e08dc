"""Rows of masks belong to keys: cached, preallocated and foreign ones."""

import pytest
import torch

from eigenheads.adapters._attention_call import (
    AttentionCall,
    merge_masks,
    visibility_of,
    with_key_rows,
)
from eigenheads.nn._visibility import is_visible

pytestmark = pytest.mark.torch


def call(n_queries, n_keys, mask=None, **options):
    heads = [torch.zeros(1, 2, n, 4) for n in (n_queries, n_keys, n_keys)]
    names = dict(zip(("queries", "keys", "values"), heads, strict=True))
    return AttentionCall(**names, mask=mask, scale=1.0, **options)


def seen(call):
    return visibility_of(with_key_rows(call)).as_booleans(torch.device("cpu"))


def test_rows_of_cached_keys_follow_from_causality_and_padding():
    last = torch.tensor([[[[False, True, True, True]]]])  # one query, left padding
    found = seen(call(1, 4, last, is_causal=True))
    expected = torch.ones(4, 4, dtype=torch.bool).tril() & last[0, 0]
    assert torch.equal(found[0, 0], expected)


def test_empty_places_of_a_preallocated_cache_are_dropped():
    mask = torch.tensor([[[[True, True, True, False, False]]]])
    found = with_key_rows(call(1, 5, mask, is_causal=True))
    assert found.n_keys == 3


def test_masks_that_cannot_be_rebuilt_are_refused():
    window = torch.tensor([[[[True, False, True, True], [True, True, False, True]]]])
    with pytest.raises(ValueError, match="causal with padding where keys are cached"):
        with_key_rows(call(2, 4, window, is_causal=True))
    with pytest.raises(ValueError, match="the same for all queries"):
        with_key_rows(call(2, 4, window, is_self=False))


def test_a_mask_with_as_many_rows_as_keys_is_taken_as_it_is():
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
    assert torch.equal(seen(call(3, 3, mask, is_causal=True)), mask)


def test_grouped_keys_are_repeated_in_order():
    grouped = AttentionCall(
        queries=torch.zeros(1, 4, 3, 2),
        keys=torch.arange(2.0).view(1, 2, 1, 1).expand(1, 2, 3, 2),
        values=torch.zeros(1, 2, 3, 2),
        mask=None,
        scale=1.0,
    ).with_repeated_keys()
    assert grouped.keys[0, :, 0, 0].tolist() == [0, 0, 1, 1]


def test_the_masks_of_multihead_attention_hide_where_they_are_true():
    queries = torch.zeros(2, 3, 5, 4)
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    merged = merge_masks(later, ~real, queries)
    visible = ~later & real[:, None, None, :]
    assert torch.equal(is_visible(merged), visible.expand_as(merged))
    assert merge_masks(None, None, queries) is None
