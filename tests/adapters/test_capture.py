"""Captured heads of PyTorch, timm-like and own layers; memory; bad input."""

import tracemalloc

import numpy as np
import pytest
import torch
from tests.adapters.models import Stack, TimmAttention, hugging_face, shaken, text_batch
from torch import nn

from eigenheads._errors import UsageError
from eigenheads.adapters import capture_heads, swap_attention
from eigenheads.adapters._layers import find_attention_layers
from eigenheads.nn import RPCAttention, ScaledAttention, SymmetricAttention

pytestmark = pytest.mark.torch
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def own_results(model, batch, **options):
    """Return what each attention module of the untouched model returns."""
    seen, handles = [], []

    def keep(module, args, kwargs, result):
        seen.append(result[0] if isinstance(result, tuple) else result)

    for layer in find_attention_layers(model):
        handles.append(layer.module.register_forward_hook(keep, with_kwargs=True))
    model.eval()
    with torch.no_grad():
        model(*batch, **options)
    for handle in handles:
        handle.remove()
    return [x.numpy() for x in seen]


def check(captured, expected, real=None):
    captured = list(captured)
    assert len(captured) == len(expected)
    for layer, result in zip(captured, expected, strict=True):
        if real is not None:
            np.testing.assert_array_equal(layer.mask, real)
        rows = np.where(layer.mask)
        np.testing.assert_allclose(layer.mixed()[rows], result[rows], **CLOSE)
        np.testing.assert_allclose(
            layer.recompute().swapaxes(1, 2)[rows],
            layer.outputs.swapaxes(1, 2)[rows],
            **CLOSE,
        )
        np.testing.assert_allclose(layer.weights @ layer.values, layer.outputs, **CLOSE)
    return captured


def encoder(batch_first=True, norm_first=False, d_model=16):
    layer = nn.TransformerEncoderLayer(
        d_model, 4, 32, batch_first=batch_first, norm_first=norm_first
    )
    nested = batch_first and not norm_first  # otherwise PyTorch warns
    return shaken(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_pytorch_encoders(norm_first, causal):
    torch.manual_seed(0)
    model, x = encoder(norm_first=norm_first), torch.randn(3, 6, 16)
    padding = torch.arange(6) >= torch.tensor([[6], [4], [3]])
    options = {"src_key_padding_mask": padding}
    if causal:
        options["mask"] = torch.ones(6, 6, dtype=torch.bool).triu(1)
    # Capture copes with nested tensors; plain hooks do not.
    nested, model.use_nested_tensor = model.use_nested_tensor, False
    expected = own_results(model, (x,), **options)
    model.use_nested_tensor = nested
    captured = capture_heads(model, {"src": x, **options}, batch_size=2)
    captured = check(captured, expected, real=~padding.numpy())
    assert [layer.is_causal for layer in captured] == [causal, causal]
    assert torch.backends.mha.get_fastpath_enabled()


def test_captured_tokens_are_those_after_the_first_norm():
    torch.manual_seed(0)
    model, x = encoder(norm_first=True), torch.randn(2, 5, 16)
    layer = next(capture_heads(model, x))
    with torch.no_grad():
        expected = model.layers[0].norm1(x)
    np.testing.assert_allclose(layer.tokens, expected, **CLOSE)


def test_pytorch_layers_with_tokens_first():
    torch.manual_seed(0)
    model, x = encoder(batch_first=False), torch.randn(6, 3, 16)
    expected = [result.swapaxes(0, 1) for result in own_results(model, (x,))]
    check(capture_heads(model, x, batch_size=2), expected)


@pytest.mark.parametrize("options", [{"kdim": 16, "vdim": 16}, {"bias": False}])
def test_multihead_attention_alone(options):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=True, **options)
    x = torch.randn(3, 5, 16)
    window = torch.randn(12, 5, 5)  # a bias for each row and head
    window[:, 0, 1] = -torch.inf
    with torch.no_grad():
        expected = model(x, x, x, attn_mask=window, need_weights=False)[0].numpy()
    batch = {"query": x, "key": x, "value": x, "attn_mask": window}
    (layer,) = check(capture_heads(model, batch, batch_size=2), [expected])
    assert layer.bias.shape == (3, 4, 5, 5)
    assert np.all(layer.weights[:, :, 0, 1] == 0)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_the_layout_of_timm(qk_norm):
    torch.manual_seed(0)
    model = Stack(TimmAttention(qk_norm=qk_norm), TimmAttention(qk_norm=qk_norm))
    model, x = shaken(model), torch.randn(3, 5, 16)
    check(capture_heads(model, x, batch_size=2), own_results(model, (x,)))
    mask = torch.ones(3, 1, 1, 5, dtype=torch.bool)
    mask[1, ..., 3:] = False
    captured = capture_heads(model, {"x": x, "attn_mask": mask}, batch_size=2)
    check(captured, own_results(model, (x,), attn_mask=mask), real=mask[:, 0, 0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        SymmetricAttention,
        ScaledAttention,
        lambda *args, **options: ScaledAttention(
            *args, kind="matrix", n_tokens=8, **options
        ),
        lambda *args, **options: RPCAttention(*args, sparsity=0.3, **options),
        lambda *args, **options: RPCAttention(*args, symmetric=False, **options),
    ],
)
def test_own_layers(make, causal):
    torch.manual_seed(0)
    model = shaken(Stack(make(16, 4, is_causal=causal), make(16, 4, is_causal=causal)))
    x = torch.randn(3, 6, 16)
    captured = check(capture_heads(model, x), own_results(model, (x,)))
    assert [layer.is_causal for layer in captured] == [causal, causal]
    mask = torch.ones(3, 1, 1, 6, dtype=torch.bool)
    mask[1, ..., 3:] = False
    captured = capture_heads(model, {"x": x, "attn_mask": mask})
    check(captured, own_results(model, (x,), attn_mask=mask), real=mask[:, 0, 0])


def test_the_model_is_left_as_it_was():
    model = Stack(TimmAttention(), TimmAttention()).train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    before = [parameter.clone() for parameter in model.parameters()]
    first = list(capture_heads(model, torch.randn(2, 4, 16)))
    assert [module.training for module in model.modules()] == modes
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    # Arrays are the caller's own: later training does not change them.
    kept = first[0].w_query.copy()
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight.zero_()
    np.testing.assert_array_equal(first[0].w_query, kept)


def test_neither_batch_size_nor_memory_changes_a_number():
    torch.manual_seed(0)
    model, batch = encoder(), torch.randn(5, 6, 16)
    whole = list(capture_heads(model, batch, batch_size=None))
    pieces = list(capture_heads(model, batch, batch_size=2, max_bytes=1))
    for one, other in zip(whole, pieces, strict=True):
        assert one.name == other.name
        np.testing.assert_allclose(one.outputs, other.outputs, atol=1e-6)
        np.testing.assert_array_equal(one.w_output, other.w_output)


def test_memory_is_bounded_by_one_layer():
    torch.manual_seed(0)
    model = Stack(*(TimmAttention() for _ in range(12)))
    x = torch.randn(32, 40, 16)
    size = next(capture_heads(model, x, layers=0)).nbytes
    tracemalloc.start()
    try:
        for layer in capture_heads(model, x, batch_size=4, max_bytes=1):
            del layer
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Two layers: the one being filled and the one just handed out; all are 12.
    assert peak < 3 * size


def test_attention_weights_may_be_left_out():
    torch.manual_seed(0)
    model, x = encoder(), torch.randn(2, 30, 16)
    for whole, lean in zip(
        capture_heads(model, x),
        capture_heads(model, x, with_weights=False),
        strict=True,
    ):
        assert lean.weights is None
        assert lean.nbytes == whole.nbytes - whole.weights.nbytes
        np.testing.assert_array_equal(lean.outputs, whole.outputs)


class Gated(TimmAttention):
    def forward(self, x, attn_mask=None):
        return 2 * super().forward(x)


class Shy(nn.Module):
    """Has an attention layer and never asks it."""

    def __init__(self):
        super().__init__()
        self.attn = TimmAttention()

    def forward(self, x):
        return x


def broken():
    model = Stack(TimmAttention())
    for weight in model.parameters():
        nn.init.constant_(weight, torch.nan)
    return model


@pytest.mark.parametrize(
    ("model", "batch", "message"),
    [
        (Stack(Gated()), torch.ones(2, 3, 16), "but returns something else"),
        (Shy(), torch.ones(2, 3, 16), "'attn', which was not called"),
        (Stack(TimmAttention()), torch.ones(2, 3, 5), "input that the model takes"),
        (
            Stack(TimmAttention()),
            torch.ones(2, 3, 16).to(torch.float8_e4m3fn),
            "input that the model takes",
        ),
        (
            Stack(TimmAttention()),
            torch.nested.nested_tensor([torch.ones(3, 16)], layout=torch.jagged),
            "a nested or a sparse one",
        ),
        (Stack(TimmAttention()), torch.ones(0, 3, 16), r"shape \(0, 3, 16\)"),
        (Stack(TimmAttention()), "a text", "a tensor, an array, or a mapping"),
        (Stack(TimmAttention()), {}, "a tensor, an array, or a mapping"),
        (
            Stack(TimmAttention()),
            torch.full((1, 2, 16), torch.nan),
            "`batch` must be of finite numbers; got 32 of 32 that are not",
        ),
        (
            Stack(TimmAttention()),
            {"x": torch.tensor([torch.inf, 0.0]).expand(1, 2, 2)},
            "got 2 of 4 that are not in 'x'",
        ),
        (broken(), torch.ones(1, 2, 16), "`model` must be of finite numbers"),
        (
            Stack(TimmAttention()),
            {"x": torch.ones(2, 3, 16), "attention_mask": torch.ones(3, 3)},
            "tensors with equal numbers of rows; got 3 rows in 'attention_mask'",
        ),
        (
            nn.MultiheadAttention(16, 4, add_zero_attn=True),
            torch.ones(2, 3, 16),
            "add_zero_attn",
        ),
        (
            nn.MultiheadAttention(16, 4),
            dict.fromkeys(("query", "key"), torch.ones(2, 3, 16))
            | {"value": torch.zeros(2, 3, 16)},
            "self-attention",
        ),
    ],
)
def test_bad_input_is_refused_with_a_sentence(model, batch, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        list(capture_heads(model, batch))
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, "8"])
def test_batch_size_is_checked(batch_size):
    with pytest.raises(ValueError, match="`batch_size` must be an integer >= 1"):
        capture_heads(
            Stack(TimmAttention()), torch.ones(1, 2, 16), batch_size=batch_size
        )


def test_arrays_are_taken_as_tensors():
    model, x = Stack(TimmAttention()), torch.randn(2, 3, 16)
    (one,), (other,) = capture_heads(model, x), capture_heads(model, x.numpy())
    np.testing.assert_array_equal(one.outputs, other.outputs)


def test_swapped_layers_are_never_taken_for_plain_ones():
    """What was swapped attends otherwise: captured as it is, or refused."""
    x = torch.randn(2, 5, 16)
    for model in (encoder(), Stack(TimmAttention())):
        swap_attention(model, "rpc", layers=[0])
        with pytest.raises(ValueError, match="plain softmax attention"):
            list(capture_heads(model, x))


def test_swapped_hugging_face_models_are_refused():
    model = hugging_face("bert")
    swap_attention(model, "rpc", layers=[0])
    with pytest.raises(ValueError, match="whose attention was swapped"):
        list(capture_heads(model, text_batch()))
