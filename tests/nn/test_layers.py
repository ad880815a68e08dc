r"""The layers as modules: formulas, timm's names, copies, files, repr, errors."""

import copy
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from eigenheads.functional import attention_pursuit
from eigenheads.nn import RPCAttention, ScaledAttention, SymmetricAttention

pytestmark = pytest.mark.torch

LAYERS = {
    "rpc": lambda **o: RPCAttention(16, 2, sparsity=0.5, **o),
    "rpc with queries": lambda **o: RPCAttention(16, 2, symmetric=False, **o),
    "rpc auto": lambda **o: RPCAttention(16, 2, n_iter=2, sparsity="auto", **o),
    "rpc recomputed": lambda **o: RPCAttention(16, 2, recompute=True, **o),
    "symmetric": lambda **o: SymmetricAttention(16, 2, **o),
    "scaled scalar": lambda **o: ScaledAttention(16, 2, **o),
    "scaled matrix": lambda **o: ScaledAttention(
        16, 2, kind="matrix", n_tokens=12, **o
    ),
}


@pytest.fixture(params=LAYERS)
def make(request):
    return LAYERS[request.param]


@pytest.fixture(autouse=True)
def seeded(rng_seed):
    torch.manual_seed(rng_seed)


def filled(layer):
    """Weights of size one, and a correction that is not zero."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.3)
    return layer.double().eval()


def tokens(*, batch=2, n=10):
    return torch.randn(batch, n, 16, dtype=torch.float64)


def heads_of(layer, x):
    q, k, v = layer.qkv(x).chunk(3, dim=-1)
    return [y.view(*y.shape[:2], 2, 8).transpose(1, 2) for y in (q, k, v)]


def project(layer, heads):
    return layer.proj(heads.transpose(1, 2).reshape(heads.shape[0], -1, 16))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_rpc_layer_is_the_reference_between_projections(symmetric, is_causal):
    layer = filled(RPCAttention(16, 2, symmetric=symmetric, sparsity=0.5, n_iter=3))
    x = tokens()
    q, k, v = heads_of(layer, x)
    found = attention_pursuit(
        k,
        v,
        queries=None if symmetric else q,
        sparsity=0.5,
        n_iter=3,
        is_causal=is_causal,
    )
    torch.testing.assert_close(
        layer(x, is_causal=is_causal), project(layer, found.output)
    )
    torch.testing.assert_close(
        layer.attention_weights(x, is_causal=is_causal), found.weights
    )
    if symmetric:
        seen = layer.diagnostics(x, is_causal=is_causal)
        torch.testing.assert_close(seen.self_weight, found.self_weight.mean(1))


def test_reference_rule_of_the_layer_uses_the_model_width():
    layer = filled(RPCAttention(16, 2, threshold="reference", sparsity=0.3))
    x = tokens()
    _, k, v = heads_of(layer, x)
    found = attention_pursuit(k, v, threshold="reference", width=16, sparsity=0.3)
    torch.testing.assert_close(layer(x), project(layer, found.output))


def test_symmetric_attention_is_a_pursuit_that_flags_nothing():
    symmetric = filled(SymmetricAttention(16, 2))
    pursuit = RPCAttention(16, 2, n_iter=1, sparsity=1e6).double()
    pursuit.load_state_dict(symmetric.state_dict())
    x = tokens()
    torch.testing.assert_close(symmetric(x), pursuit(x))
    scores = symmetric.attention_weights(x).log()
    # Symmetric scores up to a constant for each row: products around a cycle agree.
    cycle = scores[..., 0, 1] + scores[..., 1, 2] + scores[..., 2, 0]
    back = scores[..., 1, 0] + scores[..., 2, 1] + scores[..., 0, 2]
    torch.testing.assert_close(cycle, back)


@pytest.mark.parametrize("kind", ["scalar", "matrix"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_scaled_attention_is_its_formula(kind, is_causal):
    layer = filled(ScaledAttention(16, 2, kind=kind, n_tokens=12))
    x = tokens()
    q, k, v = heads_of(layer, x)
    hidden = torch.ones(10, 10).tril().log() if is_causal else torch.zeros(10, 10)
    weights = (q @ k.mT / math.sqrt(8) + hidden).softmax(-1)
    if kind == "scalar":
        correction = layer.scaling * (k @ k.mT / math.sqrt(8) + hidden).softmax(-1)
    else:
        correction = layer.scaling[:, :10, :10] * hidden.exp()
    expected = weights @ (torch.eye(10).double() - correction)
    torch.testing.assert_close(
        layer.attention_weights(x, is_causal=is_causal), expected
    )
    torch.testing.assert_close(
        layer(x, is_causal=is_causal), project(layer, expected @ v)
    )


@pytest.mark.parametrize("kind", ["scalar", "matrix"])
def test_scaled_attention_starts_as_plain_attention_and_learns(kind):
    layer = ScaledAttention(16, 2, kind=kind, n_tokens=10).double()
    x = tokens()
    q, k, v = heads_of(layer, x)
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(layer(x), project(layer, plain))
    layer(x).square().sum().backward()
    assert layer.scaling.grad.abs().max() > 0


def test_weights_applied_to_the_values_give_the_output(make):
    layer, x = filled(make()), tokens()
    padding = torch.ones(2, 1, 1, 10, dtype=torch.bool)
    padding[1, ..., -3:] = False
    for options in ({}, {"is_causal": True}, {"attn_mask": padding}):
        v = heads_of(layer, x)[2]
        by_hand = project(layer, layer.attention_weights(x, **options) @ v)
        torch.testing.assert_close(layer(x, **options), by_hand)


def test_nothing_leaks_through_a_layer(make):
    layer, x = filled(make()), tokens()
    dirty = x.clone()
    dirty[:, 6:] = 5.0
    shown = (torch.arange(10) < 6).view(1, 1, 1, 10)
    causal = filled(make(is_causal=True))
    for clean, perturbed in (
        (layer(x, shown), layer(dirty, shown)),
        (layer(x, is_causal=True), layer(dirty, is_causal=True)),
        (causal(x), causal(dirty)),
    ):
        torch.testing.assert_close(clean[:, :6], perturbed[:, :6])
    assert (layer(x) - layer(dirty))[:, :6].abs().max() > 1e-3


def timm_state(dtype=torch.float32):
    """Names and shapes of the attention of timm's vision transformers."""
    return {
        "qkv.weight": torch.randn(48, 16, dtype=dtype),
        "qkv.bias": torch.randn(48, dtype=dtype),
        "proj.weight": torch.randn(16, 16, dtype=dtype),
        "proj.bias": torch.randn(16, dtype=dtype),
    }


def test_timm_state_dicts_load(make):
    layer, state = make(), timm_state()
    scaled = isinstance(layer, ScaledAttention)
    missing, unexpected = layer.load_state_dict(state, strict=not scaled)
    assert missing == (["scaling"] if scaled else [])
    assert unexpected == []
    assert layer.num_heads == layer.n_heads == 2
    assert "qkv.bias" not in make(qkv_bias=False).state_dict()
    if scaled:
        # Queries, keys and values lie in timm's order: the layer is timm's attention.
        x = torch.randn(1, 5, 16)
        qkv = torch.nn.functional.linear(x, state["qkv.weight"], state["qkv.bias"])
        q, k, v = qkv.reshape(1, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        mixed = mixed.transpose(1, 2).reshape(1, 5, 16)
        expected = torch.nn.functional.linear(
            mixed, state["proj.weight"], state["proj.bias"]
        )
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_copies_and_files_give_the_same_layer(make, tmp_path):
    layer, x = filled(make()), tokens()
    expected = layer(x)
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(twin(x), expected)
    with torch.no_grad():
        twin.proj.bias += 1.0
    torch.testing.assert_close(twin(x), expected + 1.0)
    torch.testing.assert_close(layer(x), expected)

    torch.save(layer, tmp_path / "layer.pt")
    loaded = torch.load(tmp_path / "layer.pt", weights_only=False)
    torch.testing.assert_close(loaded(x), expected)

    torch.save(layer.state_dict(), tmp_path / "state.pt")
    fresh = make().double().eval()
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(fresh(x), expected)

    save_file(layer.state_dict(), tmp_path / "state.safetensors")
    fresh = make().double().eval()
    fresh.load_state_dict(load_file(tmp_path / "state.safetensors"))
    torch.testing.assert_close(fresh(x), expected)


def test_replicas_use_their_own_weights():
    layer = filled(RPCAttention(16, 2))
    replica = layer._replicate_for_data_parallel()
    assert replica.forward.__self__ is replica


def test_device_and_dtype_reach_every_parameter(make):
    layer = make(device="meta", dtype=torch.bfloat16)
    for parameter in layer.parameters():
        assert parameter.device.type == "meta"
        assert parameter.dtype == torch.bfloat16


def test_trains_in_bfloat16_under_autocast(make):
    layer, x = make(), torch.randn(2, 10, 16)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
    output.float().square().sum().backward()
    assert output.dtype == torch.bfloat16
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_dropout_acts_in_training_only(make):
    layer, x = make(attn_drop=0.5), torch.randn(2, 10, 16)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    dropped = make(proj_drop=1.0)
    assert torch.equal(dropped(x), torch.zeros(2, 10, 16))


def test_dropout_leaves_the_cleaning_alone():
    """Only the last softmax drops: K' stays, and the mean over draws is the output."""
    layer = filled(RPCAttention(16, 2, attn_drop=0.3, sparsity=0.5))
    x = tokens(batch=1, n=6)
    expected = layer.attention_weights(x)
    layer.train()
    torch.testing.assert_close(layer.attention_weights(x), expected)
    many = x.expand(4000, -1, -1)
    layer.eval()
    exact = layer(x)
    layer.train()
    error = layer(many).mean(0, keepdim=True) - exact
    # Each of the 96 means has a standard error of about 1/60 of the outputs' spread.
    spread = layer(many).std(0, keepdim=True) / math.sqrt(4000)
    assert (error.abs() <= 5.5 * spread + 1e-12).all()


def test_recomputing_changes_nothing_but_memory():
    layer = filled(RPCAttention(16, 2, sparsity=0.5))
    again = RPCAttention(16, 2, sparsity=0.5, recompute=True).double()
    again.load_state_dict(layer.state_dict())
    x = tokens()
    kept = []
    for module in (layer, again):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            loss = module(x).square().sum()
        loss.backward()
        kept.append(sum(sizes))
    for ours, theirs in zip(layer.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert kept[1] < kept[0] / 2


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (
            RPCAttention(16, 2, sparsity="auto", is_causal=True, recompute=True),
            "n_heads=2, is_causal=True, n_iter=4, sparsity='auto', threshold='paper', "
            "symmetric=True, recompute=True",
        ),
        (SymmetricAttention(16, 2), "n_heads=2, is_causal=False"),
        (ScaledAttention(16, 2), "n_heads=2, is_causal=False, kind='scalar'"),
        (
            ScaledAttention(16, 2, kind="matrix", n_tokens=7),
            "n_heads=2, is_causal=False, kind='matrix', n_tokens=7",
        ),
    ],
)
def test_describes_itself(layer, text):
    assert layer.extra_repr() == text
    assert text in repr(layer)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: RPCAttention(16, 5),
            r"RPCAttention: `n_heads` must be a divisor of `d_model`=16; got 5\. "
            r"Divisors of 16: \[1, 2, 4, 8, 16\]",
        ),
        (lambda: RPCAttention(16, 2, n_iter=0), r"RPCAttention: `n_iter` must be an"),
        (lambda: RPCAttention(0, 2), r"RPCAttention: `d_model` must be an integer"),
        (
            lambda: SymmetricAttention(16, 2, attn_drop=2.0),
            r"SymmetricAttention: `attn_drop` must be a finite number from 0 to 1",
        ),
        (
            lambda: ScaledAttention(16, 2, kind="matrx"),
            r"ScaledAttention: `kind` must be one of .* Did you mean 'matrix'",
        ),
        (
            lambda: ScaledAttention(16, 2, kind="matrix"),
            r"ScaledAttention: `n_tokens` must be an integer >= 1; got None",
        ),
        (
            lambda: ScaledAttention(16, 2, kind="matrix", n_tokens=3)(
                torch.ones(1, 4, 16)
            ),
            r"ScaledAttention: `x` must be of at most `n_tokens`=3 tokens; got 4 tok",
        ),
        (
            lambda: RPCAttention(16, 2)(torch.ones(4, 16)),
            r"RPCAttention: `x` must be of shape \(batch, tokens, 16\)",
        ),
        (
            lambda: RPCAttention(16, 2)(torch.full((1, 4, 16), math.nan)),
            r"RPCAttention: `keys` must be finite numbers; got nan",
        ),
    ],
)
def test_says_what_is_wrong(build, message):
    with pytest.raises(ValueError, match=message):
        build()
