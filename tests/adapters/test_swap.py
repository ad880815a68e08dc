"""The swap's own face: choices, refusals, the summary, the diagnostics."""

import math
import warnings

import pytest
import torch
from torch import nn

from eigenheads.adapters import (
    SwapWarning,
    attention_summary,
    swap_attention,
    watch_attention,
)
from eigenheads.nn import PursuitWarning, RPCAttention

pytestmark = pytest.mark.torch


def model(n=4):
    torch.manual_seed(0)
    return nn.ModuleList(nn.MultiheadAttention(8, 2) for _ in range(n))


def chosen(swapped):
    return [r.layer for r in attention_summary(swapped) if r.attention != "original"]


@pytest.mark.parametrize(
    ("layers", "wanted"),
    [
        (None, [0, 1, 2, 3]),
        (1, [1]),
        (-1, [3]),
        ([0, -2], [0, 2]),
        (range(1, 3), [1, 2]),
        ("2", [2]),
        (["0", 3], [0, 3]),
    ],
)
def test_layers_are_chosen_by_index_range_or_name(layers, wanted):
    assert chosen(swap_attention(model(), to="symmetric", layers=layers)) == wanted


def test_layers_are_restored_one_by_one():
    swapped = swap_attention(model(), to="rpc")
    assert chosen(swap_attention(swapped, to="original", layers=[0, 2])) == [1, 3]
    assert chosen(swap_attention(swapped, to="original")) == []
    assert chosen(swap_attention(swapped, to="original")) == []  # nothing to do


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"to": "rcp"}, ValueError, r"`to` must be one of .*Did you mean 'rpc'\?"),
        ({"n_itr": 2}, TypeError, r"`n_itr` must be an option of to='rpc' \(n_iter,"),
        ({"n_iter": 0}, ValueError, "`n_iter` must be an integer from 1 to"),
        ({"sparsity": -1}, ValueError, "`sparsity`"),
        ({"queries": "mine"}, ValueError, "`queries` must be one of 'own', 'keys'"),
        ({"threshold": "papers"}, ValueError, "`threshold`"),
        ({"to": "symmetric", "n_iter": 2}, TypeError, r"to='symmetric' \(none\)"),
        ({"to": "scaled", "kind": "matrix"}, ValueError, "`n_tokens` must be"),
        ({"to": "original", "n_iter": 2}, TypeError, "left out for to='original'"),
        ({"layers": 4}, ValueError, "indices from 0 to 3; got 4"),
        ({"layers": "first"}, ValueError, "`layers` must be one of '0', '1'"),
        ({"layers": 1.5}, TypeError, "`layers`"),
        ({"layers": []}, ValueError, "at least one layer"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, error, message):
    untouched = model()
    with pytest.raises(error, match=f"^swap_attention: .*{message}"):
        swap_attention(untouched, **{"to": "rpc", **options})
    assert chosen(untouched) == []


def test_a_model_without_attention_is_refused_with_its_modules():
    class LocalAttention(nn.Linear):
        pass

    net = nn.Sequential(nn.Linear(2, 2), LocalAttention(2, 2))
    with pytest.raises(ValueError, match=r"swap_attention: .*1 \(LocalAttention\)"):
        swap_attention(net, to="rpc")
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module"):
        swap_attention("bert-base", to="rpc")


def test_our_own_layers_are_left_to_their_options():
    with pytest.raises(ValueError, match=r"without layers of eigenheads\.nn"):
        swap_attention(RPCAttention(8, 2), to="rpc")
    assert attention_summary(RPCAttention(8, 2))[0].queries == "as built"


def test_the_summary_says_whose_queries_ask():
    swapped = model(5)
    swap_attention(swapped, to="rpc", layers=0, queries="keys", n_iter=2)
    swap_attention(swapped, to="rpc", layers=1, sparsity="auto")
    swap_attention(swapped, to="symmetric", layers=2)
    swap_attention(swapped, to="scaled", layers=3)
    rows = attention_summary(swapped)
    assert [(row.attention, row.queries) for row in rows] == [
        ("rpc", "keys"),
        ("rpc", "own"),
        ("symmetric", "keys"),
        ("scaled", "own"),
        ("original", "own"),
    ]
    lines = str(rows).splitlines()
    assert len(lines) == 6
    assert "n_iter=4, sparsity='auto', threshold='paper'" in lines[2]


def test_swapping_again_to_the_same_keeps_what_was_learned():
    layer = swap_attention(nn.MultiheadAttention(8, 2), to="scaled")
    nn.init.constant_(layer.attention_scaling, 0.5)
    swap_attention(layer, to="scaled")
    assert layer.attention_scaling == 0.5
    swap_attention(layer, to="scaled", kind="matrix", n_tokens=3)
    assert layer.attention_scaling.shape == (2, 3, 3)
    swap_attention(layer, to="rpc")
    assert "attention_scaling" not in dict(layer.named_parameters())


def test_watching_tells_what_the_pursuits_do():
    swapped = swap_attention(model(2), to="rpc", layers=[0], n_iter=3, sparsity=0.1)
    x = torch.randn(5, 2, 8)
    with watch_attention(swapped) as seen:
        swapped[0](x, x, x)
    assert list(seen) == ["0"]
    assert (seen["0"].flagged > 0.5).all()
    swap_attention(swapped, to="rpc", sparsity=math.inf)
    with watch_attention(swapped) as seen:
        swapped[1](x, x, x)
    assert list(seen) == ["1"]  # the other was not called
    assert (seen["1"].flagged == 0).all()
    with (
        pytest.raises(ValueError, match="layers swapped to 'rpc'"),
        watch_attention(model()),
    ):
        pass


def test_training_warns_when_a_pursuit_flags_nothing():
    layer = swap_attention(model(1), to="rpc", n_iter=1, sparsity=1e6)[0]
    x = torch.randn(4, 2, 8)
    with pytest.warns(PursuitWarning, match="flagged no key entry in 100 training"):
        for _ in range(100):
            layer(x, x, x, need_weights=False)


def test_training_is_quiet_when_flagging_nothing_is_intended():
    layer = swap_attention(model(1), to="rpc", n_iter=1, sparsity=math.inf)[0]
    x = torch.randn(4, 2, 8)
    for _ in range(100):  # warnings are errors in this suite
        layer(x, x, x, need_weights=False)


@pytest.mark.parametrize(
    ("to", "options", "warns"),
    [
        ("rpc", {}, True),
        ("rpc", {"n_iter": 1, "sparsity": math.inf}, False),
        ("rpc", {"n_iter": 1, "sparsity": math.inf, "queries": "keys"}, True),
        ("symmetric", {}, True),
        ("scaled", {}, False),
        ("original", {}, False),
    ],
)
def test_changing_a_model_in_evaluation_mode_warns(to, options, warns):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        swap_attention(model(1).eval(), to=to, **options)
    assert [one.category for one in seen] == [SwapWarning] * warns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swap_attention(model(1).train(), to=to, **options)


def test_what_to_swap_to_must_be_given():
    with pytest.raises(TypeError, match="to"):
        swap_attention(model(1))


@pytest.mark.parametrize("query_steps", ["last", "every"])
@pytest.mark.parametrize("multiplier", ["paper", "admm"])
def test_signs_and_query_steps_reach_the_pursuit(multiplier, query_steps):
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    plain = RPCAttention(
        8, 2, multiplier=multiplier, symmetric=False, query_steps=query_steps
    )
    weights = {
        "qkv.weight": layer.in_proj_weight,
        "qkv.bias": layer.in_proj_bias,
        "proj.weight": layer.out_proj.weight,
        "proj.bias": layer.out_proj.bias,
    }
    plain.load_state_dict(weights)
    options = {"multiplier": multiplier, "query_steps": query_steps}
    swap_attention(layer, to="rpc", **options)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(layer(x, x, x)[0], plain(x))
    if query_steps == "every":
        with pytest.raises(ValueError, match="as many as the keys"):
            layer(x[:, -1:], x, x)
        with pytest.raises(ValueError, match="'last' for queries='keys'"):
            swap_attention(layer, to="rpc", queries="keys", **options)


@pytest.mark.parametrize(
    ("options", "names_it"),
    [({}, True), ({"multiplier": "admm"}, False), ({"multiplier": "paper"}, True)],
)
def test_the_warning_names_the_sign_that_minimises(options, names_it):
    model = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    with pytest.warns(SwapWarning) as seen:
        swap_attention(model, to="rpc", **options)
    assert ("multiplier='admm'" in str(seen[0].message)) is names_it
