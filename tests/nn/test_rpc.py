r"""The layer tells, once, when it does nothing useful."""

import copy
import math
import warnings

import pytest
import torch

from eigenheads.nn import PursuitWarning, RPCAttention

pytestmark = pytest.mark.torch


def train(layer, x, n_steps):
    """Return the messages of a run; every other warning is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PursuitWarning)
        for _ in range(n_steps):
            layer(x)
    assert all(w.category is PursuitWarning for w in caught)
    return [str(w.message) for w in caught]


@pytest.fixture
def x(rng_seed):
    return torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(rng_seed))


def test_warns_once_when_a_run_never_flags(x):
    layer = RPCAttention(16, 2, n_iter=2, sparsity=1e6)
    assert train(layer, x, 99) == []
    (message,) = train(layer, x, 200)
    assert "flagged no key entry in 100 training steps" in message
    assert "Lower `sparsity`, or set it to 'auto'" in message


def test_is_quiet_when_something_is_flagged(x):
    assert train(RPCAttention(16, 2, n_iter=2, sparsity="auto"), x, 250) == []


def test_is_quiet_when_nothing_is_to_be_flagged(x):
    assert train(RPCAttention(16, 2, n_iter=2, sparsity=math.inf), x, 250) == []


def test_warns_once_when_tokens_only_see_themselves():
    """Orthogonal keys of size 100: own score 2500 in sixteen dimensions, others 0."""
    layer = RPCAttention(16, 1, n_iter=1, sparsity=3.9)
    with torch.no_grad():
        layer.qkv.weight[16:32] = torch.eye(16)
        layer.qkv.bias.zero_()
    (message,) = train(layer, 100 * torch.eye(16)[None, :12], 50)
    assert "token on itself is 1.0000: the layer no longer mixes tokens" in message
    assert "Lower `n_iter`, or scale the keys down" in message


def test_one_token_or_evaluation_is_no_cause(x):
    layer = RPCAttention(16, 2, n_iter=2, sparsity="auto")
    assert train(layer, x[:, :1], 50) == []
    silent = RPCAttention(16, 2, n_iter=2, sparsity=1e6).eval()
    assert train(silent, x, 250) == []


def test_copies_watch_for_themselves(x):
    layer = RPCAttention(16, 2, n_iter=2, sparsity=1e6)
    twin = copy.deepcopy(layer)
    assert len(train(layer, x, 120)) == 1
    assert len(train(twin, x, 120)) == 1
