"""The table: right numbers, paired over models, whole on disk, clear on mistakes."""

import csv
import json
import math
import tracemalloc
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from scipy import stats  # noqa: E402
from torch import nn  # noqa: E402

from eigenheads._parallel import reporting  # noqa: E402
from eigenheads._plotting.robustness import draw_robustness, robustness_size  # noqa: E402
from eigenheads._plotting.svg import render_svg  # noqa: E402
from eigenheads.cli import main  # noqa: E402
from eigenheads.robustness import (  # noqa: E402
    ALEXNET_ERRORS,
    CORRUPTIONS,
    GradientMaskingWarning,
    RobustnessPlan,
    corrupt,
    corrupting_tokens,
    evaluate_robustness,
    fgsm,
    swap_words,
)

pytestmark = pytest.mark.torch


class Tokens(nn.Module):
    """Rows of an image as tokens; the brightest row is its class."""

    def __init__(self, noise=0.0, seed=0):
        super().__init__()
        self.embed = nn.Identity()
        generator = torch.Generator().manual_seed(seed)
        self.noise = nn.Parameter(noise * torch.randn(8, generator=generator))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return 20 * self.drop(self.embed(x.flatten(1, 2)).mean(-1)) + self.noise


def rows_data(n=80, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 8, (n,), generator=generator)
    x = 0.3 * torch.rand(n, 1, 8, 8, generator=generator)
    x[torch.arange(n), 0, y] += 0.25
    return x, y


QUICK = {"corruptions": ["defocus_blur"], "severities": [1, 5], "attacks": ["fgsm"]}


def one(found, **names):
    (row,) = found.select(**names)
    return row


def test_clean_rows_are_the_accuracy_and_training_mode_comes_back():
    model = Tokens(noise=1.0).train()
    model.drop.eval()
    x, y = rows_data()
    found = evaluate_robustness(model, (x, y), **QUICK)
    assert model.training
    assert not model.drop.training
    logits = model.eval()(x)
    expected = float((logits.argmax(1) == y).double().mean())
    row = one(found, metric="top-1", condition="clean")
    assert row.value == expected
    assert row.low <= row.value <= row.high
    top = one(found, metric="top-5").value
    assert top == float((logits.topk(5).indices == y[:, None]).any(1).double().mean())


def test_mean_corruption_error_is_the_mean_of_the_errors():
    x, y = rows_data()
    found = evaluate_robustness(
        Tokens(noise=1.0), (x, y), attacks=[], corruptions=["defocus_blur", "occlusion"]
    )
    errors = {
        kind: [1 - row.value for row in found.select(metric="top-1", condition=kind)]
        for kind in ("defocus_blur", "occlusion")
    }
    for kind, own in errors.items():
        row = one(found, metric="mean corruption error", condition=kind)
        assert math.isclose(row.value, np.mean(own))
        assert len(own) == 5
    every = one(found, condition="all corruptions").value
    assert math.isclose(every, np.mean(list(errors.values())))


def test_interval_over_models_is_students_and_pairs_values():
    models = [Tokens(noise=1.5, seed=seed) for seed in range(4)]
    found = evaluate_robustness({"a": models, "b": models[:1]}, rows_data(), **QUICK)
    row = one(found, model="a", metric="top-1", condition="clean")
    assert len(row.values) == 4
    low, high = stats.t.interval(
        0.95, 3, loc=np.mean(row.values), scale=stats.sem(row.values)
    )
    np.testing.assert_allclose((row.low, row.high), (low, min(high, 1.0)))
    # The same model meets the same corruptions and attacks under any name.
    for one_row in found.select(model="b"):
        twin = (
            one(
                found,
                model="a",
                metric=one_row.metric,
                condition=one_row.condition,
            )
            if one_row.level is None
            else next(
                r
                for r in found.select(model="a", condition=one_row.condition)
                if r.level == one_row.level
            )
        )
        assert twin.values[0] == one_row.values[0]


def test_attacks_lower_accuracy_and_take_options():
    x, y = rows_data()
    heard = []
    with reporting(heard.append):
        found = evaluate_robustness(
            Tokens(),
            (x, y),
            corruptions=[],
            attacks={"pgd": {"n_steps": 3}, "square": {"n_queries": 50}},
            budgets=[0, 40],
        )
    assert sum(heard) == 1 + 4
    clean = one(found, metric="top-1", condition="clean").value
    for attack in ("pgd", "square"):
        none, much = found.select(condition=attack)
        assert none.value == clean
        assert much.value < clean - 0.2


def test_tokens_replaced():
    x, y = rows_data()
    found = evaluate_robustness(
        Tokens(), (x, y), corruptions=[], attacks=[], tokens="embed", shares=[0.0, 1.0]
    )
    none, every = found.select(condition="tokens replaced")
    assert none.value == one(found, metric="top-1", condition="clean").value == 1.0
    assert every.value < 0.4


def test_corrupted_tokens_are_others_of_the_batch_in_the_share_asked_for():
    model = nn.Sequential(nn.Identity())
    tokens = torch.arange(200.0).view(4, 50, 1)
    generator = torch.Generator().manual_seed(0)
    with corrupting_tokens(model, "0", 0.3, generator=generator):
        out = model(tokens)
    changed = (out != tokens).sum(1).flatten()
    assert changed.tolist() == [15] * 4
    assert torch.isin(out, tokens).all()
    assert (model(tokens) == tokens).all()  # the hook is gone


def test_outliers_are_told_apart_by_low_confidence():
    x, y = rows_data()
    flat = torch.full((40, 1, 8, 8), 0.3)
    found = evaluate_robustness(
        Tokens(), (x, y), corruptions=[], attacks=[], outliers=flat
    )
    assert one(found, metric="AUPR").value > 0.99
    mixed = evaluate_robustness(
        Tokens(), (x, y), corruptions=[], attacks=[], outliers=x[:40]
    )
    # Chance is the share of outliers, 1/3.
    assert 0.2 < one(mixed, metric="AUPR").value < 0.5


def test_perplexity_of_a_known_model_and_swapped_words():
    """Bigrams i → i+1: a known word costs log(1 + 9 e^-3), else uniform."""

    class Bigram(nn.Module):
        def forward(self, ids):
            logits = 3.0 * nn.functional.one_hot((ids + 1) % 10, 10).double()
            return torch.where((ids == 10)[..., None], 0.0, logits)

    ids = (torch.arange(400)[:, None] + torch.arange(30)) % 10
    found = evaluate_robustness(Bigram(), ids, word=10, shares=[0.25])
    clean, swapped = found.rows
    known = 1 + 9 * math.exp(-3)
    assert math.isclose(clean.value, known)
    expected = math.exp(0.75 * math.log(known) + 0.25 * math.log(10))
    # 8700 predicted words: 5 standard errors of the share of swapped ones before them.
    error = 5 * math.sqrt(0.25 * 0.75 / 8700) * math.log(10 / known)
    assert abs(math.log(swapped.value / expected)) < error
    share = (swap_words(ids, 0.25, replacement=10) == 10).double().mean()
    assert abs(share - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 12000)


def test_same_seed_same_table_and_files(tmp_path):
    options = {"attacks": ["pgd", "spsa", "square"], "budgets": [4]}
    options |= {"corruptions": CORRUPTIONS, "severities": [3]}
    first, again = (
        evaluate_robustness(Tokens(noise=1.0), rows_data(), seed=5, **options)
        for _ in range(2)
    )
    assert first == again
    other = evaluate_robustness(Tokens(noise=1.0), rows_data(), seed=6, **options)
    assert first != other
    loaded = json.loads(first.save(tmp_path / "t.json").read_text())
    assert len(loaded["rows"]) == len(first.rows)
    with first.save(tmp_path / "t.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(r["value"]) for r in table] == [row.value for row in first.rows]
    frame = pytest.importorskip("pandas") and first.to_frame()
    assert list(frame["metric"]) == [row.metric for row in first.rows]
    with pytest.raises(ValueError, match="ends in"):
        first.save(tmp_path / "t.txt")
    draw = lambda figure: draw_robustness(figure, first.rows)  # noqa: E731
    svg = render_svg(draw, size=robustness_size(first.rows))
    assert svg == render_svg(draw, size=robustness_size(first.rows))
    assert b"Square" in svg


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attacks": ["pdg"]}, "Did you mean 'pgd'"),
        ({"attacks": {"pgd": {"steps": 3}}}, "Did you mean 'n_steps'"),
        ({"corruptions": ["fogg"]}, "Did you mean 'fog'"),
        ({"severities": [0]}, "`severities` must be an integer from 1 to 5; got 0"),
        ({"budgets": [-1]}, "`budgets` must be a finite number >= 0; got -1"),
        ({"tokens": "embd", "shares": [0.5]}, "Did you mean 'embed'"),
        ({"tokens": ""}, "returns shape (80, 8)"),
        ({"shares": [2]}, "from 0 to 1; got 2"),
        ({"outliers": torch.zeros(3, 1, 4, 4)}, "images of shape (1, 8, 8)"),
        ({"data": (torch.zeros(3, 1, 4, 4), torch.zeros(3))}, "a class for each image"),
        ({"data": torch.zeros(3)}, "ids of words of shape"),
        ({"data": (1, 2, 3)}, "a pair (images, classes)"),
        ({"data": (100 * torch.ones(2, 1, 4, 4), [0, 1])}, "entries from 0 to 1"),
        ({"batch_size": 0}, "`batch_size` must be an integer >= 1"),
        ({"confidence": 95}, "`confidence`"),
        ({"word": 3}, "`word` must be left out where `data` are images; got 3."),
        ({"tokens": "0", "data": torch.ones(2, 3, dtype=int)}, "are ids of words"),
        (
            {"plan": RobustnessPlan(special_ids=[0])},
            "`special_ids` must be left out where `data` are not",
        ),
        ({"data": (torch.zeros(2, 1, 4, 4, device="meta"), [0, 1])}, "holds numbers"),
        (
            {"data": (torch.zeros(2, 1, 4, 4, requires_grad=True), [0, 1])},
            "`data[0]` must be an array of numbers; got a tensor that requires grad. "
            "Use `.detach()`.",
        ),
    ],
)
def test_mistakes_are_one_sentence(changes, sentence):
    given = {"data": rows_data(), **QUICK, "attacks": [], **changes}
    with pytest.raises(ValueError, match=r"evaluate_robustness: |tokens: ") as caught:
        evaluate_robustness(Tokens(), **given)
    assert sentence in str(caught.value)
    with pytest.raises(TypeError, match="a model, a list of models"):
        evaluate_robustness([], rows_data())


SOURCE = """
import torch
from torch import nn

def trained():
    torch.manual_seed(0)
    models = {n: [nn.Sequential(nn.Flatten(), nn.Linear(16, 3)) for _ in range(2)]
              for n in ("first", "second")}
    return models, (torch.rand(30, 1, 4, 4), torch.randint(0, 3, (30,)))

def wrong():
    return 3
"""


TOKENS = """
import torch
from torch import nn


def made():
    torch.manual_seed(0)
    embed = nn.Linear(16, 8)
    model = nn.Sequential(nn.Flatten(2), embed, nn.Flatten(), nn.Linear(24, 4))
    own = {"tokens": "missing", "severities": [1]}
    return model, (torch.rand(8, 3, 4, 4), torch.arange(8) % 4), own


def words():
    model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))
    return model, torch.randint(0, 3, (5, 6))
"""


def test_command_prints_a_table_and_writes_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ehmodels.py").write_text(SOURCE)
    arguments = ["robustness", "ehmodels:trained", "--attacks", "fgsm,square"]
    arguments += ["--budgets", "2,8", "--corruptions", "defocus_blur", "--out", "o/p"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "first" in shown
    assert "mean corruption error  all corruptions" in shown
    assert "square 8" in shown
    assert "Student's t over models" in shown
    names = {path.name for path in (tmp_path / "o/p").iterdir()}
    assert names == {"robustness.csv", "robustness.json", "robustness.svg"}
    for source, sentence in (
        ("ehmodels", "`MODEL` must be module:callable; got 'ehmodels'. mymodels:"),
        ("ehmodels:nobody", "has no 'nobody'"),
        ("ehnomodels:x", "there is no module 'ehnomodels'"),
        ("ehmodels:wrong", "which returned int"),
    ):
        assert main(["robustness", source]) == 2
        assert sentence in capsys.readouterr().err
    assert main([*arguments[:4], "--budgets", "x"]) == 2
    assert "numbers separated by commas" in capsys.readouterr().err
    assert main([*arguments[:2], "--severities", "1.5"]) == 2
    assert "`severities` must be whole numbers" in capsys.readouterr().err


def test_command_takes_severities_tokens_and_shares(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ehtokens.py").write_text(TOKENS)
    arguments = ["robustness", "ehtokens:made", "--attacks", "none"]
    arguments += ["--corruptions", "fog", "--severities", "2,4"]
    # What the command line says goes before what the callable returns.
    assert main([*arguments, "--tokens", "1", "--shares", "0.5"]) == 0
    shown = capsys.readouterr().out
    assert "tokens replaced 0.5" in shown
    rows = json.loads((tmp_path / "results/robustness.json").read_text())["rows"]
    assert [row["level"] for row in rows if row["condition"] == "fog"][:2] == [2, 4]
    assert main([*arguments, "--tokens", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["robustness", "ehtokens:words", "--shares", "0.5", "--word", "3"]) == 0
    assert "words swapped 0.5" in capsys.readouterr().out


def batches(x, y, size):
    """A loader that can be read once."""
    for first in range(0, len(x), size):
        yield x[first : first + size], y[first : first + size]


STREAMED = {
    "corruptions": ["gaussian_noise", "occlusion", "contrast"],
    "severities": [2, 5],
    "attacks": ["fgsm", "noise"],
    "budgets": [8],
}


def test_a_loader_gives_the_same_whatever_its_batches():
    model, (x, y) = Tokens(noise=1.0), rows_data()
    small, large = (
        evaluate_robustness(model, batches(x, y, size), **STREAMED) for size in (7, 80)
    )
    pairs = zip(small.rows, large.rows, strict=True)
    for one_row, other in pairs:
        if one_row.condition != "noise":  # drawn batch by batch
            assert one_row == other
    whole = evaluate_robustness(model, (x, y), **STREAMED)
    for condition in ("clean", "fgsm", *STREAMED["corruptions"]):
        rows = large.select(condition=condition)
        assert rows == whole.select(condition=condition)


def test_memory_of_a_loader_is_bounded_by_its_batches():
    """Sixteen times the images: arrays do not grow, and tensors do not stay."""
    alive = []

    def images(n):
        generator = torch.Generator().manual_seed(0)
        seen = []
        for _ in range(n):
            x = torch.rand(16, 3, 32, 32, generator=generator)
            seen.append(weakref.ref(x))
            yield x, torch.zeros(16).long()
            del x
            alive.append(sum(one() is not None for one in seen))

    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4))
    options = {"corruptions": ["contrast"], "severities": [1], "attacks": []}
    peaks = []
    for n in (4, 64):
        tracemalloc.start()
        evaluate_robustness(model, images(n), **options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    batch = 16 * 3 * 32 * 32 * 8
    assert peaks[1] < peaks[0] + batch
    assert max(alive) <= 1


def test_any_callable_is_an_attack():
    model, (x, y) = Tokens(), rows_data()
    seen = []

    def black_out(model, images, labels):
        seen.append((model, labels))
        return torch.zeros_like(images)

    attacks = {"black": black_out, "fgsm": {}}
    found = evaluate_robustness(model, (x, y), corruptions=[], attacks=attacks)
    row = one(found, condition="black")
    assert row.level is None
    right = model.eval()(x).argmax(1) == y
    constant = model(torch.zeros(1, 1, 8, 8)).argmax(1)
    assert row.value == float((right & (y == constant)).double().mean())
    assert all(given is model for given, _ in seen)
    with pytest.raises(ValueError, match="a callable attack"):
        evaluate_robustness(model, (x, y), attacks={"pgd": 3})


def test_normalised_budgets_are_smaller_in_pixels():
    model, (x, y) = Tokens(noise=1.0), rows_data()
    options = {"corruptions": [], "attacks": ["fgsm"]}
    normalised = evaluate_robustness(
        model,
        (x, y),
        budgets=[32],
        plan=RobustnessPlan(budget_unit="normalised", pixel_std=[0.25]),
        **options,
    )
    pixel = evaluate_robustness(model, (x, y), budgets=[8], **options)
    first, second = (one(r, condition="fgsm") for r in (normalised, pixel))
    assert first.values == second.values
    assert (first.level, second.level) == (32, 8)
    assert "normalised images (pixels divided by 0.25)" in str(normalised)
    assert "budgets: 1/255 of the pixel range" in str(pixel)
    with pytest.raises(ValueError, match="`pixel_std` must be given"):
        evaluate_robustness(
            model, (x, y), plan=RobustnessPlan(budget_unit="normalised")
        )


def test_images_on_disk_give_the_errors_of_their_corruption_and_relative_ones():
    model, (x, y) = Tokens(noise=1.0), rows_data()
    rng = np.random.default_rng(0)
    noisy = {
        kind: {at: (corrupt(x, kind, at, rng), y) for at in (1, 5)}
        for kind in ("fog", "contrast")
    }
    noisy["contrast"][5] = list(batches(*noisy["contrast"][5], size=9))
    plan = RobustnessPlan(corrupted=noisy, relative_to=ALEXNET_ERRORS)
    options = {"corruptions": [], "attacks": []}
    found = evaluate_robustness(model, (x, y), plan=plan, **options)
    stream = evaluate_robustness(model, batches(x, y, 9), plan=plan, **options)
    assert found.rows == stream.rows
    alone = evaluate_robustness(model, None, plan=plan)
    assert alone.rows == tuple(row for row in found.rows if row.condition != "clean")
    relative = []
    for kind in noisy:
        errors = [1 - row.value for row in found.select(condition=kind)[:2]]
        absolute, own = found.select(condition=kind)[2:]
        assert math.isclose(absolute.value, np.mean(errors))
        relative.append(np.mean(errors) / ALEXNET_ERRORS[kind])
        assert math.isclose(own.value, relative[-1])
        # The same interval in another unit.
        np.testing.assert_allclose(
            np.array([own.low, own.high]) * ALEXNET_ERRORS[kind],
            [absolute.low, absolute.high],
        )
    mean = one(
        found, metric="relative corruption error", condition="all corruptions"
    ).value
    assert math.isclose(mean, np.mean(relative))
    with pytest.raises(ValueError, match="errors of all corruptions; got none of occ"):
        evaluate_robustness(
            model, (x, y), corruptions=["occlusion"], attacks=[], plan=plan
        )


def test_only_some_classes_can_be_answered():
    model, (x, y) = Tokens(noise=2.0), rows_data()
    few = y < 3
    found = evaluate_robustness(
        model,
        (x[few], y[few]),
        corruptions=[],
        attacks=["fgsm"],
        budgets=[0],
        plan=RobustnessPlan(classes=[0, 1, 2]),
    )
    right = model.eval()(x[few])[:, :3].argmax(1) == y[few]
    expected = float(right.double().mean())
    assert one(found, metric="top-1", condition="clean").value == expected
    assert one(found, condition="fgsm").value == expected
    with pytest.raises(ValueError, match="`classes` must be numbers below 8"):
        evaluate_robustness(
            model, (x, y), corruptions=[], plan=RobustnessPlan(classes=[9])
        )


def test_top_5_under_attack_counts_what_is_among_five_before_and_after():
    model, (x, y) = Tokens(noise=2.0), rows_data()
    options = {"corruptions": [], "attacks": ["fgsm"], "budgets": [24]}
    plan = RobustnessPlan(top=(1, 5))
    found = evaluate_robustness(model, (x, y), plan=plan, **options)
    attacked = fgsm(model.eval(), x, y, budget=24)
    for k in (1, 5):
        before, after = (
            (model(z).topk(k).indices == y[:, None]).any(1) for z in (x, attacked)
        )
        value = one(found, metric=f"top-{k}", condition="fgsm").value
        assert value == float((before & after).double().mean())
    alone = evaluate_robustness(model, (x, y), **options)
    first = one(found, metric="top-1", condition="fgsm").value
    assert one(alone, condition="fgsm").value == first


class Masked(Tokens):
    """Gradients that point the wrong way."""

    def forward(self, x):
        x = 2 * x.detach() - x if x.requires_grad else x
        return super().forward(x)


def test_masked_gradients_are_noticed():
    x, y = rows_data()
    options = {"corruptions": [], "attacks": ["fgsm", "square"], "budgets": [24]}
    with pytest.warns(GradientMaskingWarning, match="'square' at budget 24"):
        evaluate_robustness(Masked(), (x, y), **options)
    evaluate_robustness(Tokens(), (x, y), **options)  # warnings are errors here
    with pytest.warns(GradientMaskingWarning, match="'fgsm transferred'"):
        found = evaluate_robustness(
            Masked(),
            (x, y),
            corruptions=[],
            attacks=["fgsm"],
            budgets=[24],
            plan=RobustnessPlan(surrogate=Tokens()),
        )
    transferred = one(found, condition="fgsm transferred").value
    assert transferred < one(found, condition="fgsm").value
