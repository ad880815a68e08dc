"""Activation caches of the real TransformerLens give the arrays of its model."""

import contextlib

import numpy as np
import pytest
import torch
import transformer_lens as lens

from eigenheads.adapters import Capture, probe_model
from eigenheads.probes import Head

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    # Version 3 announces the end of its own models.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
IDS = torch.randint(0, 50, (3, 20), generator=torch.Generator().manual_seed(0))


def hooked(**options):
    """Return a small random model of TransformerLens 2 or 3."""
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_head": 8, "d_mlp": 16}
    made = lens.HookedTransformerConfig(
        **sizes,
        n_ctx=24,
        d_vocab=50,
        act_fn="gelu",
        normalization_type="LNPre",
        seed=0,
        device="cpu",
        **options,
    )
    return lens.HookedTransformer(made)


def bridged(model, folder):
    """Return a model of Hugging Face in the bridge of TransformerLens 4."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge.sources.transformers import boot
    from transformers import PreTrainedTokenizerFast

    model = model.eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(50)}, "w0"))
    special = {"unk_token": "w0", "pad_token": "w0", "eos_token": "w1"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    model.save_pretrained(folder)
    return boot(str(folder), hf_model=model, device="cpu")


ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 8}
# Options of versions 2 and 3.
HOOKED = {
    "plain": {},
    "grouped": {"n_key_value_heads": 2},
    "rotary": ROTARY,
    "rotary grouped": {**ROTARY, "n_key_value_heads": 2},
    "encoder": {"attention_dir": "bidirectional"},
}


def of_hugging_face(kind):
    """Return a small model with the same kind of attention, for version 4."""
    import transformers as hf

    options = {"vocab_size": 50, "attn_implementation": "eager"}
    old = {**options, "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 24}
    new = {**options, "num_hidden_layers": 2, "num_attention_heads": 4}
    new |= {"hidden_size": 32, "intermediate_size": 16, "max_position_embeddings": 24}
    made = {
        "plain": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**old)),
        "grouped": lambda: hf.GPTBigCodeForCausalLM(hf.GPTBigCodeConfig(**old)),
        "rotary": lambda: hf.GPTNeoXForCausalLM(
            hf.GPTNeoXConfig(**new, rotary_pct=0.5)
        ),
        "rotary grouped": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**new, num_key_value_heads=2)
        ),
        "encoder": lambda: hf.BertForMaskedLM(hf.BertConfig(**new)),
        "unknown rotary": lambda: hf.GPTJForCausalLM(
            hf.GPTJConfig(**old, rotary_dim=4)
        ),
    }
    return made[kind]()


@pytest.fixture(params=list(HOOKED))
def model(request, tmp_path):
    # Version 4 has no model of its own any more, and says so by an ImportError.
    with contextlib.suppress(ImportError):
        return hooked(**HOOKED[request.param])
    return bridged(of_hugging_face(request.param), tmp_path)


def test_arrays_of_the_cache_recompute_what_it_holds(model):
    with torch.no_grad():
        _, cache = model.run_with_cache(IDS)
    names = ("hook_rot_q", "hook_cos")
    is_rotary = any(f"blocks.0.attn.{name}" in cache for name in names)
    for number, layer in enumerate(Capture.of_cache(cache, token_ids=IDS)):
        is_encoder = model.cfg.attention_dir == "bidirectional"
        assert layer.is_causal is not is_encoder
        visible = None if is_encoder else np.tri(20, dtype=bool)
        pattern, outputs = (
            cache[f"blocks.{number}.attn.hook_{name}"].numpy()
            for name in ("pattern", "z")
        )
        for j in range(4):
            arrays = [x[1, j] for x in (layer.queries, layer.keys, layer.values)]
            head = Head(*arrays, layer.scale, visible)
            np.testing.assert_allclose(head.weights, pattern[1, j], atol=1e-5)
            np.testing.assert_allclose(head.output, outputs[1, :, j], atol=1e-4)
            if not is_rotary:
                bias = model.b_Q[number, j].detach().numpy()
                made = layer.tokens[1] @ layer.w_query[j].T + bias
                np.testing.assert_allclose(made, head.queries, atol=1e-4)


def test_all_statistics_are_measured(model):
    ids = torch.cat([IDS[:, :10], IDS[:, :10]], dim=1)
    with torch.no_grad():
        _, cache = model.run_with_cache(ids)
    probe = probe_model(Capture.of_cache(cache, token_ids=ids), n_permutations=39)
    assert {"induction", "qk_ov_cosine", "subspace_affinity"} <= set(probe.statistics)
    assert all(np.isfinite(one.observed).all() for one in probe.statistics.values())
    straight = probe_model(cache, statistics=["entropy"], n_permutations=0)
    np.testing.assert_array_equal(
        straight["entropy"].observed, probe["entropy"].observed
    )


def test_rotary_positions_that_the_cache_lacks_are_refused(tmp_path):
    with contextlib.suppress(ImportError):
        hooked()
        pytest.skip("versions 2 and 3 cache rotated queries")
    model = bridged(of_hugging_face("unknown rotary"), tmp_path)
    with torch.no_grad():
        _, cache = model.run_with_cache(IDS)
    with pytest.raises(ValueError, match="not softmax"):
        Capture.of_cache(cache)
