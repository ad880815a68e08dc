"""Every head of a model is questioned: planted answers are found, chance is not."""

import json
import math

import numpy as np
import pytest
import torch
from tests.adapters.models import Stack, TimmAttention, hugging_face, shaken, text_batch
from torch import nn

from eigenheads.adapters import ModelProbe, capture_heads, probe_model, swap_attention
from eigenheads.adapters._model_probe import with_q_values
from eigenheads.adapters._probe import _few_draws
from eigenheads.adapters._untrained_copy import untrained_copy
from eigenheads.nn import ScaledAttention
from eigenheads.probes import kernel_pca_probe, q_values

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
    assert {row["head"] for row in probe.records} == {0, 1}
    assert {row["probe"] for row in probe.records} == {
        "kernel_pca_probe",
        "covariance_probe",
    }
    keys = [
        (row["layer"], row["head"], row["statistic"], row["null"])
        for row in probe.records
    ]
    assert len(keys) == len(set(keys))
    assert set(probe.about) == set(probe.statistics)


def test_sequences_too_short_for_captured_variance_are_said(probe):
    """Nine tokens less their mean have eight directions, a head eight columns."""
    assert probe.notes[0].startswith("3 of 3 sequences")
    np.testing.assert_allclose(probe.by_head("captured_variance"), 1, atol=1e-6)
    longer = probe_model(
        encoder(), torch.randn(3, 10, 16), n_permutations=0, n_untrained=0
    )
    assert longer.notes == []
    assert (longer.by_head("captured_variance") < 0.9999).all()


def test_draws_too_few_to_single_a_head_out_are_said(probe):
    """19 draws: p >= 1/20, so q <= 0.05 needs all four heads beyond all draws."""
    assert "none has a q-value of 0.05 unless 4 are beyond all" in probe.notes[1]


def test_numbers_are_those_of_the_probe_on_the_captured_arrays():
    model, x = encoder(), torch.randn(3, 9, 16)
    whole = probe_model(model, x, n_permutations=0, n_untrained=0)
    for i, layer in enumerate(capture_heads(model, x)):
        alone = kernel_pca_probe(
            layer.queries, layer.keys, layer.values, mask=layer.mask, n_permutations=0
        )
        for name, statistic in alone.statistics.items():
            np.testing.assert_allclose(
                whole.by_head(name)[i], statistic.observed, rtol=1e-6
            )


def test_q_values_are_corrected_over_all_heads_of_one_question(probe):
    for null in probe.nulls("captured_variance"):
        p, q = (
            probe.by_head("captured_variance", column, null=null)
            for column in ("p_value", "q_value")
        )
        np.testing.assert_allclose(q, q_values(p.ravel()).reshape(p.shape))


def test_questions_do_not_share_their_correction():
    rows = [
        {"probe": "a", "statistic": "s", "null": "n", "p_value": 0.01},
        {"probe": "a", "statistic": "s", "null": "n", "p_value": 0.5},
        {"probe": "a", "statistic": "s", "null": "m", "p_value": 0.5},
    ]
    found = [row["q_value"] for row in with_q_values(rows, method="bh")]
    np.testing.assert_allclose(found, [0.02, 0.5, 0.5])


def test_a_planted_score_form_is_found_and_random_ones_are_not():
    """Keys and queries read the two directions in which the tokens vary most."""
    torch.manual_seed(0)
    planted, plain = TimmAttention(16, 2), TimmAttention(16, 2)
    with torch.no_grad():
        planted.qkv.weight[:32] = 0.0
        for row in range(0, 32, 8):  # two rows of each head's queries and keys
            planted.qkv.weight[row, 0] = planted.qkv.weight[row + 1, 1] = 1.0
    x = torch.randn(4, 30, 16) * torch.tensor([6.0, 6.0] + [1.0] * 14)
    q = {
        name: probe_model(model, x, n_permutations=99, n_untrained=0).by_head(
            "qk_covariance_cosine", "q_value", null="rotated"
        )
        for name, model in (("planted", planted), ("plain", plain))
    }
    assert q["planted"].max() <= 0.02
    # Two heads at random: both below 0.02 at once has probability below 4e-4.
    assert q["plain"].max() > 0.02


def test_the_same_seed_gives_the_same_numbers(probe):
    x = torch.randn(2, 6, 16)
    runs = [
        probe_model(encoder(), x, n_permutations=5, n_untrained=1, seed=seed).records
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
            one.by_head(name), other.by_head(name), rtol=1e-3, atol=1e-5
        )


def test_layers_are_chosen_and_numbered_as_in_the_model():
    found = probe_model(
        encoder(), torch.randn(2, 5, 16), layers=[1], n_permutations=0, n_untrained=0
    )
    assert found.layers == [1]
    assert found.by_head("linear_cka").shape == (1, 2)


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


def test_saved_and_loaded_it_is_the_same(probe, tmp_path):
    path = tmp_path / "sub" / "probe.json"
    probe.save(path)
    assert [p.name for p in path.parent.iterdir()] == ["probe.json"]
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN
    loaded = ModelProbe.load(path)
    assert loaded.settings == probe.settings
    for name in probe.statistics:
        np.testing.assert_array_equal(loaded.by_head(name), probe.by_head(name))
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"a file of ModelProbe.save"):
        ModelProbe.load(path)


def test_frames_have_a_column_for_each_field(probe):
    pytest.importorskip("pandas")
    frame = probe.to_frame()
    assert len(frame) == len(probe.records)
    assert {"layer", "head", "statistic", "p_value", "q_value"} <= set(frame)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_permutations": -1}, "`n_permutations` must be an integer >= 0"),
        ({"n_untrained": 1.5}, "`n_untrained` must be an integer >= 0"),
        ({"seed": -1}, "`seed` must be an integer from 0"),
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
    assert given.nulls("linear_cka") == ["untrained"]


def test_numbers_are_nan_where_there_are_none(probe):
    rows = [{**row, "observed": math.nan} for row in probe.records]
    blank = ModelProbe(rows, probe.about)
    assert np.isnan(blank.by_head("linear_cka")).all()
    assert math.isnan(blank.summary()[0]["median"])


def test_costly_nulls_take_their_own_draws():
    found = probe_model(
        encoder(), torch.randn(2, 9, 16), n_permutations=5, n_redraws=7, n_untrained=0
    )
    drawn = {row["null"]: row["n_draws"] for row in found.records}
    assert (drawn["permuted_tokens"], drawn["random_projections"]) == (5, 7)
    assert found.settings["n_redraws"] == 7
    found = probe_model(encoder(), torch.randn(2, 9, 16), n_permutations=5)
    assert found.settings["n_redraws"] == 5


@pytest.mark.parametrize("method", ["bh", "by"])
def test_the_note_on_few_draws_counts_as_the_q_values_do(method):
    """With as many heads beyond all 99 draws as it says, q <= 0.05; one less, not."""
    n_heads, least = 40, 1 / 100
    rows = [
        {"null": "random_values", "layer": 0, "head": head, "n_draws": 99}
        for head in range(n_heads)
    ]
    (note,) = _few_draws(rows, method)
    needed = int(note.partition("unless ")[2].partition(" ")[0])
    p_values = np.where(np.arange(n_heads) < needed, least, 1.0)
    assert q_values(p_values, method=method)[0] <= 0.05
    p_values[needed - 1] = 1.0
    assert q_values(p_values, method=method)[0] > 0.05
