"""Probes of whole models find what is planted, and not what is random."""

import gc
import tracemalloc
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from tests.adapters.models import Stack, TimmAttention, hugging_face, shaken, text_batch
from torch import nn

from eigenheads.adapters import (
    Capture,
    _capture,
    _probe,
    capture_heads,
    compare_models,
    probe_model,
    swap_attention,
)
from eigenheads.adapters._probe import untrained_copy
from eigenheads.nn import ScaledAttention
from eigenheads.probes import HeadStatistic, kernel_pca_probe
from eigenheads.probes._captured import affordable_redraws
from eigenheads.probes._statistics import STATISTICS

pytestmark = pytest.mark.torch


def encoder(seed=0):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.fixture(scope="module")
def probe():
    model = encoder()
    return probe_model(model, torch.randn(3, 9, 16), n_permutations=19, n_untrained=2)


def test_records_have_a_row_for_each_head_statistic_and_null(probe):
    assert probe.layers == [0, 1]
    rows = probe.to_records()
    keys = [(row["layer"], row["head"], row["statistic"], row["null"]) for row in rows]
    assert len(keys) == len(set(keys))
    assert {(layer, head) for layer, head, *_ in keys} == {
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    }
    assert {"linear_cka", "qk_covariance_cosine"} <= set(probe.statistics)
    assert all(statistic.about for statistic in probe.statistics.values())


def test_sequences_too_short_for_captured_variance_are_said(probe):
    """Nine tokens less their mean have eight directions, a head eight columns."""
    assert probe.notes[0].startswith("3 of 3 sequences")
    np.testing.assert_allclose(probe["captured_variance"].observed, 1, atol=1e-6)
    longer = probe_model(
        encoder(), torch.randn(3, 10, 16), n_permutations=0, n_untrained=0
    )
    assert longer.notes == []
    assert (longer["captured_variance"].observed < 0.9999).all()


def test_numbers_are_those_of_the_probe_on_the_captured_arrays():
    model, x = encoder(), torch.randn(3, 9, 16)
    whole = probe_model(model, x, n_permutations=0, n_untrained=0)
    for i, layer in enumerate(capture_heads(model, x)):
        alone = kernel_pca_probe(
            layer.queries, layer.keys, layer.values, mask=layer.mask, n_permutations=0
        )
        for name, statistic in alone.statistics.items():
            np.testing.assert_allclose(
                whole[name].observed[i], statistic.observed, rtol=1e-6
            )


def test_a_planted_score_form_is_found_and_random_ones_are_not():
    """Keys and queries read the two directions in which the tokens vary most."""
    torch.manual_seed(0)
    planted, plain = TimmAttention(16, 2), TimmAttention(16, 2)
    with torch.no_grad():
        planted.qkv.weight[:32] = 0.0
        for row in range(0, 32, 8):  # two rows of each head's queries and keys
            planted.qkv.weight[row, 0] = planted.qkv.weight[row + 1, 1] = 1.0
    x = torch.randn(4, 30, 16) * torch.tensor([6.0, 6.0] + [1.0] * 14)
    cosine = "qk_covariance_cosine"
    options = {"statistics": [cosine], "n_permutations": 99, "n_untrained": 0}
    q = {
        name: probe_model(model, x, **options).q_value(cosine, "rotated")
        for name, model in (("planted", planted), ("plain", plain))
    }
    assert q["planted"].max() <= 0.02
    # Two heads at random: both below 0.02 at once has probability below 4e-4.
    assert q["plain"].max() > 0.02


def test_the_same_seed_gives_the_same_numbers(probe):
    x = torch.randn(2, 6, 16)
    runs = [
        probe_model(
            encoder(), x, n_permutations=5, n_untrained=1, seed=seed
        ).to_records()
        for seed in (3, 3, 4)
    ]
    assert str(runs[0]) == str(runs[1])
    assert str(runs[0]) != str(runs[2])


def test_padding_changes_nothing():
    model, batch = hugging_face("bert"), text_batch(None, n_rows=2)
    longer = {
        name: torch.cat([x, torch.zeros_like(x)], dim=1) for name, x in batch.items()
    }
    options = {"n_permutations": 0, "n_untrained": 0}
    one, other = (probe_model(model, b, **options) for b in (batch, longer))
    for name in one.statistics:
        np.testing.assert_allclose(
            one[name].observed, other[name].observed, rtol=1e-3, atol=1e-5
        )


def test_layers_are_chosen_and_numbered_as_in_the_model():
    found = probe_model(
        encoder(), torch.randn(2, 5, 16), layers=[1], n_permutations=0, n_untrained=0
    )
    assert found.layers == [1]
    assert found["linear_cka"].observed.shape == (1, 2)


def test_sliding_windows_are_noted():
    found = probe_model(
        hugging_face("mistral"), text_batch(None), n_permutations=0, n_untrained=0
    )
    assert "Layer 0 masks or biases its scores" in found.notes[0]


def test_too_few_draws_are_said():
    found = probe_model(
        encoder(), torch.randn(2, 6, 16), n_permutations=9, n_untrained=0
    )
    assert {row["n_found"] for row in found.summary()} == {None}
    assert not found.stands_out("captured_variance").any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_permutations": -1}, "`n_permutations` must be an integer >= 0"),
        ({"n_untrained": 1.5}, "`n_untrained` must be an integer >= 0"),
        ({"seed": -1}, "`seed` must be an integer from 0"),
        ({"jobs": 0}, "`jobs` must be an integer >= 1"),
        ({"layers": [7]}, "`layers` must be indices from 0 to 1"),
        ({"false_discovery": "bhh"}, "Did you mean 'bh'?"),
        ({"untrained": [3]}, "`untrained` must be a sequence of models"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match="probe_model: ") as caught:
        probe_model(encoder(), torch.randn(2, 5, 16), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_twins_of_hugging_face_models_are_drawn_anew(name):
    model = hugging_face(name)
    state = torch.random.get_rng_state()
    one, same, other = (untrained_copy(model, seed) for seed in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    for key, weight in model.state_dict().items():
        if not weight.is_floating_point() or weight.ndim < 2:
            continue
        assert torch.equal(one.state_dict()[key], same.state_dict()[key])
        assert not torch.equal(one.state_dict()[key], other.state_dict()[key])
        assert not torch.equal(one.state_dict()[key], weight)


def test_twins_of_pytorch_models_are_drawn_as_new_ones_are():
    model = shaken(encoder())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 100.0
    twin = untrained_copy(model, 0)
    for name, parameter in twin.named_parameters():
        fresh = encoder(1).get_parameter(name)
        assert parameter.std() < 2 * fresh.std() + 0.5, name
        if name.endswith(("in_proj_bias", "out_proj.bias")):
            assert not parameter.any()  # as PyTorch starts them


def test_layers_beside_a_swapped_one_have_twins_too():
    model = swap_attention(encoder(), to="rpc", layers=[0])
    twin = untrained_copy(model, 0)
    assert type(twin.layers[0].self_attn) is type(model.layers[0].self_attn)
    found = probe_model(model, torch.randn(2, 5, 16), layers=[1], n_permutations=0)
    assert found.settings["n_untrained"] > 0


def test_what_cannot_be_drawn_anew_is_said():
    model = Stack(ScaledAttention(16, 4))
    found = probe_model(model, torch.randn(2, 5, 16), n_permutations=0)
    assert (
        "ScaledAttention has no method that draws its parameter scaling"
        in found.notes[0]
    )
    assert found.settings["n_untrained"] == 0
    twin = Stack(ScaledAttention(16, 4))
    given = probe_model(
        model, torch.randn(2, 5, 16), n_permutations=0, untrained=[twin]
    )
    assert list(given["linear_cka"].nulls) == ["untrained"]


def test_costly_nulls_take_their_own_draws():
    found = probe_model(
        encoder(), torch.randn(2, 9, 16), n_permutations=5, n_redraws=7, n_untrained=0
    )
    drawn = {row["null"]: row["n_draws"] for row in found.to_records()}
    assert (drawn["permuted_tokens"], drawn["random_projections"]) == (5, 7)
    assert found.settings["n_redraws"] == 7


@pytest.mark.parametrize(
    ("n_sequences", "n_permutations", "expected"),
    [(2, 5, 10), (6, 10, 20), (12, 10, 10), (2, 0, 0)],
)
def test_few_sequences_have_more_costly_draws(n_sequences, n_permutations, expected):
    options = {"n_permutations": n_permutations, "n_untrained": 0}
    batch = torch.randn(n_sequences, 6, 16)
    found = probe_model(encoder(), batch, statistics=["linear_cka"], **options)
    assert found.settings["n_redraws"] == expected
    captured = Capture(encoder(), batch)
    found = probe_model(captured, statistics=["linear_cka"], **options)
    assert found.settings["n_redraws"] == expected


@pytest.mark.parametrize(
    ("n_sequences", "expected"), [(1, 400), (6, 400), (12, 213), (40, 64), (99, 40)]
)
def test_default_costly_draws(n_sequences, expected):
    assert affordable_redraws(200, n_sequences) == expected


def test_a_capture_runs_the_model_once_if_it_fits():
    calls = []
    model, x = encoder(), torch.randn(2, 5, 16)
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    capture = Capture(model, x)
    first = [layer.queries for layer in capture]
    n_calls = len(calls)
    for one, other in zip(first, capture, strict=True):
        assert np.array_equal(one, other.queries)
    assert len(calls) == n_calls
    small = Capture(model, x, layers=[1], max_bytes=1)
    assert small.layers == [1]
    for _ in range(2):
        (layer,) = small
        assert np.array_equal(layer.queries, first[1])


def on_itself(head):
    """Attention weight of each token on itself."""
    return head.weights.diagonal()


def test_functions_of_a_head_are_statistics():
    model, x = encoder(), torch.randn(3, 9, 16)
    chosen = [on_itself, "sink_mass", "qk_rank"]
    found = probe_model(model, x, statistics=chosen, n_permutations=19, n_untrained=1)
    assert list(found.statistics) == ["on_itself", "sink_mass", "qk_rank"]
    assert found["on_itself"].about == "Attention weight of each token on itself."
    for layer, captured in enumerate(capture_heads(model, x)):
        diagonal = captured.weights.diagonal(axis1=2, axis2=3).mean(axis=(0, 2))
        np.testing.assert_allclose(found["on_itself"].observed[layer], diagonal, 1e-5)
        first = captured.weights[:, :, 1:, 0].mean(axis=(0, 2))
        np.testing.assert_allclose(found["sink_mass"].observed[layer], first, 1e-5)
    assert set(found["on_itself"].nulls) == {
        "rotated_queries",
        "random_values",
        "untrained",
    }


def test_all_parts_of_a_head_are_there():
    seen = {}

    def look(head):
        seen[head.layer, head.index] = head
        return 0.0

    model = hugging_face("gpt2")
    # One sequence: threads see the heads of several in any order.
    batch = text_batch(None, n_rows=1)
    nothing = HeadStatistic("look", look, nulls=())
    probe_model(model, batch, statistics=[nothing], n_untrained=0)
    captured = list(capture_heads(model, batch))
    head = seen[1, 0]
    row = next(iter(np.flatnonzero(captured[1].mask.sum(axis=1) >= 3)[-1:]))
    real = captured[1].mask[row]
    np.testing.assert_allclose(
        head.weights, captured[1].weights[row, 0][np.ix_(real, real)], atol=1e-5
    )
    np.testing.assert_allclose(
        head.output, captured[1].outputs[row, 0][real], atol=1e-4
    )
    assert head.token_ids.tolist() == batch["input_ids"][row][real].tolist()
    assert head.tokens.shape == (real.sum(), head.matrices["query"].shape[1])
    assert set(head.matrices) == {"query", "key", "value", "output"}


def test_a_planted_previous_token_head_is_found():
    """Queries and keys are one-hot positions, the queries one step behind."""
    n = 12
    positions = np.eye(n)
    rng = np.random.default_rng(0)
    arrays = {
        "queries": rng.normal(size=(3, 2, n, n)),
        "keys": np.tile(positions, (3, 2, 1, 1)),
        "values": rng.normal(size=(3, 2, n, 4)),
        "scale": 1.0,
    }
    arrays["queries"][:, 0] = np.roll(positions, 1, axis=0) * 8
    found = probe_model(arrays, statistics=["previous_token"], n_permutations=99)
    p_values = found["previous_token"].p_value["shuffled_positions"]
    assert p_values[0, 0] == 0.01
    assert p_values[0, 1] > 0.01
    assert found["previous_token"].observed[0, 0] > 0.9


def test_arrays_and_caches_give_the_numbers_of_the_model():
    model, x = encoder(), torch.randn(3, 9, 16)
    captured = list(capture_heads(model, x))
    names = ("queries", "keys", "values", "tokens", "w_query", "w_key", "w_value")
    arrays = [{n: getattr(c, n) for n in (*names, "w_output")} for c in captured]
    options = {"n_permutations": 9, "n_untrained": 0}
    whole = probe_model(model, x, **options)
    same = probe_model(arrays, **options)
    for name, statistic in whole.statistics.items():
        np.testing.assert_allclose(same[name].observed, statistic.observed, rtol=1e-6)
    bare = probe_model({n: arrays[0][n] for n in names[:3]}, **options)
    assert "qk_rank" not in bare.statistics
    np.testing.assert_allclose(
        bare["linear_cka"].observed[0], whole["linear_cka"].observed[0], rtol=1e-6
    )


class LensCache(dict):
    """An activation cache with the attributes of TransformerLens' own."""

    def __init__(self, captured):
        super().__init__()
        for number, one in enumerate(captured):
            for short, name in (("q", "queries"), ("k", "keys"), ("v", "values")):
                rows = torch.from_numpy(getattr(one, name)).transpose(1, 2)
                self[f"blocks.{number}.attn.hook_{short}"] = rows
            self[f"blocks.{number}.attn.hook_pattern"] = torch.from_numpy(one.weights)
            self[f"blocks.{number}.ln1.hook_normalized"] = torch.from_numpy(one.tokens)
        self.model = nn.Module()
        for letter, name in zip(
            "QKVO", ("query", "key", "value", "output"), strict=True
        ):
            stacked = np.stack([getattr(one, f"w_{name}") for one in captured])
            setattr(
                self.model, f"W_{letter}", torch.from_numpy(stacked).transpose(2, 3)
            )
        self.model.cfg = type("Config", (), {})()
        self.model.cfg.attn_scale = captured[0].scale ** -1
        self.model.cfg.attention_dir = "bidirectional"


def test_caches_of_transformer_lens_are_read():
    model, x = encoder(), torch.randn(3, 9, 16)
    options = {"n_permutations": 9, "n_untrained": 0}
    whole = probe_model(model, x, **options)
    same = probe_model(LensCache(list(capture_heads(model, x))), **options)
    assert same.names == ["blocks.0.attn", "blocks.1.attn"]
    for name, statistic in whole.statistics.items():
        np.testing.assert_allclose(same[name].observed, statistic.observed, rtol=1e-5)


@pytest.mark.parametrize("is_paired", [False, True])
def test_caches_of_angles_are_rotated(is_paired):
    # Version 4 caches some queries before their rotation, and cosines and sines.
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 7, 2, 6))
    angles = np.arange(7)[:, None] * np.array([1.0, 0.1])
    # One angle rotates two coordinates: neighbours, or one of each half.
    order = [0, 0, 1, 1] if is_paired else [0, 1, 0, 1]
    names = {"q": q, "k": k, "v": v}
    names |= {"cos": np.cos(angles)[None, :, order]}
    names |= {"sin": np.sin(angles)[None, :, order]}
    pairs = [(0, 1), (2, 3)] if is_paired else [(0, 2), (1, 3)]
    turned = []
    for x in (q, k):
        own = x.copy()
        for (i, j), angle in zip(pairs, angles.T, strict=True):
            cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
            own[..., i] = x[..., i] * cos - x[..., j] * sin
            own[..., j] = x[..., j] * cos + x[..., i] * sin
        turned.append(own)
    scores = np.einsum("bihd,bjhd->bhij", *turned) / 6**0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    names["pattern"] = weights / weights.sum(axis=-1, keepdims=True)
    cache = {f"blocks.0.attn.hook_{name}": x for name, x in names.items()}
    (layer,) = Capture.of_cache(cache)
    np.testing.assert_allclose(layer.queries, turned[0].swapaxes(1, 2))
    np.testing.assert_allclose(layer.keys, turned[1].swapaxes(1, 2))
    # Without the angles the arrays are not those that attend.
    for name in ("cos", "sin"):
        del cache[f"blocks.0.attn.hook_{name}"]
    with pytest.raises(ValueError, match="Rotary positions may not be in it"):
        Capture.of_cache(cache)


def test_a_cache_of_half_precision_is_read_in_single_precision():
    given = torch.randn(3, 2, 5, 4, 6, generator=torch.Generator().manual_seed(0))
    for convert in (torch.Tensor.bfloat16, torch._neg_view):
        cache = {
            f"blocks.0.attn.hook_{name}": convert(x)
            for name, x in zip("qkv", given, strict=True)
        }
        (layer,) = Capture.of_cache(cache)
        assert layer.queries.dtype == np.float32
        expected = cache["blocks.0.attn.hook_q"].float().transpose(1, 2)
        np.testing.assert_array_equal(layer.queries, expected.resolve_neg())


def test_every_statistic_of_a_model_laid_out_as_in_timm():
    torch.manual_seed(0)
    model = shaken(Stack(TimmAttention(), TimmAttention(qk_norm=True)))
    x = torch.randn(3, 9, 16)
    found = probe_model(model, x, n_permutations=9, n_untrained=1)
    wanted = set(STATISTICS) - {"induction", "duplicate_token"}  # of token ids
    assert set(found.statistics) == wanted
    # Each one is compared with the nulls that the table of statistics says.
    for name, statistic in found.statistics.items():
        assert list(statistic.nulls) == STATISTICS[name].nulls.split(), name
    # The layers' own attention, from their projections.
    first = model.blocks[0]
    with torch.no_grad():
        q, k, _ = (y[..., :4] for y in first.attn.qkv(first.norm(x)).split(16, dim=-1))
        weights = torch.softmax(q @ k.mT / 2, dim=-1)
    entropy = -(weights * weights.log()).sum(-1) / np.log(9)
    expected = float(entropy.mean())
    assert found["entropy"].observed[0, 0] == pytest.approx(expected, rel=1e-5)


def test_long_sequences_need_less_memory_than_their_attention_weights():
    n_heads, n = 16, 1000
    arrays = np.random.default_rng(0).standard_normal((3, 1, n_heads, n, 2))
    given = dict(zip(("queries", "keys", "values"), arrays, strict=True))
    options = {"statistics": ["entropy", "sink_mass"], "n_permutations": 9}
    tracemalloc.start()
    probe_model(given, **options, jobs=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The weights of all heads, let alone of all draws, are never there together.
    assert peak < 8 * n_heads * n**2


def test_one_untrained_copy_at_a_time_is_in_memory(monkeypatch):
    alive = weakref.WeakSet()
    most = []

    def counted(model, seed):
        made = untrained_copy(model, seed)
        alive.add(made)
        most.append(len(alive))
        return made

    monkeypatch.setattr(_probe, "untrained_copy", counted)
    options = {"statistics": ["entropy"], "n_permutations": 9, "n_untrained": 4}
    found = probe_model(encoder(), torch.randn(2, 5, 16), **options)
    assert found["entropy"].nulls["untrained"].shape == (2, 2, 8)
    gc.collect()
    # The first shows whether copies can be made; a cycle may outlive its turn.
    assert len(most) == 4
    assert max(most) <= 2


def test_layers_are_found_and_the_batch_is_read_once_per_model(monkeypatch):
    calls = Counter()

    def counted(name):
        function = getattr(_capture, name)

        def call(model, *args, **kwargs):
            calls[name] += 1
            return function(model, *args, **kwargs)

        return call

    for name in ("find_attention_layers", "read_batch"):
        monkeypatch.setattr(_capture, name, counted(name))
    model, x = encoder(), torch.randn(2, 5, 16)
    options = {"statistics": ["entropy"], "n_permutations": 9}
    probe_model(model, x, n_untrained=8, **options)
    assert calls == {"find_attention_layers": 9, "read_batch": 9}
    calls.clear()
    probe_model(model, x, untrained=[encoder(1), encoder(2)], **options)
    assert calls == {"find_attention_layers": 3, "read_batch": 3}
    calls.clear()
    capture = Capture(model, x)
    probe_model(capture, **options)
    assert calls == {"find_attention_layers": 1, "read_batch": 1}


def test_untrained_copies_do_not_depend_on_the_number_of_threads():
    options = {"statistics": ["entropy", "linear_cka"], "n_permutations": 9}
    x = torch.randn(2, 5, 16)
    one, two = (probe_model(encoder(), x, jobs=jobs, **options) for jobs in (1, 2))
    for name in options["statistics"]:
        draws = one[name].nulls["untrained"]
        np.testing.assert_array_equal(draws, two[name].nulls["untrained"])
        assert len(np.unique(draws[0, 0])) == 16


def test_given_untrained_models_are_the_null():
    model, x = encoder(), torch.randn(3, 6, 16)
    others = [untrained_copy(model, seed) for seed in (1, 2)]
    options = {"n_permutations": 9, "seed": 3}
    found = probe_model(model, x, untrained=others, **options)
    for place, other in enumerate(others):
        alone = probe_model(other, x, n_permutations=0, n_untrained=0)
        for name in ("linear_cka", "qk_ov_cosine", "entropy"):
            part = found[name].nulls["untrained"][..., 2 * place : 2 * place + 2]
            np.testing.assert_array_equal(part[:, 0], alone[name].observed)


def test_ignored_tokens_are_as_if_absent():
    rng = np.random.default_rng(0)
    names = ("queries", "keys", "values")
    arrays = dict(zip(names, rng.normal(size=(3, 2, 2, 9, 4)), strict=True))
    arrays["keys"][:, :, 0] *= 100
    cut = {name: array[:, :, 1:] for name, array in arrays.items()}
    options = {"n_permutations": 9, "statistics": ["entropy", "linear_cka"]}
    expected = probe_model(cut, **options)
    mask = np.zeros((2, 9), dtype=bool)
    mask[:, 0] = True
    for ignored in ("first", "outliers", [0], mask):
        found = probe_model(arrays, ignore_tokens=ignored, **options)
        for name in options["statistics"]:
            np.testing.assert_allclose(
                found[name].observed, expected[name].observed, rtol=1e-12
            )


def test_statistics_are_also_shown_without_sinks_and_outliers():
    rng = np.random.default_rng(0)
    names = ("queries", "keys", "values")
    arrays = dict(zip(names, rng.normal(size=(3, 2, 2, 9, 4)), strict=True))
    arrays["keys"][:, :, 4] *= 100
    options = {"n_permutations": 9, "statistics": ["entropy", "key_outliers"]}
    found = probe_model(arrays, **options)
    sets = {"without the first token": "first", "without outlier tokens": "outliers"}
    assert list(found.contrasts) == list(sets)
    for name, ignored in sets.items():
        alone = probe_model(arrays, ignore_tokens=ignored, **options)
        assert list(alone.contrasts) == ["with all tokens"]
        for statistic in options["statistics"]:
            np.testing.assert_array_equal(
                found.contrasts[name][statistic], alone[statistic].observed
            )
            np.testing.assert_array_equal(
                alone.contrasts["with all tokens"][statistic],
                found[statistic].observed,
            )
    # Without outliers in any sequence, or with too few tokens, a set is left out.
    arrays["keys"][:, :, 4] /= 100
    assert list(probe_model(arrays, **options).contrasts) == list(sets)[:1]
    short = {name: array[:, :, :3] for name, array in arrays.items()}
    assert not probe_model(short, **options).contrasts


def test_two_models_are_compared_head_by_head():
    model, x = encoder(), torch.randn(12, 9, 16)
    other = encoder()
    with torch.no_grad():  # sharper queries in the second layer only
        other.layers[1].self_attn.in_proj_weight[:16] *= 6
    found = compare_models(model, other, x, statistics=["entropy", on_itself])
    p_values = found["entropy"].p_value["swapped_models"]
    assert (p_values[0] == 1).all()
    assert (p_values[1] <= 0.01).all()
    assert (found["entropy"].observed[1] < 0).all()
    with pytest.raises(ValueError, match="as many layers"):
        compare_models(model, nn.MultiheadAttention(16, 2, batch_first=True), x)


def test_texts_are_read_with_the_tokenizer(monkeypatch):
    class Words:
        pad_token = "[PAD]"

        def __call__(self, texts, **options):
            longest = max(len(text.split()) for text in texts)
            ids = torch.zeros(len(texts), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, text in enumerate(texts):
                for place, word in enumerate(text.split()):
                    ids[row, place], mask[row, place] = 1 + len(word) % 9, 1
            return {"input_ids": ids, "attention_mask": mask}

    texts = ["one two three four", "a bb a bb a"]
    found = probe_model(
        hugging_face("bert"),
        texts=texts,
        tokenizer=Words(),
        statistics=["induction", "duplicate_token"],
        n_permutations=9,
        n_untrained=0,
    )
    assert np.isfinite(found["induction"].observed).all()
    pair = hugging_face("bert"), hugging_face("bert")
    found = compare_models(*pair, texts=texts, tokenizer=Words(), n_permutations=9)
    assert np.isfinite(found["induction"].observed).all()
    with pytest.raises(ValueError, match="`batch` must be left out"):
        compare_models(*pair, torch.ones(1, 3), texts=texts, tokenizer=Words())
    with pytest.raises(ValueError, match="`model` must be a Hugging Face model"):
        probe_model(encoder(), texts=texts)
    with pytest.raises(ValueError, match="`texts` must be at least one text"):
        probe_model(encoder(), texts=[])
    with pytest.raises(ValueError, match="`batch` must be given, or `texts`, but not"):
        probe_model(pair[0], torch.ones(1, 3), texts=texts, tokenizer=Words())
    arrays = dict.fromkeys(("queries", "keys", "values"), np.ones((1, 2, 4, 3)))
    with pytest.raises(ValueError, match="`texts` must be left out for heads"):
        probe_model(arrays, texts=texts)


@pytest.mark.parametrize(
    ("tokenizer", "got"),
    [
        (lambda texts, **options: [1, 2], "one that returned list"),
        (lambda texts, **options: None, "one that returned NoneType"),
        (lambda texts, **options: {}, "one that returned an empty mapping"),
        (
            lambda texts, **options: {"input_ids": [[1]]},
            "one whose 'input_ids' is list",
        ),
        (lambda texts: {}, "one that raised TypeError"),
    ],
)
def test_a_tokenizer_returns_a_mapping_of_tensors(tokenizer, got):
    with pytest.raises((TypeError, ValueError)) as caught:
        probe_model(hugging_face("bert"), texts=["a b c"], tokenizer=tokenizer)
    message = "probe_model: `tokenizer` must be a tokenizer that returns a mapping of"
    assert str(caught.value).startswith(message)
    assert got in str(caught.value)


def test_models_without_numbers_are_refused():
    model = encoder()
    model.layers[1].linear1 = nn.Linear(16, 16, device="meta")
    message = "`model` must be a model whose parameters hold numbers; got 'layers.1"
    for call in (probe_model, Capture, capture_heads):
        with pytest.raises(ValueError, match=message):
            call(model, torch.randn(2, 5, 16))


def test_progress_without_a_terminal_is_lines(capsys, monkeypatch):
    for name in ("_SECONDS_PER_LINE", "_SECONDS_OF_STORED"):
        monkeypatch.setattr(f"eigenheads._parallel.{name}", 0.0)
    options = {"n_permutations": 9, "n_untrained": 1, "progress": True, "jobs": 1}
    probe_model(encoder(), torch.randn(2, 5, 16), **options)
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("layers: ") for line in lines)
    assert lines[-1] == "layers: 100% done, 1 s left"
    assert len(lines) > 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistics": ["entropi"]}, "Did you mean 'entropy'"),
        ({"statistics": []}, "`statistics` must be at least one"),
        ({"statistics": [on_itself, on_itself]}, "of different names"),
        ({"statistics": "entropy"}, "`statistics` must be a sequence"),
        ({"statistics": [3]}, "names of statistics, functions of a head"),
        ({"ignore_tokens": "last"}, "`ignore_tokens` must be one of"),
        ({"ignore_tokens": [0.5]}, "`ignore_tokens` must be 'first'"),
        ({"statistics": [lambda head: head.weights]}, "or one number per token"),
        ({"statistics": [lambda head: "much"]}, "a function that returns numbers"),
    ],
)
def test_bad_statistics_are_refused(options, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        probe_model(encoder(), torch.randn(2, 5, 16), n_permutations=3, **options)
    assert message in str(caught.value)
