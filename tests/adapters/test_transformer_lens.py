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


def bridged(folder):
    """Return a small random GPT-2 in the bridge of TransformerLens 4."""
    from transformer_lens.model_bridge.sources.transformers import boot
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 24}
    config = GPT2Config(**sizes, vocab_size=50, attn_implementation="eager")
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return boot(str(folder), hf_model=model, device="cpu")


ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 8}


@pytest.fixture(
    params=[{}, {"n_key_value_heads": 2}, ROTARY, {**ROTARY, "n_key_value_heads": 2}],
    ids=["plain", "grouped", "rotary", "rotary grouped"],
)
def model(request, tmp_path):
    # Version 4 has no model of its own any more, and says so by an ImportError.
    with contextlib.suppress(ImportError):
        return hooked(**request.param)
    if request.param:
        pytest.skip("the bridge wraps models of Hugging Face, which are tested there")
    return bridged(tmp_path)


def test_arrays_of_the_cache_recompute_what_it_holds(model):
    with torch.no_grad():
        _, cache = model.run_with_cache(IDS)
    is_rotary = "blocks.0.attn.hook_rot_q" in cache
    for number, layer in enumerate(Capture.of_cache(cache, token_ids=IDS)):
        assert layer.is_causal
        pattern, outputs = (
            cache[f"blocks.{number}.attn.hook_{name}"].numpy()
            for name in ("pattern", "z")
        )
        for j in range(4):
            arrays = [x[1, j] for x in (layer.queries, layer.keys, layer.values)]
            head = Head(*arrays, layer.scale, np.tri(20, dtype=bool))
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
