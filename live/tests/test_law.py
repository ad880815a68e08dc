"""The page's engine draws from the law of Python's simulators.

Means and variances over independent runs, on both sides with their standard errors.
Each comparison may differ by 4.5 of them, which happens by chance with probability
7e-6; there are 100, so all agree with probability above 0.999.
"""

import json
import math

import numpy as np
import pytest
from live.tests.page_models import ORDER, declared, softmax_location, two_heads

from eigenheads.datasets import GaussianPrompts, SignalTokens, SingleLocation
from eigenheads.models import (
    location_start,
    simulate,
    simulate_location,
    simulate_pca,
    simulate_signal,
)
from eigenheads.theory import signal_steps

pytestmark = pytest.mark.browser

LARGEST = 4.5
# Runs many streams and returns mean, variance and fourth central moment of each number.
MOMENTS = """(() => {
  const {n, make, advance, look} = (%s)();
  const rows = Array.from({length: n}, (_, run) => look(advance(make(run))));
  return rows[0].map((_, i) => {
    const mean = rows.reduce((sum, row) => sum + row[i], 0) / n;
    const power = (k) => rows.reduce((sum, row) => sum + (row[i] - mean) ** k, 0) / n;
    return [mean, power(2), power(4)];
  });
})()"""


def compare(seen, expected):
    """Assert that moments from the page agree with columns of Python's runs."""
    for (mean, variance, fourth), runs in zip(seen, expected, strict=True):
        n = len(runs)
        ours = runs - runs.mean()
        spread = np.mean(ours**2)
        error = math.sqrt((variance + spread) / n)
        assert abs(mean - runs.mean()) <= LARGEST * error
        noise = fourth - variance**2 + np.mean(ours**4) - spread**2
        assert abs(variance - spread) <= LARGEST * math.sqrt(noise / n)


@pytest.mark.parametrize(
    ("d", "n_tokens", "batch", "sharpness", "step", "start", "n_runs"),
    [
        (5, 3, 2, 3.0, 1.0, "sphere", 6_000),
        (80, 10, 5, 18.0, 0.3, "manifold", 3_000),
        (10**9, 10, 3, 2.0, 0.3, 0.3, 3_000),
    ],
    ids=["small", "paper", "billion"],
)
def test_location(page, d, n_tokens, batch, sharpness, step, start, n_runs):
    n_steps, noise = 40, 0.5
    code = f"""() => ({{n: {n_runs},
      make: (run) => new LocationRun({{d: {d}, nTokens: {n_tokens},
        gamma: Math.SQRT1_2, noise: {noise}}}, {batch}, {json.dumps(start)}, 7, run),
      advance: (run) => {{
        for (let t = 0; t < {n_steps}; t++)
          run.step({sharpness / math.sqrt(d)} / (1 + t / 20),
                   {step / d} / (1 + t / 30));
        return run;
      }},
      look: (run) => run.order()}})"""
    seen = page.run(MOMENTS % code)
    begin = {"sphere": None}.get(start, [start, start, 0.0, 0.0, 0.0])
    if start == "manifold":
        begin = location_start(d, n_runs=n_runs, seed=1, on_manifold=True)
    paths = simulate_location(
        SingleLocation(d, n_tokens, noise=noise),
        inverse_temperature=lambda t: sharpness / math.sqrt(d) / (1 + t / 20),
        step_size=lambda t: step / d / (1 + t / 30),
        batch_size=batch,
        n_steps=n_steps,
        n_runs=n_runs,
        record_every=n_steps,
        seed=0,
        start=begin,
    )
    compare(seen, [paths.final(name) for name in paths])


@pytest.mark.parametrize(
    ("d", "n_informative", "n_nuisance", "strength", "beta", "n_steps", "n_runs"),
    [
        (3, 2, 6, 0.8, 0.7, 30, 8_000),
        (100, 5, 95, 0.25, 1.0, 40, 3_000),
        (10**9, 10, 90, 0.25, 10 / math.sqrt(10**9), 25, 3_000),
    ],
    ids=["small", "middle", "billion"],
)
def test_signal(page, d, n_informative, n_nuisance, strength, beta, n_steps, n_runs):
    law = SignalTokens(d, n_informative, n_nuisance, strength, inverse_temperature=beta)
    first = signal_steps(law).first
    if d == 3:
        first *= 5.0  # only large steps show the last length, of d - 3 coordinates
    # Also the square: the sign is free, and the mean says little by itself.
    code = f"""() => ({{n: {n_runs},
      make: (run) => new SignalRun({{d: {d}, nInformative: {n_informative},
        nNuisance: {n_nuisance}, strength: {strength}, beta: {beta}}}, 11, run),
      advance: (run) => {{
        for (let t = 0; t < {n_steps}; t++) run.step({first} / (1 + t / 20));
        return run;
      }},
      look: (run) => [run.t, run.t * run.t, Math.abs(run.t)]}})"""
    seen = page.run(MOMENTS % code)
    paths = simulate_signal(
        law,
        step_size=lambda t: first / (1 + t / 20),
        n_steps=n_steps,
        n_runs=n_runs,
        record_every=n_steps,
        seed=0,
    )
    t = paths.final("alignment")
    assert 0.05 < np.abs(t).mean() < 0.99  # neither at the start nor all arrived
    compare(seen, [t, t * t, np.abs(t)])


# A wrong number of degrees of freedom moves them by 0.1 of a deviation at d = 8.
PAIRS = {
    softmax_location: """new SoftmaxLocationRun({{d: {d}, nTokens: 5,
        gamma: Math.SQRT1_2, noise: 0.5}}, 2, 0.3, 7, run)""",
    two_heads: """new HeadsRun({{d: {d}, nTokens: 5, amplitude: 4, noise: 0.5}},
        2, [0.3, 0.3], 7, run)""",
}


@pytest.mark.parametrize("loss", PAIRS)
def test_softmax_heads(page, loss):
    n_runs, n_steps, model = 3_000, 40, declared(loss)
    with_heads = loss is two_heads
    start = dict(zip(ORDER, (0.3, 0.3, 0.0, 0.0, 0.0), strict=True))
    if with_heads:
        start |= {"v.key": 0.3, "k.value": 0.3, "k.v": 0.18}
    for d, scale, step in ((8, 0.8, 0.05), (10**9, 0.8, 0.5e-9)):
        if not with_heads and d > 8:
            scale = 2.0 / math.sqrt(d)
        code = f"""() => ({{n: {n_runs},
          make: (run) => {PAIRS[loss].format(d=d)},
          advance: (run) => {{
            for (let t = 0; t < {n_steps}; t++) run.step({scale}, {step});
            return run;
          }},
          look: (run) => run.order()}})"""
        seen = page.run(MOMENTS % code)
        paths = simulate(
            model,
            d=d,
            step_size=step,
            n_steps=n_steps,
            n_runs=n_runs,
            record_every=n_steps,
            batch_size=2,
            seed=0,
            parameters={"scale": scale, "noise": 0.5},
            start=start,
        )
        compare(seen, [paths.final(name) for name in ORDER])
        # The step is large enough to be seen.
        moved = [np.std(paths.final(name)) for name in ORDER]
        assert max(moved) > (0.05 if d == 8 else 1e-9)


@pytest.mark.parametrize("head", ["softmax", "linear"])
def test_pca(page, head):
    """Alignment and norm at d = 12, with five leading eigenvalues and a bulk."""
    d, n_tokens, n_runs, n_steps = 12, 6, 3_000, 30
    leading = [0.6**i for i in range(5)]
    values = [*leading, *[0.5 / (d - 5)] * (d - 5)]
    step, size = (0.1, 0.3) if head == "softmax" else (0.001, 0.1)
    start = np.full(d, 0.0)
    start[:6] = size  # the last one is the bulk's
    code = f"""() => ({{n: {n_runs},
      make: (run) => new PcaRun({{d: {d}, nTokens: {n_tokens},
        isSoftmax: {json.dumps(head == "softmax")},
        roots: {json.dumps(leading)}.map(Math.sqrt),
        bulk: Math.sqrt({values[-1]}), trace: {sum(values)}}},
        3, Array(6).fill({size}), 7, run),
      advance: (run) => {{
        for (let t = 0; t < {n_steps}; t++) run.step({step});
        return run;
      }},
      look: (run) => {{
        const mu = run.order(), norm = Math.hypot(...mu);
        return [Math.abs(mu[0]) / norm, norm];
      }}}})"""
    seen = page.run(MOMENTS % code)
    paths = simulate_pca(
        GaussianPrompts(np.diag(values), n_tokens=n_tokens),
        head=head,
        inverse_temperature=1.0,
        step_size=step,
        batch_size=3,
        n_steps=n_steps,
        n_runs=n_runs,
        record_every=n_steps,
        seed=0,
        start=start,
    )
    found = [paths.final("alignment"), paths.final("norm")]
    # Gradients of the linear head have heavy tails, and need small steps.
    assert min(np.std(one) for one in found) > (0.02 if head == "softmax" else 1e-3)
    compare(seen, found)


def test_a_run_depends_on_its_seed_and_number_alone(page):
    same = page.run(
        """(() => {
          const draw = (seed, run) => { const s = new Stream(seed, run);
            return [s.normal(), s.normal(), s.uniform(), s.chi(7)]; };
          return [draw(1, 2), draw(1, 2), draw(2, 1), draw(1, 3), draw(2, 2)]; })()"""
    )
    assert same[0] == same[1]
    assert len({tuple(row) for row in same}) == 4


def test_normals_and_chi_have_their_moments(page):
    # 4e6 draws; a tolerance is 5 standard errors, √(moment variance / n).
    n = 4_000_000
    seen = page.run(
        f"""(() => {{
          const s = new Stream(5, 0), z = new Float64Array(1000);
          let m1 = 0, m2 = 0, m4 = 0, far = 0, next = 0, before = 0;
          for (let i = 0; i < {n // 1000}; i++) {{ s.fill(z, 1000);
            for (const x of z) {{ m1 += x; m2 += x * x; m4 += x ** 4;
              far += Math.abs(x) > 3.5; next += x * before; before = x; }} }}
          let c = 0; for (let i = 0; i < 1e5; i++) c += s.chi(1e9) ** 2 / 1e9 - 1;
          return [m1, m2, m4, far, next, c]; }})()"""
    )
    m1, m2, m4, far, following, chi = seen
    assert abs(m1 / n) < 5 / math.sqrt(n)
    assert abs(m2 / n - 1) < 5 * math.sqrt(2 / n)
    assert abs(m4 / n - 3) < 5 * math.sqrt(96 / n)
    tail = math.erfc(3.5 / math.sqrt(2))
    assert abs(far / n - tail) < 5 * math.sqrt(tail / n)
    assert abs(following / n) < 5 / math.sqrt(n)
    assert abs(chi / 1e5) < 5 * math.sqrt(2 / 1e9 / 1e5)
