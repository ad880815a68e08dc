"""RPC-Attention's experiments: deterministic, counted right, claims that can fail."""

import dataclasses

import numpy as np
import pytest

from eigenheads._parallel import reporting, threads
from eigenheads_papers import get_experiment
from eigenheads_papers._core import Run
from eigenheads_papers._run import draw_experiment, experiment_rng
from eigenheads_papers._statistics import ENOUGH
from eigenheads_papers._training import SmallModel
from eigenheads_papers.teo2024 import _comparisons, inputs, masking, robustness
from eigenheads_papers.teo2024.segmentation import draw_scenes, mean_iou
from eigenheads_papers.teo2024.variants import FEW, VARIANTS

TINY = {
    "robustness": {
        "n_steps": 2,
        "n_test": 20,
        "n_attacked": 6,
        "n_blind": 2,
        "others": ("softmax", "right sign, n=2"),
    },
    "sparsity": {
        "n_steps": 2,
        "n_test": 10,
        "n_attacked": 4,
        "others": ("symmetric", "S = 0, n=4", "λ=4", "λ=0.1"),
    },
    "finetune": {
        "n_train": 16,
        "n_test": 6,
        "batch_size": 8,
        "n_seeds": 1,
        "kinds": ("original", "RPC, queries in every iteration", "S = 0"),
    },
    "masking": {"n_steps": 2, "n_attacked": 6, "n_queries": 2, "n_seeds": 1},
    "scaled": {"n_steps": 4, "n_records": 2, "n_test": 30},
    "language": {"n_steps": 2, "n_test": 10},
    "segmentation": {"n_steps": 2, "n_test": 10, "n_train": 50},
}


# Keys whose tables have NaN where nothing was measured.
PARTLY = ("robustness", "sparsity", "finetune")


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
    holes = {name for name in one if not np.isfinite(one[name]).all()}
    assert bool(holes) == (key in PARTLY), holes
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
    from eigenheads_papers import _training

    here = run("scaled", **TINY["scaled"])[1]
    monkeypatch.setattr(_training, "_WORTH_PROCESSES", 0)
    with threads(2):
        there = run("scaled", **TINY["scaled"])[1]
    for name in here:
        assert here[name].tobytes() == there[name].tobytes(), name


def made_up(gain, *, seeds=13, noise=0.2):
    """Accuracies in which RPC n=4 is better by `gain` points, as is S = 0, n=4."""
    rng = np.random.default_rng(0)
    names = ["softmax", "symmetric", "RPC n=4", "S = 0, n=4"]
    conditions = ["clean", "fog 1", "fog 3", "replaced 0.25", "attack pgd", "attack cw"]
    base = np.array([98.0, 90.0, 70.0, 80.0, 60.0, 40.0])
    lift = np.array([0.0, 0.0, gain, gain])
    accuracy = base[None, :, None] + lift[:, None, None]
    accuracy = accuracy + noise * rng.standard_normal((4, 6, seeds))
    shares = {
        name: np.full((4, seeds), 10.0) + rng.standard_normal((4, seeds))
        for name in robustness.LAYER
    }
    table = {"accuracy": accuracy, **shares, "linear": np.full((4, seeds), 90.0)}
    return _comparisons.Measured(
        table,
        models=names,
        conditions=conditions,
        few=["clean", "fog 3", "replaced 0.25", "attack pgd"],
        attack="attack pgd",
        replaced="replaced 0.25",
    )


def claims_of(measured):
    return _comparisons.robustness_claims(
        measured, margin=0.5, least_accuracy=97.0, undecided=""
    )


@pytest.mark.parametrize(
    ("gain", "expected"),
    [(-1.0, "contradicted"), (0.0, "undecided"), (1.0, "held")],
)
def test_claims_follow_the_numbers(gain, expected):
    """Thirteen seeds, noise 0.2: standard errors of 0.08 at most, effects of 1."""
    verdicts = {one.statement: one.outcome for one in claims_of(made_up(gain))}
    for part in ("clean accuracy", "accuracy under 15", "accuracy under PGD"):
        (found,) = {
            verdict
            for statement, verdict in verdicts.items()
            if statement.startswith(f"RPC n=4: {part}")
        }
        assert found == expected, part
    equal = [v for s, v in verdicts.items() if s.startswith("RPC n=4 against S = 0")]
    assert equal == ["held"] * 4
    assert verdicts["softmax: clean accuracy, in percent"] == "held"


def test_a_difference_that_counts_as_none_points_nowhere():
    """On clean images, a fifth of a point is within the margin of a half."""
    for gain, outcome in ((-0.2, "undecided"), (-1.0, "contradicted")):
        claims = claims_of(made_up(gain))
        (clean,) = [c for c in claims if c.statement.startswith("RPC n=4: clean")]
        assert clean.outcome == outcome
    assert "counts as the same" in claims_of(made_up(-0.2))[3].note


def test_models_that_a_linear_classifier_equals_have_no_verdict():
    of = made_up(4.0)
    of.table["linear"][:] = 97.0
    able, rest = claims_of(of)[:3], claims_of(of)[3:]
    assert [one.verdict for one in able] == ["yes", "no", "yes"]
    assert {one.verdict for one in rest} == {"not judged"}


@pytest.mark.parametrize(
    ("gain_of_all", "robust", "masked"), [(10.0, "yes", "no"), (-2.0, "no", "yes")]
)
def test_robustness_and_masking_are_told_apart(gain_of_all, robust, masked):
    """Ten points are gained under PGD; noise is 0.5, over eight seeds."""
    rng = np.random.default_rng(0)
    accuracy = 60 + 0.5 * rng.standard_normal((2, len(masking.CONDITIONS), 8))
    accuracy[:, 0] = 97 + 0.1 * rng.standard_normal((2, 8))
    names = list(masking.CONDITIONS)
    accuracy[0, names.index("pgd")] += 10.0
    accuracy[0, names.index("any")] += gain_of_all
    params = get_experiment("teo2024/masking").presets["paper"]
    claims = masking.check(Run(params, {"accuracy": accuracy}))
    verdicts = {claim.statement: claim.verdict for claim in claims}
    (under_pgd,) = [v for s, v in verdicts.items() if "accuracy under PGD, less" in s]
    (under_all,) = [v for s, v in verdicts.items() if "accuracy under all" in s]
    (half,) = [v for s, v in verdicts.items() if "half of the gain" in s]
    assert (under_pgd, under_all, half) == ("yes", robust, masked)


def test_parts_are_means_over_their_conditions():
    of = made_up(0.0, noise=0.0)
    for part, expected in (
        ("clean", 98.0),
        ("all corruptions", 80.0),
        ("corruptions", 70.0),
        ("attack", 60.0),
        ("replaced", 80.0),
    ):
        assert of(part, "softmax").tolist() == [expected] * 13, part


def test_seeds_that_were_not_run_are_left_out():
    of = made_up(1.0)
    of.table["accuracy"][0, :, 5:] = np.nan
    assert len(of.gaps("clean", "symmetric", "softmax")) == 5
    assert len(of.gaps("clean", "RPC n=4", "symmetric")) == 13


def test_few_seeds_decide_nothing_about_differences():
    claims = claims_of(made_up(4.0, seeds=2))
    differences = [one for one in claims if not one.is_check]
    assert differences
    assert {one.outcome for one in differences} == {"undecided"}


def test_noise_alone_is_rarely_decided():
    """Tables without differences: at most 5 % decide a claim of the principal family.

    100 tables; the bound is 5 % and four standard errors.
    """
    rng = np.random.default_rng(1)
    of, decided = made_up(0.0), 0
    clean = of.table["accuracy"].copy()
    of.table["linear"][:] = 20.0
    for _ in range(100):
        of.table["accuracy"][:] = clean + 5 * rng.standard_normal(clean.shape)
        own = [one for one in claims_of(of) if not one.is_check]
        decided += any(one.outcome != "undecided" for one in own)
    assert decided / 100 < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 100)


def test_presets_of_robustness_are_as_designed():
    """Sizes that were fixed before the run: power, test images, margin."""
    presets = get_experiment("teo2024/robustness").presets
    paper, demo = presets["paper"], presets["demo"]
    assert paper.data == "mnist"
    assert (paper.n_seeds, paper.n_other_seeds) == (13, 5)
    assert (paper.n_test, paper.n_attacked, paper.margin) == (10_000, 2000, 0.5)
    assert len(robustness.conditions(paper)) == 1 + 15 * 5 + 1 + 7
    assert len(set(robustness.models(paper))) == 13
    assert {*robustness.MODELS.values(), *FEW} <= set(VARIANTS)
    assert get_experiment("teo2024/robustness").files(paper) == inputs.MNIST
    assert demo.n_seeds >= ENOUGH
    assert get_experiment("teo2024/finetune").presets["paper"].n_seeds >= 10


def test_the_name_of_a_pursuit_says_its_threshold():
    rules = {"(program)": "reference", "(text)": "paper", "λ=": "paper"}
    for name, variant in VARIANTS.items():
        options = variant.first.options
        if variant.first.kind != "rpc" or name in ("S = 0, n=4", "RPC n=4 (auto)"):
            continue
        (rule,) = {rule for part, rule in rules.items() if part in name}
        assert options["threshold"] == rule, name
    assert VARIANTS["S = 0, n=4"].first.options["sparsity"] == np.inf


@pytest.mark.torch
def test_models_of_a_seed_start_from_the_same_weights():
    import torch

    from eigenheads_papers._training import seeded
    from eigenheads_papers.teo2024._models import SmallViT

    size = SmallModel(patch=4, d_model=8, n_heads=2, depth=2)
    states = []
    for name, variant in VARIANTS.items():
        # Scaled attention has a parameter of its own.
        if name.startswith("scaled"):
            continue
        with seeded(3):
            model = SmallViT(variant, size=size, side=8)
        states.append(model.state_dict())
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for name, weights in state.items():
            assert torch.equal(weights, states[0][name]), name


@pytest.mark.torch
def test_shares_of_the_first_layer_are_those_of_its_diagnostics():
    """By token from the reference formula, and as a mean from the fused layer."""
    import torch

    from eigenheads_papers.teo2024._models import make_attention
    from eigenheads_papers.teo2024._robustness_cell import _flagged

    tokens = 3 * torch.randn(4, 9, 12, generator=torch.Generator().manual_seed(0))
    flagged = 0
    for variant in VARIANTS.values():
        if variant.first.kind != "rpc":
            continue
        torch.manual_seed(0)
        layer = make_attention(variant.first, 12, 2, n_tokens=9, is_causal=False)
        layer.eval()
        with torch.no_grad():
            found = _flagged(layer, tokens)
        assert found.shape == (4, 9)
        expected = layer.diagnostics(tokens).flagged[-1].mean()
        torch.testing.assert_close(found.mean(), expected)
        flagged += bool(expected > 0.01)
    assert flagged >= 5


def test_figure_of_fine_tuning_has_no_share_of_s_for_attention_without_iterations():
    from matplotlib.figure import Figure

    experiment = get_experiment("teo2024/finetune")
    kinds = ("original", "RPC, queries in every iteration")
    params = dataclasses.replace(experiment.presets["smoke"], kinds=kinds)
    table = {
        "accuracy": np.random.default_rng(0).uniform(60, 80, (2, 5, 2)),
        "flagged": np.array([[0.0, 0.0], [0.2, 0.4]]),
        "self_weight": np.array([[np.nan, np.nan], [0.1, 0.3]]),
    }
    figure = Figure()
    experiment.draw(figure, Run(params, table))
    assert [one.get_title() for one in figure.axes][1] == "10 % of the\nwords replaced"
    share, weight = figure.axes[-1].get_lines()[:2]
    np.testing.assert_allclose(share.get_xdata(), [np.nan, 0.3])
    np.testing.assert_allclose(weight.get_xdata(), [np.nan, 0.2])


@pytest.mark.torch
def test_batches_of_sentences_use_each_once_and_little_padding():
    import torch

    from eigenheads.robustness._text import Encoded
    from eigenheads_papers.teo2024._finetuning import _batches, _trimmed
    from eigenheads_papers.teo2024.finetune import FineTuning

    lengths = torch.from_numpy(np.random.default_rng(0).integers(3, 40, 640))
    mask = (torch.arange(40) < lengths[:, None]).long()
    encoded = Encoded(mask * 7, mask)
    how = FineTuning(n_epochs=2, batch_size=32, n_tokens=24)
    rows = list(_batches(encoded, how, np.random.default_rng(1)))
    assert len(rows) == 40
    for epoch in (rows[:20], rows[20:]):
        assert sorted(np.concatenate(epoch)) == list(range(640))
    sizes = [_trimmed(encoded, one, 24)[0].numel() for one in rows]
    assert sum(sizes) < 1.15 * 2 * int(lengths.clamp(max=24).sum())
    assert max(_trimmed(encoded, one, 24)[0].shape[1] for one in rows) == 24


@pytest.mark.torch
def test_rounded_products_are_linear_layers_up_to_rounding_of_factors():
    """bfloat16 has 8 bits: each of 64 products is off by 2⁻⁸ of its size at most."""
    import torch

    from eigenheads_papers.teo2024._finetuning import _round_products

    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 32), torch.randn(10, 64)
    exact = layer(x)
    size = (x.abs() @ layer.weight.abs().T + layer.bias.abs()).detach()
    (wanted,) = torch.autograd.grad(exact.sum(), layer.weight)
    _round_products(layer)
    rounded = layer(x)
    assert rounded.dtype == torch.float32
    assert (rounded - exact).abs().max() > 0
    assert bool(((rounded - exact).abs() <= size / 128).all())
    (found,) = torch.autograd.grad(rounded.sum(), layer.weight)
    # Each entry is a sum of ten inputs, rounded once more as a whole.
    torch.testing.assert_close(found, wanted, rtol=0, atol=2**-6 * float(x.abs().max()))


def test_drawn_language_is_predictable_by_looking_back_two_words_only():
    words = inputs.load_words(
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
    words = inputs.Words(ids[:20_000].reshape(-1, 10), ids[20_000:].reshape(-1, 10), 60)
    assert 1.99 < inputs.bigram_perplexity(words, 400) < 2.05
    shuffled = inputs.Words(rng.permuted(words.train), words.test, 60)
    assert inputs.bigram_perplexity(shuffled, 400) > 30


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

    from eigenheads_papers.teo2024._models import SmallViT

    model = SmallViT(
        VARIANTS["softmax"],
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

    from eigenheads_papers.teo2024 import _models

    tokens = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))

    def first(name):
        torch.manual_seed(0)
        layer = VARIANTS[name].first
        return _models.make_attention(layer, 8, 2, n_tokens=6, is_causal=False).eval()

    # S = 0 flags nothing; λ = 0.1 does; without mixing a token hears nobody.
    assert _models.look_inside(first("S = 0, n=4"), tokens)[0] == 0
    assert _models.look_inside(first("λ=0.1"), tokens)[0] > 0.05
    alone = first("no mixing")
    torch.testing.assert_close(alone(tokens)[:, :1], alone(tokens[:, :1]))
    # Causal models do not see the future.
    model = _models.SmallLanguageModel(
        VARIANTS["RPC n=4 (auto)"],
        size=SmallModel(d_model=8, n_heads=2, depth=2),
        n_words=9,
        length=6,
    ).eval()
    ids = torch.randint(0, 9, (2, 6))
    later = ids.clone()
    later[:, 4:] = 9
    torch.testing.assert_close(model(ids)[:, :4], model(later)[:, :4])
