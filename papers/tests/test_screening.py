"""The screening experiments: inputs, measurements that are those of the library."""

import functools

import numpy as np
import pytest

from eigenheads_papers import get_experiment
from eigenheads_papers._core import Run
from eigenheads_papers._run import draw_experiment, experiment_rng
from eigenheads_papers.screening import images
from eigenheads_papers.teo2024.inputs import load_all_digits

pytestmark = pytest.mark.torch
KEYS = ("screening/mnist", "screening/photographs")


@functools.cache
def smoke_run(key):
    experiment = get_experiment(key)
    params = experiment.presets["smoke"]
    return Run(params, experiment.simulate(params, experiment_rng(key, 0)))


@pytest.mark.parametrize("key", KEYS)
def test_a_small_run_decides_nothing_and_is_drawn(key):
    run = smoke_run(key)
    claims = get_experiment(key).check(run)
    assert {claim.outcome for claim in claims} == {"undecided"}
    assert all(claim.is_check for claim in claims)
    accuracy = run.table["accuracy"]
    known = [not np.isnan(accuracy[..., at, -2]).any() for at in range(12)]
    assert known == [
        name.split()[0] in ("replaced", "saturated", "shuffled", "occluded", "patches")
        for name in images.CONDITIONS
    ]
    assert b"aimed at the screen" in draw_experiment(get_experiment(key), run)


def planted(**gains):
    """Return a run in which remedies gain what is said, at the size of the record."""
    params = images.Params()
    names = images.remedies(params)
    rng = np.random.default_rng(0)
    shape = (len(images.KINDS), 5, len(images.CONDITIONS), len(names))
    table = 98 + 0.05 * rng.standard_normal(shape)
    for kind in range(3):
        for condition, by_remedy in gains.get(images.KINDS[kind], {}).items():
            for remedy, gain in by_remedy.items():
                at = images.CONDITIONS.index(condition), names.index(remedy)
                table[kind, :, at[0], at[1]] += gain
    return Run(params, {"accuracy": table, "linear": np.full((3, 5), 85.0)})


def verdicts(run):
    return {claim.statement: claim.outcome for claim in images.check(run)}


def test_gains_and_losses_that_are_planted_are_found():
    found = verdicts(
        planted(
            dropped={
                "replaced 4": {"screen 1000": 4.0, "oracle": 6.0},
                "saturated 4": {"screen 1000": -4.0},
                "gaussian noise": {"screen 1000": -5.0},
                "pgd": {"screen 1000": 6.0},
            }
        )
    )

    def of(*words):
        (verdict,) = {v for s, v in found.items() if all(word in s for word in words)}
        return verdict

    assert of("gain by the screen", "4 of 16 patches") == "held"
    assert of("gain by the screen", "saturated") == "contradicted"
    assert of("change by the screen", "Gaussian") == "contradicted"
    assert of("change by the screen", "blur") == "held"
    assert of("gain by the screen", "PGD") == "contradicted"
    assert of("gain by the oracle") == "held"
    assert of("random tokens") == "held"
    assert of("imputed less hidden") == "contradicted"
    assert of("linear classifier") == "held"


def test_digits_on_photographs_use_other_crops_in_the_test(rng):
    from eigenheads_papers.screening import _measurement

    digits = load_all_digits("digits").test[:40]
    plain = _measurement.compose(digits, photographs=False, trained=True, rng=rng)
    assert plain.shape == (40, 1, 28, 28)
    colour = _measurement.compose(
        np.zeros_like(digits), photographs=True, trained=False, rng=rng
    )
    assert colour.shape == (40, 3, 28, 28)
    assert 0 <= colour.min() < colour.max() <= 0.7
    # Where there is ink, the digit is light.
    whole = _measurement.compose(
        np.full_like(digits, 255), photographs=True, trained=True, rng=rng
    )
    assert whole.min() >= 0.7 - 1e-6


def test_the_mask_of_the_experiment_is_what_screen_tokens_hides(rng):
    """The measured remedies are those of the library's one call."""
    import copy

    import torch

    from eigenheads.adapters import screen_tokens
    from eigenheads.robustness import corrupt_patches
    from eigenheads_papers.screening import _measurement

    params = get_experiment(KEYS[0]).presets["smoke"]
    digits = load_all_digits("digits")
    pixels = _measurement.compose(
        digits.test, photographs=False, trained=False, rng=rng
    )
    torch.manual_seed(0)
    model = _measurement.PatchClassifier(params, 1).eval()
    bench = _measurement._Bench(
        params, model, pixels[:300], pixels[300:360], digits.test_classes[300:360], rng
    )
    changed, _ = corrupt_patches(pixels[300:360], "saturated", 0.25, patch=7, rng=rng)
    x = torch.from_numpy(changed).float()
    tokens = bench.tokens(changed.astype(np.float32))
    hidden = torch.from_numpy(bench.flags(tokens))
    assert hidden.any()
    calibration = torch.from_numpy(pixels[: params.main_calibration])
    with torch.no_grad():
        expected = model.classify(model.embed(x), hidden)
        screened = screen_tokens(copy.deepcopy(model), calibration, action="hide")
        torch.testing.assert_close(screened(x), expected, atol=1e-4, rtol=1e-4)
        imputed = torch.from_numpy(bench.screen.impute(tokens)).float()
        other = screen_tokens(copy.deepcopy(model), calibration, action="impute")
        torch.testing.assert_close(
            other(x), model.classify(imputed), atol=1e-4, rtol=1e-4
        )
    # An aimed attack changes chosen patches alone, and fits better than another.
    from eigenheads.functional import token_distances

    places = _measurement.random_places(30, 16, 4, rng)
    found = {}
    for is_aimed in (False, True):
        attacked = bench.patch_attack(places, is_aimed=is_aimed)
        same = np.repeat(np.repeat(~places.reshape(30, 1, 4, 4), 7, 2), 7, 3)
        assert (attacked == bench.clean[:30])[same].all()
        own = bench.tokens(attacked) - bench.screen.mean_
        ratio = token_distances(own @ bench.screen.components_, bench.screen.precision_)
        found[is_aimed] = float(np.mean(ratio / bench.screen.thresholds_))
    assert found[True] < found[False]
