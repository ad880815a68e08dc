"""Swapping in Hugging Face models: random small ones, nothing is downloaded."""

import copy
import math

import pytest
import torch
import transformers
from torch import nn

from eigenheads.adapters import attention_summary, swap_attention, watch_attention
from eigenheads.nn import rpc_attention

pytestmark = pytest.mark.torch
PLAIN = {"n_iter": 1, "sparsity": math.inf}
KINDS = ["rpc", "symmetric", "scaled"]
SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "initializer_range": 0.3,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WINDOW = {**GROUPED, "sliding_window": 3}
IMAGES = {**SIZES, "image_size": 8, "patch_size": 4}
DISTIL = {**SIZES, "dim": 16, "n_heads": 4, "n_layers": 2, "hidden_dim": 24}
# Name: (model, configuration, settings).
MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", SIZES),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "bert": ("BertModel", "BertConfig", SIZES),
    "vit": ("ViTModel", "ViTConfig", IMAGES),
    "distilbert": ("DistilBertModel", "DistilBertConfig", DISTIL),
    "mistral": ("MistralForCausalLM", "MistralConfig", WINDOW),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "bart": ("BartModel", "BartConfig", {**SIZES, "d_model": 16, "encoder_layers": 1,
             "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_ffn_dim": 24,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "init_std": 0.3}),
}  # fmt: skip
CAUSAL = ["gpt2", "llama"]
KEYS = {
    "llama": "layers.1.self_attn.k_proj.weight",
    "bert": "layer.1.attention.self.key.weight",
}


def make(name, implementation=None, **changes):
    torch.manual_seed(0)
    model, config, settings = MODELS[name]
    made = getattr(transformers, config)(**{**settings, **changes})
    if implementation:
        made._attn_implementation = implementation
    return getattr(transformers, model)(made).eval()


def batch(name, padding=None):
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=generator)}
    ids = torch.randint(3, 40, (2, 7), generator=generator)
    mask = torch.ones_like(ids)
    if padding == "right":
        mask[1, 5:] = 0
    elif padding == "left":
        mask[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def live(inputs):
    mask = inputs.get("attention_mask")
    return ... if mask is None else mask.bool()


def fill_scaling(model):
    for name, parameter in model.named_parameters():
        if name.endswith("attention_scaling"):
            nn.init.constant_(parameter, 0.5)
    return model


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_plain_pursuit_is_the_original_and_going_back_is_exact(
    name, padding, implementation
):
    model, inputs = make(name, implementation), batch(name, padding)
    names, seen = list(model.state_dict()), live(inputs)
    before = model(**inputs)[0]
    assert swap_attention(model, to="rpc", **PLAIN) is model
    assert all(row.attention == "rpc" for row in attention_summary(model))
    assert torch.allclose(model(**inputs)[0][seen], before[seen], atol=1e-5)
    # Layers that stay take another road to the same numbers.
    swap_attention(model, to="original", layers=[0])
    assert torch.allclose(model(**inputs)[0][seen], before[seen], atol=1e-5)
    swap_attention(model, to="rpc", n_iter=3)
    assert (model(**inputs)[0] - before)[seen].abs().max() > 1e-2
    swap_attention(model, to="original")
    assert model.config._attn_implementation == implementation
    assert list(model.state_dict()) == names
    assert torch.equal(model(**inputs)[0], before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_causal_models_do_not_see_the_future(name, kind):
    model = fill_scaling(swap_attention(make(name), to=kind))
    inputs = batch(name)
    one = model(**inputs)[0]
    inputs["input_ids"][:, 4:] = 5
    two = model(**inputs)[0]
    assert torch.equal(one[:, :4], two[:, :4])
    assert (one[:, 4:] - two[:, 4:]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("padding", ["right", "left"])
@torch.no_grad()
def test_padding_does_not_leak(name, padding, kind):
    model = fill_scaling(swap_attention(make(name), to=kind))
    inputs = batch(name, padding)
    seen = live(inputs)
    one = model(**inputs)[0]
    inputs["input_ids"][~seen] = 9
    two = model(**inputs)[0]
    assert torch.equal(one[seen], two[seen])
    if name == "bert":  # positions are the same: as if there were no padding
        alone = model(inputs["input_ids"][1:, :5])[0]
        if padding == "right":
            assert torch.allclose(alone[0], one[1, :5], atol=1e-5)


@torch.no_grad()
def test_grouped_keys_are_cleaned_and_repeated():
    model, inputs = make("llama"), batch("llama")
    attention = model.model.layers[0].self_attn
    seen = {}
    attention.o_proj.register_forward_pre_hook(lambda _, x: seen.update(heads=x[0]))
    swap_attention(model, to="rpc", n_iter=3, sparsity=0.5)
    model(**inputs)
    # The same from the layer's own projections, with our function.
    x = model.model.layers[0].input_layernorm(
        model.model.embed_tokens(inputs["input_ids"])
    )
    q, k, v = (
        project(x).view(2, 7, -1, 4).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    place = torch.arange(7)[None]
    turn = model.model.rotary_emb(x, place)
    q, k = transformers.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, *turn)
    k, v = (y[:, [0, 0, 1, 1]] for y in (k, v))
    options = {"n_iter": 3, "sparsity": 0.5, "is_causal": True}
    wanted = rpc_attention(k, v, queries=q, **options)
    found = seen["heads"].view(2, 7, 4, 4).transpose(1, 2)
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", [*KINDS, "rpc with keys"])
@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("name", CAUSAL)
def test_generation_with_a_cache_is_generation_without(name, padding, kind):
    options = {"queries": "keys"} if kind == "rpc with keys" else {}
    model = fill_scaling(swap_attention(make(name), to=kind.split()[0], **options))
    inputs = {**batch(name, padding), "max_new_tokens": 5, "do_sample": False}
    inputs |= {"return_dict_in_generate": True, "output_logits": True}
    wanted = model.generate(**inputs, use_cache=False)
    for cache in ("dynamic", "static"):
        found = model.generate(**inputs, cache_implementation=cache)
        assert torch.equal(found.sequences, wanted.sequences)
        for one, two in zip(found.logits, wanted.logits, strict=True):
            assert torch.allclose(one, two, atol=1e-4)
    assert len(set(wanted.sequences[:, 7:].flatten().tolist())) > 1


@torch.no_grad()
def test_a_prompt_in_pieces_gives_what_it_gives_whole():
    model, inputs = swap_attention(make("llama"), to="rpc"), batch("llama", "left")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    whole = model(ids, attention_mask=mask)
    first = model(ids[:, :4], attention_mask=mask[:, :4], use_cache=True)
    past = first.past_key_values
    second = model(ids[:, 4:], attention_mask=mask, past_key_values=past)
    assert torch.allclose(second.logits, whole.logits[:, 4:], atol=1e-4)


@torch.no_grad()
def test_what_a_cache_has_forgotten_is_refused():
    model, inputs = make("mistral"), batch("mistral")
    swap_attention(model, to="rpc")
    model.generate(**inputs, max_new_tokens=2, do_sample=False, use_cache=False)
    with pytest.raises(ValueError, match=r"`sliding_window` must be.*use_cache=False"):
        model.generate(**inputs, max_new_tokens=2, do_sample=False)


@torch.no_grad()
def test_unknown_changes_of_scores_are_refused():
    model = swap_attention(make("llama"), to="rpc")
    with pytest.raises(ValueError, match=r"`softcap` must be None in a swapped layer"):
        model(**batch("llama"), softcap=5.0)


@torch.no_grad()
def test_a_model_that_says_causal_without_a_mask_is_believed():
    model = swap_attention(make("vit"), to="rpc")
    one = model(**batch("vit"), is_causal=True)[0]
    inputs = batch("vit")
    inputs["pixel_values"][..., 4:, 4:] += 1.0  # the last of four patches
    two = model(**inputs, is_causal=True)[0]
    assert torch.equal(one[:, :4], two[:, :4])
    assert not torch.equal(one[:, 4], two[:, 4])


@torch.no_grad()
def test_weights_are_returned_on_request():
    model, inputs = make("bert", "eager"), batch("bert", "right")
    before = model(**inputs, output_attentions=True).attentions
    swap_attention(model, to="rpc", **PLAIN)
    after = model(**inputs, output_attentions=True).attentions
    assert torch.allclose(before[1], after[1], atol=1e-5)


def test_twins_of_one_configuration_stay_plain():
    config = make("bert").config
    one, two = (transformers.BertModel(config).eval() for _ in range(2))
    inputs = batch("bert")
    before = two(**inputs)[0]
    swap_attention(one, to="rpc")
    assert torch.equal(two(**inputs)[0], before)
    assert two.config is config
    assert all(row.attention == "original" for row in attention_summary(two))


def test_copies_and_models_inside_models_work():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = make("bert")
            self.vision = make("vit")

    model, inputs = Classifier(), batch("bert")
    swap_attention(model, to="rpc", layers=[0])
    wanted = model.backbone(**inputs)[0]
    twin = copy.deepcopy(model)
    assert torch.equal(twin.backbone(**inputs)[0], wanted)
    assert model.vision.config._attn_implementation == "sdpa"
    swap_attention(twin, to="original")
    assert not torch.equal(twin.backbone(**inputs)[0], wanted)
    assert torch.equal(model.backbone(**inputs)[0], wanted)


def test_a_layer_without_its_model_is_refused():
    with pytest.raises(ValueError, match=r"transformers\.PreTrainedModel"):
        swap_attention(make("bert").encoder.layer[0], to="rpc")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_training_and_half_precision_work(name, kind):
    model = swap_attention(make(name), to=kind).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**batch(name, "right"))[0]
    output.float().square().mean().backward()
    assert output.isfinite().all()
    (key,) = (p for n, p in model.named_parameters() if n.endswith(KEYS[name]))
    assert key.grad.isfinite().all()
    assert key.grad.abs().max() > 0


def test_dropout_acts_in_training_only():
    model = make("bert", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    swap_attention(model, to="rpc", n_iter=2)
    inputs = batch("bert")
    assert torch.equal(model(**inputs)[0], model(**inputs)[0])
    model.train()
    assert not torch.equal(model(**inputs)[0], model(**inputs)[0])


@torch.no_grad()
def test_watching_names_the_layers():
    model = swap_attention(make("gpt2"), to="rpc", layers=[1], n_iter=2)
    with watch_attention(model) as seen:
        model(**batch("gpt2"))
    assert list(seen) == ["transformer.h.1.attn"]
    assert seen["transformer.h.1.attn"].self_weight.shape == (2, 4)
