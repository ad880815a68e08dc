"""Captured heads of Hugging Face models are the model's own.

The model's own numbers come from runs without capture: what its attention function
hands to the output projection, and its own attention weights.
"""

import numpy as np
import pytest
import torch
from tests.adapters.models import CAUSAL, ROTARY, TEXT, hugging_face, text_batch, vision

from eigenheads.adapters import capture_heads
from eigenheads.adapters._layers import find_attention_layers

pytestmark = pytest.mark.torch
pytest.importorskip("transformers")
# Sums of at most 16 products of numbers of order 1 in single precision.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def own_outputs(model, batch):
    """Return what the untouched model hands to its output projections, by head."""
    seen, handles = [], []
    for layer in find_attention_layers(model):
        handles.append(
            layer.output.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        )
    model.eval()
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    n_heads = getattr(model.config, "num_attention_heads", 4)
    return [x.reshape(*x.shape[:2], n_heads, -1).transpose(1, 2).numpy() for x in seen]


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("padding", [None, "right", "left"])
def test_outputs_are_the_models_own(name, padding):
    model, batch = hugging_face(name), text_batch(padding)
    implementation = model.config._attn_implementation
    expected = own_outputs(model, batch)
    captured = list(capture_heads(model, batch, batch_size=2))
    assert len(captured) == len(expected) == 2
    real = batch["attention_mask"].bool().numpy()
    for layer, outputs in zip(captured, expected, strict=True):
        np.testing.assert_array_equal(layer.mask, real)
        assert layer.is_causal == (name in CAUSAL and name != "mistral")
        rows = np.where(real)
        for array in (layer.outputs, layer.recompute()):
            ours, theirs = (x.swapaxes(1, 2)[rows] for x in (array, outputs))
            np.testing.assert_allclose(ours, theirs, **CLOSE)
    assert model.config._attn_implementation == implementation == "sdpa"


@pytest.mark.parametrize("name", TEXT)
def test_weights_are_the_models_own(name):
    batch = text_batch("right")
    model = hugging_face(name, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = model(**batch, output_attentions=True).attentions
    real = np.where(batch["attention_mask"].bool().numpy())
    for layer, weights in zip(capture_heads(model, batch), expected, strict=True):
        ours, theirs = (
            x.swapaxes(1, 2)[real] for x in (layer.weights, weights.numpy())
        )
        np.testing.assert_allclose(ours, theirs, **CLOSE)
        np.testing.assert_allclose(ours.sum(-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("name", [*TEXT, "vit"])
def test_projections_make_what_was_captured(name):
    """Of rotary models at position 0, where the rotation is none."""
    if name == "vit":
        model, batch = vision(), {"pixel_values": torch.randn(3, 3, 8, 8)}
    else:
        model, batch = hugging_face(name), text_batch(None)
    for layer in capture_heads(model, batch):
        made = {
            which: np.einsum(
                "bnd,hvd->bhnv", layer.tokens, getattr(layer, f"w_{which}")
            )
            for which in ("query", "key", "value")
        }
        for which in made:
            bias = getattr(layer, f"b_{which}")
            made[which] += 0.0 if bias is None else bias[:, None]
        np.testing.assert_allclose(layer.values, made["value"], **CLOSE)
        if name == "qwen3":  # normalised after the projection
            continue
        stop = 1 if name in ROTARY else None
        for which, kept in (("query", layer.queries), ("key", layer.keys)):
            np.testing.assert_allclose(
                kept[:, :, :stop], made[which][:, :, :stop], **CLOSE
            )


def test_rotary_positions_are_applied():
    (layer,) = capture_heads(hugging_face("llama"), text_batch(None), layers=0)
    made = np.einsum("bnd,hvd->bhnv", layer.tokens, layer.w_query)
    assert np.abs(layer.queries - made)[:, :, 1:].max() > 0.1
    lengths = [np.linalg.norm(x, axis=-1) for x in (layer.queries, made)]
    np.testing.assert_allclose(*lengths, rtol=1e-4)


def test_grouped_keys_are_repeated_for_each_query_head():
    (layer,) = capture_heads(hugging_face("llama"), text_batch(None), layers=1)
    for array in (layer.keys, layer.values):
        assert array.shape[1] == 4
        np.testing.assert_array_equal(array[:, 0], array[:, 1])
        assert not np.array_equal(array[:, 1], array[:, 2])
    np.testing.assert_array_equal(layer.w_key[2], layer.w_key[3])


def test_vision_transformers_are_captured():
    model, batch = vision(), {"pixel_values": torch.randn(3, 3, 8, 8)}
    expected = own_outputs(model, batch)
    for layer, outputs in zip(capture_heads(model, batch), expected, strict=True):
        assert layer.mask.all()
        assert not layer.is_causal
        np.testing.assert_allclose(layer.outputs, outputs, **CLOSE)
        np.testing.assert_allclose(layer.recompute(), outputs, **CLOSE)


def test_sliding_windows_are_kept_as_a_bias():
    (layer,) = capture_heads(hugging_face("mistral"), text_batch(None), layers=0)
    assert layer.bias is not None
    assert layer.weights[0, 0, 6, 3] == 0.0
    assert layer.weights[0, 0, 6, 4] > 0.0


def test_half_precision_is_captured_in_single():
    model, batch = hugging_face("bert").to(torch.bfloat16), text_batch("right")
    expected = own_outputs(model.float(), batch)[0]
    (layer,) = capture_heads(model.to(torch.bfloat16), batch, layers=0)
    assert layer.outputs.dtype == np.float32
    # bfloat16 keeps 8 bits; a few roundings of numbers of size up to 5.
    np.testing.assert_allclose(layer.outputs, expected, atol=0.15)


def test_layers_that_share_weights_are_refused():
    import transformers

    config = transformers.AlbertConfig(
        vocab_size=40, embedding_size=16, hidden_size=16, num_attention_heads=4,
        num_hidden_layers=2, intermediate_size=16,
    )  # fmt: skip
    with pytest.raises(ValueError, match="called 2 times in one pass"):
        list(capture_heads(transformers.AlbertModel(config), text_batch()))


def test_what_changes_the_softmax_is_refused():
    import transformers

    config = transformers.Gemma2Config(
        vocab_size=40, hidden_size=16, num_attention_heads=4, num_hidden_layers=1,
        intermediate_size=16, head_dim=4, num_key_value_heads=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="Gemma2Attention with `softcap`"):
        list(capture_heads(transformers.Gemma2Model(config), text_batch()))


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_sequences_longer_than_the_model_takes_are_refused(name):
    model = hugging_face(name)
    longest = 32 if name == "bert" else 31
    list(capture_heads(model, text_batch(None, n_tokens=longest)))
    with pytest.raises(ValueError, match=f"at most {longest} tokens long; got"):
        capture_heads(model, text_batch(None, n_tokens=longest + 1))


def test_ids_outside_the_vocabulary_are_refused():
    batch = {"input_ids": torch.tensor([[1, 40]])}
    with pytest.raises(ValueError, match="ids from 0 to 39; got 40"):
        capture_heads(hugging_face("bert"), batch)
