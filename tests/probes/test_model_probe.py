"""Results of whole models: arrays, rows, files."""

import json
import math

import numpy as np
import pytest
from scipy.stats import binom

from eigenheads.probes import ModelProbe, Statistic, q_values
from eigenheads.probes._result import max_statistic_p_values, stack_layers


@pytest.fixture
def probe(rng):
    """Two layers, of three and of two heads, with a null of 39 draws and one of 3."""
    layers = [
        {
            "cka": Statistic(
                "cka",
                np.linspace(0.0, 9.0, n_heads),
                {
                    "permuted_tokens": rng.standard_normal((n_heads, 39)),
                    "untrained": rng.standard_normal((n_heads, 1 + n_heads)),
                },
                "greater",
                "Alignment.",
            )
        }
        for n_heads in (3, 2)
    ]
    stacked = stack_layers(layers)
    others = {"without the first token": {"cka": 2 * stacked["cka"].observed}}
    return ModelProbe([0, 4], ["a", "b"], stacked, {"seed": 1}, ["Note."], others)


def test_layers_of_different_sizes_are_padded(probe):
    cka = probe["cka"]
    assert np.isnan(cka.observed).tolist() == [[False] * 3, [False, False, True]]
    assert cka.nulls["untrained"].shape == (2, 3, 3)  # the least of both layers
    p_values = cka.p_value["permuted_tokens"]
    assert p_values[0, 2] == 1 / 40
    assert math.isnan(p_values[1, 2])


def test_q_values_count_all_heads_and_no_gaps(probe):
    p_values = probe["cka"].p_value["permuted_tokens"]
    largest = max_statistic_p_values(
        [(probe["cka"].observed, probe["cka"].nulls["permuted_tokens"], "greater")]
    )[0]
    np.testing.assert_array_equal(
        probe.q_value("cka", "permuted_tokens"),
        np.minimum(1, 2 * np.minimum(q_values(p_values), largest)),
    )
    untrained = probe["cka"].p_value["untrained"]
    np.testing.assert_array_equal(
        probe.q_value("cka", "untrained"), q_values(untrained)
    )


def test_nulls_of_too_few_draws_do_not_decide(probe):
    found = {row["null"]: row["n_found"] for row in probe.summary()}
    assert found["untrained"] is None
    assert found["permuted_tokens"] == probe.stands_out("cka").sum() == 3


def test_statistics_with_one_null_are_one_family(rng):
    draws = rng.standard_normal((1, 4, 159))  # enough for Benjamini-Hochberg alone
    one = Statistic("one", np.full((1, 4), 9.0), {"n": draws}, "greater", "")
    other = Statistic("other", np.zeros((1, 4)), {"n": draws}, "greater", "")
    found = ModelProbe([0], ["a"], {"one": one, "other": other})
    together = q_values(np.stack([one.p_value["n"], other.p_value["n"]]))
    np.testing.assert_array_equal(found.q_value("one", "n"), together[0])
    alone = ModelProbe([0], ["a"], {"one": one})
    assert (alone.q_value("one", "n") < found.q_value("one", "n")).all()


def one_far_out(rng, null, n_draws, n_heads=30):
    """Return a probe in which head 7 is far beyond all draws, and no other head."""
    observed = np.zeros((1, n_heads))
    observed[0, 7] = 50.0
    draws = {null: rng.standard_normal((1, n_heads, n_draws)) + 3.0}
    statistic = Statistic("one", observed, draws, "greater", "")
    settings = {"n_untrained": n_draws // 3}
    return ModelProbe([0], ["a"], {"one": statistic}, settings)


def test_heads_beyond_untrained_ones_are_undecided_until_there_are_enough(rng):
    """One of 30 heads is far out: it takes 599 draws, three per copy, to find it."""
    few = one_far_out(rng, "untrained", 99)
    (row,) = few.summary()
    assert (row["n_found"], row["n_undecided"], row["n_needed"]) == (0, 1, 599)
    assert row["needs"] == "200 copies"
    assert np.argwhere(few.is_undecided("one", "untrained")).tolist() == [[0, 7]]
    (row,) = one_far_out(rng, "untrained", 598).summary()
    assert row["n_undecided"] == 1
    enough = one_far_out(rng, "untrained", 599)
    assert enough.stands_out("one").sum() == 1
    assert enough.summary()[0]["n_undecided"] == 0


@pytest.mark.parametrize("n_heads", [30, 3000])
def test_39_draws_find_one_head_among_many(rng, n_heads):
    enough = one_far_out(rng, "n", 39, n_heads)
    assert np.argwhere(enough.stands_out("one")).tolist() == [[0, 7]]
    assert enough.q_value("one", "n")[0, 7] == 2 / 40
    (row,) = one_far_out(rng, "n", 38, n_heads).summary()
    assert row["n_found"] is None
    assert row["needs"].endswith(" draws")


def test_a_statistic_with_few_draws_does_not_hinder_the_others(rng):
    plenty = one_far_out(rng, "n", 99)["one"]
    few = Statistic("few", np.zeros((1, 30)), {"n": np.ones((1, 30, 5))}, "greater", "")
    found = ModelProbe([0], ["a"], {"one": plenty, "few": few})
    assert np.argwhere(found.stands_out("one")).tolist() == [[0, 7]]
    assert found.summary()[1]["needs"] == "39 draws"


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_more_heads_beyond_their_draws_than_by_chance_are_undecided(rng, alternative):
    """Of 500 heads, 5 are beyond 99 draws by chance, 10 on either side; 30 are not.

    Other heads have draws with larger scores: that takes more draws, it is said.
    """
    sign = -1 if alternative == "less" else 1

    def row(n_beyond, n_draws=99):
        draws = rng.standard_normal((1, 500, n_draws))
        observed = np.zeros((1, 500))
        observed[0, :n_beyond] = draws[0, :n_beyond].max(axis=-1) + 0.1
        nulls = {"n": sign * draws}
        one = Statistic("one", sign * observed, nulls, alternative, "")
        return ModelProbe([0], ["a"], {"one": one}).summary()[0]

    by_chance, more = row(2), row(30)
    assert (by_chance["n_found"], by_chance["n_undecided"]) == (0, 0)
    assert by_chance["needs"] == ""
    assert (more["n_found"], more["n_undecided"]) == (0, 30)
    sides = 2 if alternative == "two-sided" else 1
    # 20 m draws for one head, 30 heads, and the share of the largest scores.
    n_needed = math.ceil(20 * sides * 500 / 30 + 20) - 1
    assert more["n_needed"] == n_needed
    # They decide, and one draw less does not.
    assert row(30, n_needed)["n_found"] == 30
    assert row(30, n_needed - 1)["n_undecided"] == 30


@pytest.mark.parametrize("n_draws", [39, 213])
def test_both_methods_together_rarely_find_what_is_not_there(rng, n_draws):
    """Any discovery is false; 24 of 200 is the 1e-5 quantile at the level of 0.05."""
    n_false = 0
    for _ in range(200):
        shape = (1, 72, n_draws + 1)
        numbers = rng.standard_normal(shape) + rng.standard_normal((1, 1, shape[-1]))
        nulls = {"n": numbers[..., 1:]}
        one = Statistic("one", numbers[..., 0], nulls, "greater", "")
        n_false += ModelProbe([0], ["a"], {"one": one}).stands_out("one").any()
    assert n_false <= 24


def test_undecided_statistics_without_any_effect_are_rare(rng):
    """Heads that share draws, of a true null: at most a twentieth is undecided.

    The count of 400 is within its 1e-6 quantile.
    """
    n_undecided = 0
    for _ in range(400):
        numbers = rng.standard_normal((1, 72, 40)) + 2 * rng.standard_normal((1, 1, 40))
        nulls = {"n": numbers[..., 1:]}
        one = Statistic("one", numbers[..., 0], nulls, "greater", "")
        probe = ModelProbe([0], ["a"], {"one": one})
        n_undecided += bool(probe.is_undecided("one", "n").any())
    assert n_undecided <= binom.ppf(1 - 1e-6, 400, 0.05)


def test_rows_are_of_heads_that_exist(probe):
    rows = probe.to_records()
    assert len(rows) == 5 * 2
    assert {(row["layer"], row["name"]) for row in rows} == {(0, "a"), (4, "b")}
    assert {"observed", "effect", "p_value", "q_value", "null_sd"} <= set(rows[0])


def test_frames_have_a_column_for_each_field(probe):
    pytest.importorskip("pandas")
    frame = probe.to_frame()
    assert len(frame) == len(probe.to_records())
    assert {"layer", "head", "statistic", "p_value", "q_value"} <= set(frame)


def test_json_has_the_rows_without_nan(probe, tmp_path):
    path = tmp_path / "sub" / "probe.json"
    probe.save(path)
    assert [p.name for p in path.parent.iterdir()] == ["probe.json"]
    content = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert content["records"] == probe.to_records()
    assert content["about"] == {"cka": "Alignment."}


def test_saved_and_loaded_it_is_the_same(probe, tmp_path):
    path = tmp_path / "probe.safetensors"
    probe.save(path)
    loaded = ModelProbe.load(path)
    assert loaded.settings == probe.settings
    assert loaded.notes == ["Note."]
    assert str(loaded.to_records()) == str(probe.to_records())
    np.testing.assert_array_equal(
        loaded["cka"].nulls["untrained"], probe["cka"].nulls["untrained"]
    )
    assert loaded.contrast_rows() == probe.contrast_rows()
    (row,) = loaded.contrast_rows()
    assert row["other_median"] == 2 * row["median"]
    assert row["correlation"] == pytest.approx(1)


@pytest.mark.parametrize("content", [b"{}", b"PK\x03\x04cut", b""])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "probe.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a file that ModelProbe.save wrote"):
        ModelProbe.load(path)


def test_probes_without_statistics_or_heads_are_refused(probe, tmp_path):
    cka, path = probe["cka"], tmp_path / "probe.safetensors"
    nulls = {name: draws[:, :0] for name, draws in cka.nulls.items()}
    blank = Statistic("cka", np.zeros((2, 0)), nulls, "greater", "")
    for statistics in ({}, {"cka": blank}):
        ModelProbe([0, 4], ["a", "b"], statistics).save(path)
        with pytest.raises(ValueError, match=r"\(no statistics, layers or heads\)"):
            ModelProbe.load(path)


def test_unknown_statistics_and_suffixes_are_refused(probe, tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'cka'"):
        probe["ckaa"]
    with pytest.raises(
        ValueError, match=r"`path` must be one of '\.json', '\.safetensors'"
    ):
        probe.save(tmp_path / "probe.txt")


def test_a_statistic_without_numbers_has_no_median(probe):
    cka = probe["cka"]
    blank = Statistic("cka", np.full((2, 3), np.nan), cka.nulls, "greater", "")
    found = ModelProbe([0, 4], ["a", "b"], {"cka": blank})
    assert math.isnan(found.summary()[0]["median"])
    assert found.to_records() == []
