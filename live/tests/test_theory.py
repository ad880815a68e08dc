"""The page's closed forms are those of eigenheads.theory, to 1e-9."""

import json

import numpy as np
import pytest
from scipy.special import erf

from eigenheads import theory
from eigenheads.datasets import SignalTokens, SingleLocation

pytestmark = pytest.mark.browser

# Relative to the largest number of a comparison; the formulas round at about 1e-13.
TOLERANCE = 1e-9
GAMMA = 0.5**0.5


def close(seen, expected):
    seen, expected = np.asarray(seen, float), np.asarray(expected, float)
    assert seen.shape == expected.shape
    assert np.isfinite(seen).all()
    np.testing.assert_allclose(seen, expected, rtol=TOLERANCE, atol=1e-14)


@pytest.fixture(scope="module")
def cases():
    """Laws from d = 10 to 10⁹, flat to sharp, with order parameters of unit vectors."""
    rng = np.random.default_rng(0)
    rows = []
    for d in (10, 80, 400, 10**6, 10**9):
        for sharpness in (0.1, 2.0, 18.0):
            for _ in range(6):
                frame = rng.standard_normal((4, 5))
                k_star, v_star, *_ = np.linalg.qr(frame.T)[0].T
                k, v = (x / np.linalg.norm(x) for x in frame[2:])
                order = [k @ k_star, v @ v_star, v @ k_star, k @ v_star, k @ v]
                rows.append((d, int(rng.integers(2, 100)), sharpness / d**0.5, *order))
    return rows


def law_of(case):
    return SingleLocation(d=case[0], n_tokens=case[1], gamma=GAMMA)


def landscape_of(case):
    return theory.LocationLandscape(law_of(case), inverse_temperature=case[2])


def on_page(page, cases, expression):
    return page.run(
        f"""{json.dumps(cases)}.map(([d, nTokens, lambda, ...order]) => {{
          const law = {{d, nTokens, gamma: Math.SQRT1_2}};
          return {expression}; }})"""
    )


def test_error_function(page):
    x = np.concatenate([np.linspace(-7, 7, 701), [1e-9, 30.0, -1e300]])
    close(page.run(f"{json.dumps(list(x))}.map(erf)"), erf(x))


def test_location_risk_and_gradient(page, cases):
    risks = [landscape_of(case).risk(*case[3:]) for case in cases]
    close(on_page(page, cases, "locationExcess(order, law, lambda)"), risks)
    slopes = [landscape_of(case).gradient(*case[3:]) for case in cases]
    seen = np.array(on_page(page, cases, "locationSlopes(order, law, lambda)"))
    size = np.abs(slopes).max(axis=1, keepdims=True)
    close(seen / size, slopes / size)


def test_location_descent(page, cases):
    expected = []
    for case in cases:
        path = theory.location_descent(
            law_of(case),
            [case[3:]],
            inverse_temperature=case[2],
            step_size=0.3 / case[0],
            n_steps=1,
        )
        expected.append([path.final(name)[0] for name in path])
    # One step: sharp heads oscillate at first, which amplifies rounding.
    seen = on_page(page, cases, "locationDescent(order, law, lambda, 0.3 / d)")
    np.testing.assert_allclose(seen, expected, rtol=0, atol=TOLERANCE)


def test_location_mean_dynamics(page, cases):
    """One step with the noise of batches of five; sharp heads need finer rules."""
    expected = []
    for case in cases:
        path = theory.location_mean_dynamics(
            SingleLocation(d=case[0], n_tokens=case[1], gamma=GAMMA, noise=0.1),
            [case[3:]],
            inverse_temperature=case[2],
            step_size=0.3 / case[0],
            batch_size=5,
            n_steps=1,
        )
        expected.append([path.final(name)[0] for name in path])
    seen = on_page(
        page,
        cases,
        "locationStep(order, {...law, noise: 0.1}, lambda, 0.3 / d, 1 / 5, "
        "locationNoise(order, {...law, noise: 0.1}, lambda))",
    )
    np.testing.assert_allclose(seen, expected, rtol=0, atol=TOLERANCE)


BANDS = [
    # d, tokens, inverse temperature, kappa, nu
    (80, 10, 0.25, 0.9, 0.98),
    (80, 10, 0.1, 0.998, 0.998),
    (400, 20, 0.1, 0.7, 0.95),
    (10**6, 5, 0.002, 0.8, 0.9),
]


def test_location_spread(page):
    """Deviations of theta, eta and rho; each side draws prompts of its own.

    The page draws 65 536 tokens, Python eight times as many. With a relative standard
    error of 0.02 of a variance, 0.06 of a deviation is six of them.
    """
    expected = [
        theory.location_band(
            SingleLocation(d=d, n_tokens=n, noise=0.1),
            kappa,
            nu,
            inverse_temperature=scale,
            step_size=0.08 / d,
            batch_size=5,
        )
        for d, n, scale, kappa, nu in BANDS
    ]
    assert np.isfinite(expected).all()
    seen = page.run(
        f"""{json.dumps(BANDS)}.map(([d, nTokens, lambda, kappa, nu]) => {{
          const law = {{d, nTokens, gamma: Math.SQRT1_2, noise: 0.1}};
          return locationSpread(kappa, nu, law, lambda, 0.08 / d, 5); }})"""
    )
    deviations = np.sqrt(np.diagonal(seen, axis1=1, axis2=2))
    np.testing.assert_allclose(deviations, expected, rtol=0.06)
    # At a saddle of the risk, where the manifold is unstable, there is no spread.
    law = SingleLocation(d=80, n_tokens=10, noise=0.1)
    point = {"inverse_temperature": 2.0, "step_size": 1e-3, "batch_size": 5}
    assert np.isnan(theory.location_band(law, 0.0, 0.0, **point)).all() == (
        page.run(
            "locationSpread(0, 0, {d: 80, nTokens: 10, gamma: Math.SQRT1_2, "
            "noise: 0.1}, 2, 1e-3, 5)"
        )
        is None
    )


def test_middle_of_lengths(page):
    """Quantiles of the length of a Gaussian vector, from 1000 draws."""
    factor = np.array([[0.3, 0, 0], [0.1, 0.2, 0], [-0.2, 0.05, 0.1]])
    seen = page.run(f"middleOfLength({json.dumps((factor @ factor.T).tolist())})")
    draws = np.random.default_rng(0).standard_normal((200_000, 3)) @ factor.T
    expected = np.quantile(np.linalg.norm(draws, axis=1), [0.1, 0.9])
    np.testing.assert_allclose(seen, expected, rtol=0.1)


def test_location_flow(page, cases):
    fields = [landscape_of(case).velocity(case[3], case[4]) for case in cases]
    close(
        on_page(page, cases, "locationField(order[0], order[1], law, lambda)"),
        fields,
    )
    points = page.run("LOCATION_FIXED_POINTS")
    for case in cases:
        expected = landscape_of(case).fixed_points()
        assert points == [[one.kappa, one.nu, one.kind] for one in expected]


SIGNAL = [
    {
        "d": d,
        "n_informative": informative,
        "n_nuisance": nuisance,
        "strength": strength,
        "inverse_temperature": min(1.0, 2.5 / (strength * d**0.5)),
    }
    for d in (10, 100, 10**4, 10**9)
    for informative, nuisance in ((2, 18), (25, 475), (100, 9900))
    for strength in (0.01, 0.25, 2.0)
]


def signal_landscape(law):
    return theory.SignalLandscape(SignalTokens(**law))


def for_page(law):
    return {
        "d": law["d"],
        "nInformative": law["n_informative"],
        "nNuisance": law["n_nuisance"],
        "strength": law["strength"],
        "beta": law["inverse_temperature"],
    }


def signal_on_page(page, expression):
    laws = json.dumps([for_page(law) for law in SIGNAL])
    return page.run(f"{laws}.map((law) => {expression})")


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("signalObjective", theory.SignalLandscape.objective),
        ("signalGradient", theory.SignalLandscape.gradient),
        ("signalNoise", theory.SignalLandscape.noise),
    ],
)
def test_signal_objective_gradient_and_noise(page, name, function):
    t = [-1.0, -0.5, -1e-4, 0.0, 0.01, 0.3, 0.9, 1.0]
    seen = signal_on_page(page, f"{json.dumps(t)}.map((t) => {name}(t, law))")
    close(seen, [function(signal_landscape(law), t) for law in SIGNAL])


def test_signal_rates_and_steps(page):
    seen = signal_on_page(
        page, "[...Object.values(signalSteps(law)), 0.01 * signalFloor(law)]"
    )
    expected = []
    for law in SIGNAL:
        found = signal_landscape(law)
        first = theory.signal_steps(found.law).first
        updates = found.escape_steps()
        expected.append([first, updates, found.error(0.01)])
    close(seen, expected)


def test_signal_mean_path(page):
    expected = []
    for law in SIGNAL:
        law = SignalTokens(**law)
        a = theory.signal_steps(law).first
        path = theory.signal_mean_dynamics(law, 0.2, step_size=a, n_steps=20)
        expected.append(path.final("alignment")[0])
    seen = signal_on_page(
        page,
        "Array(20).fill(0).reduce((t) => "
        "signalAscent(t, law, signalSteps(law).first), 0.2)",
    )
    close(seen, expected)


def test_pooled_pca(page):
    law = {"fraction": 0.03, "d": 1000, "n_samples": 40_000}
    amplitudes = [0.5, 2.0, 3.0, 30.0]
    seen = page.run(
        f"{amplitudes}.map((a) => pooledPcaAlignment(0.03, a, 1000, 40000))"
    )
    close(seen, theory.pooled_pca_alignment(amplitude=amplitudes, **law))
