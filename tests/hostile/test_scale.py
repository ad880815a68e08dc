"""Large inputs finish within stated processor time and memory, or are refused at once.

Each case runs in a process of its own, which reports what it took. `pytest -m slow -rP
tests/hostile/test_scale.py` prints the measurements.
"""

import json
import os
import subprocess
import sys

import pytest

MEASURE = """
import json, resource, sys, time, warnings
import numpy as np
from eigenheads import datasets, estimators, models
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
{prepare}
began = time.process_time()
{work}
seconds = time.process_time() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([seconds, peak]))
"""
BAGS = "X, y, _ = datasets.SingleLocation(10, 10).sample(100_000, rng)"
WIDE_BAGS = "X, y, _ = datasets.SingleLocation(5000, 20).sample(60, rng)"
ROWS = "X = rng.standard_normal(({}, {})); X[:, 0] *= 3"
LONG, WIDE = ROWS.format(1_000_000, 10), ROWS.format(300, 5000)
RUNS = "n_runs=1_000_000, n_steps=10, record_every=10, step_size=0.01, seed=0"
LOCATION = "law = datasets.SingleLocation(d=100, n_tokens=10)"
PCA = "law = datasets.GaussianPrompts(np.diag([3.0, 1.0, 0.5]), 10)"
SIGNAL = "law = datasets.SignalTokens(100, n_informative=2, n_nuisance=6, strength=0.5)"
GROUPS = f"{LONG}; groups = rng.integers(100_000, size=1_000_000)"
HEAD = "inverse_temperature=1.0, batch_size=1"
DECLARED = """
def line(X, w, u, g, p):
    return (X[0] @ w.k - X[0] @ u.key) ** 2
model = models.Model(
    line, weights={"k": "free"}, planted=("key",), tokens=models.Token()
)
"""
# What is prepared, what is measured, largest processor time (s) and memory (MiB). The
# limits are about five times what one quiet core takes.
CASES = [
    (BAGS, "estimators.SingleLocationRegressor().fit(X, y)", 300, 2500),
    (WIDE_BAGS, "estimators.SingleLocationRegressor().fit(X, y)", 120, 2500),
    (BAGS, "estimators.SingleLocationClassifier().fit(X, y > 0)", 400, 2500),
    (WIDE_BAGS, "estimators.SingleLocationClassifier().fit(X, y > 0)", 120, 2500),
    (BAGS, "estimators.SingleLocationRegressorCV().fit(X, y)", 900, 3500),
    (BAGS, "estimators.SingleLocationClassifierCV().fit(X, y > 0)", 900, 3500),
    (BAGS, "estimators.PooledBagRegressor().fit(X, y)", 120, 2500),
    (GROUPS, "estimators.group_bags(X, groups)", 60, 2500),
    (LONG, "estimators.AttentionPCA(1).fit(X)", 120, 2500),
    (WIDE, "estimators.AttentionPCA(1).fit(X)", 120, 2500),
    (ROWS.format(100_000, 10), "estimators.RobustPCA(2).fit(X)", 120, 2500),
    (WIDE, "estimators.RobustPCA(2).fit(X)", 200, 2500),
    (LONG, "estimators.SignalDirection(random_state=0).fit(X)", 600, 3500),
    (WIDE_BAGS, "estimators.SignalDirection(random_state=0).fit(X)", 100, 2500),
    (BAGS, "estimators.TokenScreen(4).fit(X).predict(X)", 120, 2500),
    (WIDE_BAGS, "estimators.TokenScreen(4).fit(X).predict(X)", 200, 2500),
    (LOCATION, f"models.simulate_location(law, {RUNS}, {HEAD})", 300, 4000),
    (PCA, f"models.simulate_pca(law, {RUNS}, {HEAD})", 600, 5000),
    (SIGNAL, f"models.simulate_signal(law, {RUNS})", 300, 4000),
    (DECLARED, f"models.simulate(model, d=100, {RUNS})", 400, 5000),
]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("prepare", "work", "most_seconds", "most_memory"), CASES)
def test_a_large_input_takes_what_is_stated(prepare, work, most_seconds, most_memory):
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE.format(prepare=prepare, work=work)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    seconds, memory = json.loads(ended.stdout.splitlines()[-1])
    sys.stdout.write(
        f"{prepare}; {work}: {seconds:.1f} s of one core, {memory:.0f} MiB\n"
    )
    assert seconds < most_seconds
    assert memory < most_memory


# More runs, or runs in more dimensions, than the working memory holds.
FEW = "n_steps=10, record_every=10, step_size=0.01, seed=0"
MANY = f"n_runs=10**6, {FEW}"
TO_LOCATE = "law = datasets.SingleLocation(d=1000, n_tokens=10)"
GAUSSIAN = "law = datasets.GaussianPrompts(np.diag(np.arange(1000.0, 0.0, -1.0)), 5)"
WISHART = "law = datasets.SpikedWishartPrompts(100, 5, degrees_of_freedom=200)"
IN_SIGNAL = SIGNAL.replace("100,", "1000,")
REFUSED = [
    (
        TO_LOCATE,
        f"models.simulate_location(law, n_runs=10**7, {HEAD}, {FEW})",
        "`n_runs` must be an integer",
    ),
    (
        TO_LOCATE,
        f"models.simulate_location(law, {HEAD}, method='full', {MANY})",
        "`n_runs` must be so small",
    ),
    (
        GAUSSIAN,
        f"models.simulate_pca(law, head='linear', {HEAD}, {MANY})",
        "`n_runs` must be at most 268435, because each run keeps 1000 numbers",
    ),
    (
        WISHART,
        f"models.simulate_pca(law, head='linear', {HEAD}, {MANY})",
        "`n_runs` must be at most 26577, because each run keeps 10100 numbers",
    ),
    (
        "",
        "models.pca_start(10**9, n_runs=1, seed=0)",
        "`n_runs` must be at most 0, because",
    ),
    (
        IN_SIGNAL,
        f"models.simulate_signal(law, batch_size=1, method='full', {MANY})",
        "Use method='exact'.",
    ),
    (
        DECLARED,
        f"models.simulate(model, d=1000, batch_size=1, method='full', {MANY})",
        "Use method='exact'.",
    ),
]


@pytest.mark.parametrize(("prepare", "call", "sentence"), REFUSED)
def test_what_does_not_fit_is_said_beforehand(prepare, call, sentence):
    import numpy as np

    from eigenheads import datasets, models

    scope = {"np": np, "datasets": datasets, "models": models}
    exec(prepare, scope)
    with pytest.raises(ValueError, match=sentence):
        eval(call, scope)
