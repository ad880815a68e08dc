"""Swapping in PyTorch's own layers."""

import copy
import io
import math
import warnings

import pytest
import torch
from torch import nn

from eigenheads.adapters import attention_summary, swap_attention
from eigenheads.nn import RPCAttention, ScaledAttention, SymmetricAttention

pytestmark = pytest.mark.torch
PLAIN = {"n_iter": 1, "sparsity": math.inf}  # RPC-Attention that is the original
KINDS = ["rpc", "symmetric", "scaled"]
# PyTorch's own encoder makes nested tensors, and warns about them.
NESTED = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def encoder(n_layers=2, *, batch_first=True, **options):
    torch.manual_seed(0)
    options = {"dim_feedforward": 24, "dropout": 0.1, **options}
    layer = nn.TransformerEncoderLayer(16, 4, batch_first=batch_first, **options)
    with warnings.catch_warnings():  # about nested tensors that it cannot use
        warnings.simplefilter("ignore", UserWarning)
        made = nn.TransformerEncoder(layer, n_layers)
    for parameter in made.parameters():  # layers are copies of one: make them differ
        nn.init.normal_(parameter, std=0.3)
    return made.eval()


def tokens(batch=3, n=7, d=16):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, n, d, generator=generator)


def padding(batch=3, n=7):
    hidden = torch.zeros(batch, n, dtype=torch.bool)
    hidden[1, 5:] = True
    hidden[2, 3:] = True
    return hidden


def as_layer(attention, layer_class, **options):
    """Return our own layer with the weights of an ``nn.MultiheadAttention``."""
    layer = layer_class(16, 4, **options)
    layer.qkv.weight.data = attention.in_proj_weight.data
    layer.qkv.bias.data = attention.in_proj_bias.data
    layer.proj.weight.data = attention.out_proj.weight.data
    layer.proj.bias.data = attention.out_proj.bias.data
    return layer.eval()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_eval_uses_the_swapped_attention_on_and_off_the_fast_path(grad, norm_first):
    model, x = encoder(norm_first=norm_first), tokens()
    with torch.set_grad_enabled(grad):
        before = model(x)
        swap_attention(model, to="rpc", **PLAIN)
        assert torch.allclose(model(x), before, atol=1e-5)
        swap_attention(model, to="rpc", layers=[1], n_iter=4)
        assert (model(x) - before).abs().max() > 1e-2
        swap_attention(model, to="original")
        assert torch.equal(model(x), before)


@NESTED
@pytest.mark.parametrize("layers", [[0], [1], None])
def test_padding_in_eval_needs_no_nested_tensors_and_nothing_leaks(layers):
    model, x, hidden = encoder(), tokens(), padding()
    other = x.masked_fill(hidden.unsqueeze(-1), 1e3)
    with torch.no_grad():
        before = model(x, src_key_padding_mask=hidden)
        swap_attention(model, to="rpc", layers=layers, **PLAIN)
        same = model(x, src_key_padding_mask=hidden)
        assert torch.allclose(same[~hidden], before[~hidden], atol=1e-5)
        swap_attention(model, to="rpc", layers=layers)
        one, two = (model(y, src_key_padding_mask=hidden) for y in (x, other))
        assert torch.equal(one[~hidden], two[~hidden])
        alone = model(x[1:2, :5])  # what padding does is what its absence does
        assert torch.allclose(alone, one[1:2, :5], atol=1e-5)
        swap_attention(model, to="original")
        assert torch.equal(model(x, src_key_padding_mask=hidden), before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_causal_mask_hides_the_future(kind):
    model, x = swap_attention(encoder(), to=kind), tokens()
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    for name, parameter in model.named_parameters():
        if name.endswith("attention_scaling"):
            nn.init.constant_(parameter, 0.5)
    other = x.clone()
    other[:, 4:] += 10.0
    for training in (False, True):
        model.train(training)
        one, two = (
            (torch.manual_seed(0), model(y, mask=mask, is_causal=True))[1]
            for y in (x, other)
        )
        assert torch.equal(one[:, :4], two[:, :4])
        assert (one[:, 4:] - two[:, 4:]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("to", "layer", "options"),
    [
        ("rpc", RPCAttention, {"n_iter": 3, "sparsity": 0.3}),
        ("rpc", RPCAttention, {"n_iter": 2, "threshold": "reference"}),
        ("symmetric", SymmetricAttention, {}),
        ("scaled", ScaledAttention, {}),
        ("scaled", ScaledAttention, {"kind": "matrix", "n_tokens": 9}),
    ],
)
@pytest.mark.parametrize("queries", ["own", "keys"])
def test_swapped_heads_compute_what_our_layers_compute(to, layer, options, queries):
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), tokens()
    wanted = as_layer(attention, layer, **options)
    if to == "rpc":
        wanted.symmetric = queries == "keys"
        options = {**options, "queries": queries}
    swap_attention(attention, to=to, **options)
    if to == "scaled":
        nn.init.normal_(wanted.scaling)
        attention.attention_scaling.data = wanted.scaling.data
    output, weights = attention(x, x, x, average_attn_weights=False)
    assert torch.allclose(output, wanted(x), atol=1e-5)
    assert torch.allclose(weights, wanted.attention_weights(x), atol=1e-5)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("case", ["bool", "float", "by head", "unbatched", "no bias"])
def test_calls_of_multihead_attention_keep_their_meaning(batch_first, case):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(
        16, 4, batch_first=batch_first, bias=case != "no bias"
    )
    x = tokens() if batch_first else tokens().transpose(0, 1)
    hidden, future = padding(), torch.ones(7, 7, dtype=torch.bool).triu(1)
    options = {"attn_mask": future, "key_padding_mask": hidden}
    if case == "float":
        bias = torch.randn(7, 7).masked_fill(future, -math.inf)
        numbers = torch.zeros(3, 7).masked_fill(hidden, -math.inf)
        options = {"attn_mask": bias, "key_padding_mask": numbers}
    elif case == "by head":
        options = {"attn_mask": future.expand(12, 7, 7), "average_attn_weights": False}
    elif case == "unbatched":
        x, options = tokens()[0], {"attn_mask": future}
    before = attention(x, x, x, **options)
    swap_attention(attention, to="rpc", **PLAIN)
    after = attention(x, x, x, **options)
    for one, two in zip(before, after, strict=True):
        assert one.shape == two.shape
        assert torch.allclose(one, two, atol=1e-5)
    assert attention(x, x, x, need_weights=False, **options)[1] is None


def test_other_tokens_keys_are_cleaned_and_asked_by_own_queries():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    x, memory, hidden = tokens(n=4), tokens(n=7), padding()
    before, _ = attention(x, memory, memory, key_padding_mask=hidden)
    swap_attention(attention, to="rpc", **PLAIN)
    after, _ = attention(x, memory, memory, key_padding_mask=hidden)
    assert torch.allclose(before, after, atol=1e-5)
    with pytest.raises(ValueError, match="the same for all queries"):
        attention(x, memory, memory, attn_mask=torch.ones(4, 7).tril().log())
    swap_attention(attention, to="symmetric")
    with pytest.raises(ValueError, match=r"must be of the tokens of the keys.*cross"):
        attention(x, memory, memory)


def test_cross_attention_of_decoders_is_left_alone():
    decoder = nn.TransformerDecoderLayer(16, 4, batch_first=True)
    swap_attention(decoder, to="symmetric")
    assert type(decoder.multihead_attn) is nn.MultiheadAttention
    assert [row.name for row in attention_summary(decoder)] == ["self_attn"]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_stay_and_the_model_copies_and_pickles(kind):
    model, x = encoder(), tokens()
    parameters = dict(model.named_parameters())
    names = list(model.state_dict())
    assert swap_attention(model, to=kind) is model
    assert all(model.get_parameter(name) is p for name, p in parameters.items())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    wanted = model(x)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert attention_summary(twin) == attention_summary(model)
        assert torch.equal(twin(x), wanted)
        swap_attention(twin, to="original")
        assert type(twin.layers[0].self_attn) is nn.MultiheadAttention
        assert list(twin.state_dict()) == names
    assert torch.equal(model(x), wanted)  # twins have nothing in common


@pytest.mark.parametrize("kind", KINDS)
def test_training_reaches_every_weight_that_is_used(kind):
    model, x = swap_attention(encoder(1), to=kind).train(), tokens()
    model(x).square().mean().backward()
    attention = model.layers[0].self_attn
    grad = attention.in_proj_weight.grad
    assert torch.isfinite(grad).all()
    used = grad.view(3, 16, 16).abs().amax((1, 2)) > 0
    assert used.tolist() == [kind != "symmetric", True, True]
    if kind == "scaled":
        assert attention.attention_scaling.grad.abs() > 0


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, dropout=0.5, batch_first=True)
    swap_attention(attention, to="rpc", n_iter=2)
    x = tokens()
    assert not torch.equal(attention(x, x, x)[0], attention(x, x, x)[0])
    attention.eval()
    assert torch.equal(attention(x, x, x)[0], attention(x, x, x)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_under_autocast_is_finite(kind, dtype):
    model, x = swap_attention(encoder(), to=kind), tokens()
    wanted = model(x)
    with torch.autocast("cpu", dtype=dtype), torch.no_grad():
        found = model(x).float()
    assert torch.isfinite(found).all()
    # Two layers of rounding to 8 bits, at outputs normed to size 0.3 and 1.
    assert (found - wanted).abs().mean() < 0.1


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_keys_that_are_not_tokens_are_refused_and_nothing_is_changed(options):
    odd = nn.MultiheadAttention(16, 4, **options)
    model = nn.ModuleList([nn.MultiheadAttention(16, 4), odd])
    with pytest.raises(ValueError, match=r"1 with keys that are not tokens"):
        swap_attention(model, to="rpc")
    assert type(model[0]) is nn.MultiheadAttention
    swap_attention(model, to="rpc", layers=0)


def test_a_forward_of_its_own_is_refused():
    class Odd(nn.MultiheadAttention):
        def forward(self, *args, **options):
            return super().forward(*args, **options)

    with pytest.raises(ValueError, match=r"the model with a forward of its own \(Odd"):
        swap_attention(Odd(16, 4), to="rpc")


@NESTED
def test_nested_tensors_from_outside_are_refused():
    model, x = encoder(), tokens()
    swap_attention(model.layers[1], to="rpc")  # the encoder does not hear of it
    with (
        pytest.raises(ValueError, match=r"nested tensor.*whole nn\.TransformerEncoder"),
        torch.no_grad(),
    ):
        model(x, src_key_padding_mask=padding())
