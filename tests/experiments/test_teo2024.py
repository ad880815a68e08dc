"""RPC-Attention's experiments: deterministic, counted right, claims that can fail."""

import dataclasses

import numpy as np
import pytest

from eigenheads._parallel import reporting, threads
from eigenheads.experiments import get_experiment
from eigenheads.experiments._core import Run
from eigenheads.experiments._run import draw_experiment, experiment_rng
from eigenheads.experiments._statistics import ENOUGH
from eigenheads.experiments.teo2024 import _comparisons, _inputs, robustness
from eigenheads.experiments.teo2024._comparisons import counting, family_means
from eigenheads.experiments.teo2024._variants import ALL, SmallModel
from eigenheads.experiments.teo2024.segmentation import draw_scenes, mean_iou

TINY = {
    "robustness": {
        "n_steps": 3,
        "n_test": 20,
        "n_blind": 5,
        "n_attack_steps": 2,
        "variants": ("softmax", "symmetric", "RPC n=4", "temperature"),
        "hybrid": ("softmax", "symmetric"),
    },
    "sparsity": {
        "n_steps": 2,
        "n_test": 10,
        "n_blind": 2,
        "n_attack_steps": 2,
        "variants": ("softmax", "S = 0, n=4", "RPC n=4", "λ=0.1, n=4"),
    },
    "scaled": {"n_steps": 4, "n_records": 2, "n_test": 30},
    "language": {"n_steps": 2, "n_test": 10},
    "segmentation": {"n_steps": 2, "n_test": 10, "n_train": 50},
}


def run(key, seed=0, preset="smoke", **changes):
    experiment = get_experiment(f"teo2024/{key}")
    params = dataclasses.replace(experiment.presets[preset], **changes)
    table = experiment.simulate(params, experiment_rng(experiment.key, seed))
    return params, table, experiment.check(Run(params, table))


@pytest.mark.torch
@pytest.mark.parametrize("key", TINY)
def test_same_seed_same_bytes_all_finite_and_all_work_reported(key):
    heard = []
    with threads(1), reporting(heard.append):
        params, one, claims = run(key, **TINY[key])
    assert not [claim.statement for claim in claims if claim.is_changed]
    with threads(3):
        again = run(key, **TINY[key])[1]
    for name in one:
        assert one[name].tobytes() == again[name].tobytes(), name
        assert np.isfinite(one[name]).all(), name
    experiment = get_experiment(f"teo2024/{key}")
    assert sum(heard) == experiment.work(params)
    figure = draw_experiment(experiment, Run(params, one))
    assert figure == draw_experiment(experiment, Run(params, one))
    if key == "scaled":
        other = run(key, seed=1, **TINY[key])[1]
        assert one["loss"].tobytes() != other["loss"].tobytes()


@pytest.mark.torch
@pytest.mark.slow
def test_processes_do_not_change_a_byte(monkeypatch):
    from eigenheads.experiments.teo2024 import _training

    here = run("scaled", **TINY["scaled"])[1]
    monkeypatch.setattr(_training, "_WORTH_PROCESSES", 0)
    with threads(2):
        there = run("scaled", **TINY["scaled"])[1]
    for name in here:
        assert here[name].tobytes() == there[name].tobytes(), name


@pytest.mark.torch
def test_smoke_is_as_on_record():
    claims = run("robustness")[2]
    assert claims
    assert [claim.statement for claim in claims if claim.is_changed] == []


def made_up(gain, seeds=5, noise=0.5):
    """A table in which `RPC n=4` is better by `gain` points, as is `S = 0, n=4`."""
    rng = np.random.default_rng(0)
    cells = [("vit", name) for name in ("softmax", "symmetric", "RPC n=4")]
    cells += [("vit", "S = 0, n=4"), ("vit", "no mixing")]
    lift = np.array([0.0, 0.0, gain, gain, 0.0])
    # The last condition costs nobody anything.
    base = np.array([60.0, 70.0, 50.0, 94.0])
    accuracy = base[None, :, None] + lift[:, None, None]
    accuracy = accuracy + noise * rng.standard_normal((5, 4, seeds))
    clean = 95 + noise * rng.standard_normal((5, seeds))
    zeros = np.zeros((5, seeds))
    table = {"accuracy": accuracy, "clean": clean}
    table |= {"flagged": zeros, "self_weight": zeros}
    return cells, ["corruptions", "corruptions", "attacks", "corruptions"], table


def verdicts(table, *statements):
    claims = _comparisons.robustness_claims(*table, 2.0)
    return [
        next(one.verdict for one in claims if one.statement.startswith(statement))
        for statement in statements
    ]


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (-4.0, ["contradicted", "held", "contradicted"]),
        (0.0, ["undecided", "held", "held"]),
        (4.0, ["held", "held", "contradicted"]),
    ],
)
def test_claims_follow_the_numbers(gain, expected):
    """Eight seeds with noise 0.2: far from the margin of two points."""
    found = verdicts(
        made_up(gain, seeds=8, noise=0.2),
        "RPC n=4: accuracy under attacks less symmetric attention's",
        "RPC n=4 against S = 0, n=4: difference of accuracy",
        "RPC n=4 against no mixing: difference of accuracy",
    )
    assert found == expected


def test_few_seeds_decide_nothing_about_differences():
    claims = _comparisons.robustness_claims(*made_up(4.0, seeds=2), 2.0)
    differences = [one for one in claims if "less symmetric" in one.statement]
    assert differences
    assert {one.verdict for one in differences} == {"undecided"}


def test_noise_alone_is_rarely_decided():
    """Tables without differences: at most 5 % of them contradict any claim."""
    rng = np.random.default_rng(1)
    cells, families, table = made_up(0.0)
    changed = 0
    for _ in range(100):
        noise = 5 * rng.standard_normal(table["accuracy"].shape)
        drawn = {**table, "accuracy": table["accuracy"] + noise}
        claims = _comparisons.robustness_claims(cells, families, drawn, 2.0)
        own = [one for one in claims if not one.is_check]
        changed += any(one.verdict != "undecided" for one in own)
    assert changed / 100 < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 100)


def test_demos_name_every_variant_and_are_small():
    presets = get_experiment("teo2024/robustness").presets
    demo, paper = presets["demo"], presets["paper"]
    assert set(ALL) - set(demo.variants) == {"λ=0.25, n=4", "λ=0.1, n=4"}
    assert demo.n_seeds >= ENOUGH
    assert demo.n_attack_steps == 20
    assert demo.n_steps * demo.batch_size < paper.n_steps * paper.batch_size / 4


def test_only_conditions_that_cost_plain_attention_count():
    _, families, table = made_up(0.0, noise=0.0)
    counts = counting(table["accuracy"][0], table["clean"][0])
    assert counts.tolist() == [True, True, True, False]
    means = family_means(table["accuracy"], families, counts)
    assert means["corruptions"][0].tolist() == [65.0] * 5
    np.testing.assert_allclose(means["all"][0], 60.0)
    none = family_means(table["accuracy"], families, np.zeros(4, dtype=bool))
    assert none == {}


def test_paper_presets_are_as_asked():
    params = get_experiment("teo2024/robustness").presets["paper"]
    assert params.data == "mnist"
    assert params.n_seeds >= 5
    assert params.variants == ALL
    assert params.hybrid
    assert params.n_attack_steps == 20
    assert len(robustness.conditions(params)) == 10 + 8 + 2
    assert get_experiment("teo2024/robustness").files(params) == _inputs.MNIST


def test_scrambled_images_keep_their_pixels_and_move_every_quarter():
    images = np.random.default_rng(0).random((20, 8, 8)).astype(np.float32)
    moved = _inputs.scramble(images, np.random.default_rng(1))
    for image, other in zip(images, moved, strict=True):
        np.testing.assert_array_equal(np.sort(image.ravel()), np.sort(other.ravel()))
        for rows in (slice(4), slice(4, 8)):
            for columns in (slice(4), slice(4, 8)):
                assert (image[rows, columns] != other[rows, columns]).all()


def test_drawn_language_is_predictable_by_looking_back_two_words_only():
    words = _inputs.load_words(
        "drawn", n_words=20, length=10, rng=np.random.default_rng(0)
    )
    assert words.train.max() < words.swapped_in == 20
    ids = words.train.ravel()

    def hits(back):
        """How often the likeliest word after one so far back is right."""
        before, nexts = ids[:-back], ids[back:]
        likeliest = {w: np.bincount(nexts[before == w]).argmax() for w in set(before)}
        return np.mean([likeliest[w] == v for w, v in zip(before, nexts, strict=True)])

    assert hits(2) > 0.65
    assert hits(1) < 0.4


def test_pairs_of_words_reach_the_entropy_of_a_chain():
    """A chain with two equally likely successors a word: perplexity 2, up to counts.

    20000 pairs over 60 rows: each frequency of one half is off by 0.5/√333 = 0.027 in
    standard deviation, which costs 2 · 0.027² of entropy; new words cost 2/335.
    """
    rng = np.random.default_rng(0)
    follow = np.stack([rng.permutation(60)[:2] for _ in range(60)])
    ids = np.zeros(24_000, dtype=np.int64)
    for at, odd in enumerate(rng.integers(0, 2, len(ids) - 1), start=1):
        ids[at] = follow[ids[at - 1], odd]
    words = _inputs.Words(
        ids[:20_000].reshape(-1, 10), ids[20_000:].reshape(-1, 10), 60
    )
    assert 1.99 < _inputs.bigram_perplexity(words, 400) < 2.05
    shuffled = _inputs.Words(rng.permuted(words.train), words.test, 60)
    assert _inputs.bigram_perplexity(shuffled, 400) > 30


def test_scenes_label_bright_pixels_of_one_digit():
    scenes = draw_scenes(30, slice(100), np.random.default_rng(0))
    assert scenes.x.shape == (30, 1, 16, 16)
    assert scenes.x.min() >= 0
    assert scenes.x.max() <= 1
    for image, labels in zip(scenes.x[:, 0], scenes.y, strict=True):
        assert len(set(labels[labels < 10])) == 1
        assert image[labels < 10].min() > 0.4
    assert mean_iou(scenes.y, scenes.y) == 100.0


@pytest.mark.torch
def test_dense_head_puts_pixels_in_their_place():
    """A head that copies its patch gives the image back, pixel by pixel."""
    import torch

    from eigenheads.experiments.teo2024._models import SmallViT
    from eigenheads.experiments.teo2024._variants import VARIANTS

    model = SmallViT(
        VARIANTS["softmax"],
        architecture="vit",
        size=SmallModel(patch=2, d_model=4, n_heads=1, depth=1),
        side=8,
        n_outputs=4,
        dense=True,
    )
    with torch.no_grad():
        model.position.zero_()
        model.embed.project.weight.copy_(torch.eye(4).view(4, 1, 2, 2))
        model.embed.project.bias.zero_()
        model.head.weight.copy_(torch.eye(4))
        model.head.bias.zero_()
    model.blocks, model.norm = torch.nn.ModuleList(), torch.nn.Identity()
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(model(x), 2 * x - 1)


@pytest.mark.torch
def test_controls_are_what_they_say():
    import torch

    from eigenheads.experiments.teo2024 import _models
    from eigenheads.experiments.teo2024._variants import VARIANTS
    from eigenheads.nn import SymmetricAttention

    tokens = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))

    def first(name):
        torch.manual_seed(0)
        layer = VARIANTS[name].first
        return _models.make_attention(layer, 8, 2, n_tokens=6, is_causal=False).eval()

    # At sharpness one the matched control is symmetric attention.
    matched = first("temperature")
    torch.manual_seed(0)
    symmetric = SymmetricAttention(8, 2)
    torch.testing.assert_close(matched(tokens), symmetric(tokens))
    _models.match_self_weight(matched, tokens, 0.4)
    assert abs(_models.look_inside(matched, tokens)[1] - 0.4) < 0.02
    # S = 0 flags nothing; λ = 0.1 does; without mixing a token hears nobody.
    assert _models.look_inside(first("S = 0, n=4"), tokens)[0] == 0
    assert _models.look_inside(first("λ=0.1, n=4"), tokens)[0] > 0.05
    alone = first("no mixing")
    torch.testing.assert_close(alone(tokens)[:, :1], alone(tokens[:, :1]))
    # Causal models do not see the future.
    model = _models.SmallLanguageModel(
        VARIANTS["auto, n=4"],
        size=SmallModel(d_model=8, n_heads=2, depth=2),
        n_words=9,
        length=6,
    ).eval()
    ids = torch.randint(0, 9, (2, 6))
    later = ids.clone()
    later[:, 4:] = 9
    torch.testing.assert_close(model(ids)[:, :4], model(later)[:, :4])
