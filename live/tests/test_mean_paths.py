"""Mean paths and bands of the page against the mean dynamics of declared models.

The two sides share nothing: the page integrates softmax weights by quadrature and takes
the noise from 256 fixed prompts; ``mean_dynamics`` averages gradients that are traced
from the loss, over new samples at each evaluation.
"""

import json
import math

import numpy as np
import pytest
from live.tests.page_models import (
    ORDER,
    declared,
    declared_pca,
    softmax_location,
    two_heads,
)

from eigenheads.models import mean_dynamics

pytestmark = pytest.mark.browser

# Follows the mean path and returns the overlaps at each record, and the deviations of
# the band at the last one.
PATH = """(() => {
  const setup = %s, step = %s, rows = [];
  let order = %s;
  for (let t = 0; t < %d; t++) {
    if (t %% %d === 0) rows.push([...order].slice(0, %d));
    order = step(order, t, setup);
  }
  rows.push([...order].slice(0, %d));
  const band = order.memo?.wander;
  return [rows, band && rows[0].map((_, i) => band.deviation(i))];
})()"""


def followed(page, setup, step, order, n_steps, every):
    size = len(order)
    code = PATH % (setup, step, json.dumps(order), n_steps, every, size, size)
    rows, deviations = page.run(code)
    return np.array(rows), deviations


def close(seen, expected, share):
    """Assert that curves (records, overlaps) differ by a share of what they move."""
    moved = np.ptp(expected, axis=0).max()
    assert moved > 0.1
    assert np.abs(seen - expected).max() < share * moved


# Off the manifold at d = 30, where the terms of noise are large, and on it at d = 200.
@pytest.mark.parametrize(
    ("d", "scale", "step", "start"),
    [
        (30, 1.2, 0.1, (0.3, 0.2, 0.1, -0.1, 0.2)),
        (200, 0.4, 0.2, (0.3, 0.3, 0.0, 0.0, 0.0)),
    ],
)
def test_softmax_location(page, d, scale, step, start):
    n_steps, batch = 10 * d, 2
    paths = mean_dynamics(
        declared(softmax_location),
        d=d,
        step_size=step / d,
        n_steps=n_steps,
        record_every=n_steps // 5,
        batch_size=batch,
        parameters={"scale": scale, "noise": 0.5},
        start=dict(zip(ORDER, start, strict=True)),
        n_samples=4_000,
        stride=2,  # the risk is steep in v·k*, with a curvature of order d
    )
    setup = f"""{{...softmaxHead, law: {{d: {d}, nTokens: 5, gamma: Math.SQRT1_2,
      noise: 0.5}}, batch: {batch}, isSoftmax: true, lambda: () => {scale},
      step: () => {step / d}}}"""
    step_theory = "(...all) => systems.location.stepTheory(...all)"
    seen, _ = followed(page, setup, step_theory, start, n_steps, n_steps // 5)
    expected = np.stack([paths[name][0] for name in ORDER], axis=1)
    close(seen, expected, 0.03)  # the page holds the noise for 256 updates


def test_two_heads(page):
    """While the heads part; the band there, where small differences grow."""
    d, scale, step, n_steps, batch = 2000, 0.8, 1.0, 5000, 4
    start = (0.32, 0.32, 0.3, 0.3, 0.192)
    paths = mean_dynamics(
        declared(two_heads),
        d=d,
        step_size=step / d,
        n_steps=n_steps,
        record_every=1000,
        batch_size=batch,
        parameters={"scale": scale, "noise": 0.5},
        start=dict(zip(ORDER, start, strict=True)),
        band=True,
        n_samples=8_000,
    )
    setup = f"""{{law: {{d: {d}, nTokens: 5, amplitude: 4, noise: 0.5}},
      batch: {batch}, lambda: {scale}, step: () => {step / d}, hold: () => 20}}"""
    seen, deviations = followed(page, setup, "headsStep", start, n_steps, 1000)
    expected = np.stack([paths[name][0] for name in ORDER], axis=1)
    assert expected[-1, 0] - expected[-1, 2] > 5 * (start[0] - start[2])
    close(seen, expected, 0.03)
    spread = [paths[f"{name}_deviation"][0, -1] for name in ORDER]
    np.testing.assert_allclose(deviations, spread, rtol=0.15)


def test_pca(page):
    """The bulk gains length by noise alone: without its term this fails.

    ``mean_dynamics`` counts the variance along the two eigenvectors as length of the
    bulk. It is 1/50 of the noise here, by the ratio of the eigenvalues to their sum in
    the bulk.
    """
    d, leading, bulk, n_tokens, batch = 1002, (1.0, 0.5), 0.05, 4, 3
    step, n_steps, start = 0.002, 200, (0.3, 0.3, 0.2)
    paths = mean_dynamics(
        declared_pca(leading, bulk, n_tokens),
        d=d,
        step_size=step,
        n_steps=n_steps,
        record_every=40,
        batch_size=batch,
        start={"mu.u1": 0.3, "mu.u2": 0.3, "mu.mu": 0.09 + 0.09 + 0.04},
        n_samples=20_000,
    )
    law = {
        "d": d,
        "nTokens": n_tokens,
        "isSoftmax": True,
        "roots": [math.sqrt(value) for value in leading],
        "bulk": math.sqrt(bulk),
        "trace": sum(leading) + (d - 2) * bulk,
    }
    setup = f"""{{law: {json.dumps(law)}, batch: {batch}, step: () => {step},
      table: new PcaTable({n_tokens}, true), hold: () => 2}}"""
    seen, _ = followed(page, setup, "pcaStep", start, n_steps, 40)
    one, two, square = (paths[f"mu.{name}"][0] for name in ("u1", "u2", "mu"))
    rest = np.sqrt(square - one**2 - two**2)
    close(seen, np.stack([one, two, rest], axis=1), 0.03)
