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
from eigenheads import datasets, dynamics, estimators, models
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
{prepare}
began = time.process_time()
{work}
seconds = time.process_time() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([seconds, peak]))
"""
BAGS = "X, y, _ = datasets.SingleLocation(d={d}, n_tokens={n_tokens}).sample({n}, rng)"
ROWS = "X = rng.standard_normal(({n}, {d})); X[:, 0] *= 3"
FEW_STEPS = "n_runs=1_000_000, n_steps=10, record_every=10, step_size=0.01, seed=0"
DECLARED = """
def line(X, w, u, g, p):
    return (X[0] @ w.k - X[0] @ u.key) ** 2
model = models.Model(
    line, weights={"k": "free"}, planted=("key",), tokens=models.Token()
)
"""
REGRESS = "estimators.SingleLocationRegressor().fit(X, y)"
CLASSIFY = "estimators.SingleLocationClassifier().fit(X, y > 0)"
SIGNAL = "estimators.SignalDirection(random_state=0).fit(X)"
# What is prepared, what is measured, largest processor time (s) and memory (MiB). The
# limits are about five times what one quiet core takes.
CASES = {
    "regressor, 1e5 bags and 1e6 tokens": (
        BAGS.format(d=10, n_tokens=10, n=100_000), REGRESS, 300, 2500,
    ),
    "regressor, d = 5000": (
        BAGS.format(d=5000, n_tokens=20, n=60), REGRESS, 120, 2500,
    ),
    "classifier, 1e5 bags and 1e6 tokens": (
        BAGS.format(d=10, n_tokens=10, n=100_000), CLASSIFY, 400, 2500,
    ),
    "classifier, d = 5000": (
        BAGS.format(d=5000, n_tokens=20, n=60), CLASSIFY, 120, 2500,
    ),
    "AttentionPCA, 1e6 rows": (
        ROWS.format(n=1_000_000, d=10), "estimators.AttentionPCA(1).fit(X)", 120, 2500,
    ),
    "AttentionPCA, d = 5000": (
        ROWS.format(n=300, d=5000), "estimators.AttentionPCA(1).fit(X)", 120, 2500,
    ),
    "RobustPCA, 1e5 rows": (
        ROWS.format(n=100_000, d=10), "estimators.RobustPCA(2).fit(X)", 120, 2500,
    ),
    "RobustPCA, d = 5000": (
        ROWS.format(n=300, d=5000), "estimators.RobustPCA(2).fit(X)", 200, 2500,
    ),
    "SignalDirection, 1e6 tokens": (
        ROWS.format(n=1_000_000, d=10), SIGNAL, 600, 3500,
    ),
    "SignalDirection, d = 5000": (
        "X = rng.standard_normal((60, 20, 5000))", SIGNAL, 100, 2500,
    ),
    "TokenScreen, 1e6 tokens": (
        "X = rng.standard_normal((100_000, 10, 8))",
        "estimators.TokenScreen(4).fit(X).predict(X)", 120, 2500,
    ),
    "TokenScreen, d = 5000": (
        "X = rng.standard_normal((200, 5, 5000))",
        "estimators.TokenScreen(4).fit(X).predict(X)", 200, 2500,
    ),
    "regressor over penalties, 1e5 bags": (
        BAGS.format(d=10, n_tokens=10, n=100_000),
        "estimators.SingleLocationRegressorCV().fit(X, y)", 900, 3500,
    ),
    "classifier over penalties, 1e5 bags": (
        BAGS.format(d=10, n_tokens=10, n=100_000),
        "estimators.SingleLocationClassifierCV().fit(X, y > 0)", 900, 3500,
    ),
    "mean pooling, 1e5 bags": (
        BAGS.format(d=10, n_tokens=10, n=100_000),
        "estimators.PooledBagRegressor().fit(X, y)", 120, 2500,
    ),
    "group_bags, 1e6 rows into 1e5 bags": (
        "X = rng.standard_normal((1_000_000, 10)); "
        "groups = rng.integers(100_000, size=1_000_000)",
        "estimators.group_bags(X, groups)", 60, 2500,
    ),
    "simulate_location, 1e6 runs": (
        "law = datasets.SingleLocation(d=100, n_tokens=10)",
        f"dynamics.simulate_location(law, {FEW_STEPS}, inverse_temperature=1.0, "
        "batch_size=1)",
        300, 4000,
    ),
    "simulate_pca, 1e6 runs": (
        "law = datasets.GaussianPrompts(np.diag([3.0, 1.0, 0.5]), 10)",
        f"dynamics.simulate_pca(law, {FEW_STEPS}, inverse_temperature=1.0, "
        "batch_size=1)",
        600, 5000,
    ),
    "simulate_signal, 1e6 runs": (
        "law = datasets.SignalTokens(d=100, n_informative=2, n_nuisance=6, "
        "strength=0.5)",
        f"dynamics.simulate_signal(law, {FEW_STEPS})", 300, 4000,
    ),
    "models.simulate, 1e6 runs": (
        DECLARED, f"models.simulate(model, d=100, {FEW_STEPS})", 400, 5000,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_a_large_input_takes_what_is_stated(name, record_property):
    prepare, work, most_seconds, most_memory = CASES[name]
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE.format(prepare=prepare, work=work)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    seconds, memory = json.loads(ended.stdout.splitlines()[-1])
    record_property("seconds", seconds)
    sys.stdout.write(f"{name}: {seconds:.1f} s of one core, {memory:.0f} MiB\n")
    assert seconds < most_seconds
    assert memory < most_memory


# More runs, or runs in more dimensions, than the working memory holds.
REFUSED = {
    "location, too many runs": (
        "dynamics.simulate_location(LOCATION, n_runs=10**7, inverse_temperature=1.0, "
        "batch_size=1, **OPTIONS)",
        "`n_runs` must be an integer",
    ),
    "location, real vectors": (
        "dynamics.simulate_location(LOCATION, n_runs=10**6, inverse_temperature=1.0, "
        "batch_size=1, method='full', **OPTIONS)",
        "`n_runs` must be so small",
    ),
    "PCA, prompts of one covariance": (
        "dynamics.simulate_pca(GAUSSIAN, n_runs=10**6, head='linear', "
        "inverse_temperature=1.0, batch_size=1, **OPTIONS)",
        "`n_runs` must be at most 268435, because each run keeps 1000 numbers",
    ),
    "PCA, a covariance per prompt": (
        "dynamics.simulate_pca(WISHART, n_runs=10**6, head='linear', "
        "inverse_temperature=1.0, batch_size=1, **OPTIONS)",
        "`n_runs` must be at most 26577, because each run keeps 10100 numbers",
    ),
    "starts of PCA": (
        "dynamics.pca_start(10**9, n_runs=1, seed=0)",
        "`n_runs` must be at most 0, because",
    ),
    "signal, real vectors": (
        "dynamics.simulate_signal(SIGNAL, n_runs=10**6, batch_size=1, method='full', "
        "**OPTIONS)",
        "Use method='exact'.",
    ),
    "a declared model, real vectors": (
        "models.simulate(MODEL, d=1000, n_runs=10**6, batch_size=1, method='full', "
        "**OPTIONS)",
        "Use method='exact'.",
    ),
}
OPTIONS = {"n_steps": 10, "record_every": 10, "step_size": 0.01, "seed": 0}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_said_beforehand(name):
    import numpy as np

    from eigenheads import datasets, dynamics, models

    def line(X, w, u, g, p):
        return (X[0] @ w.k - X[0] @ u.key) ** 2

    call, sentence = REFUSED[name]
    scope = {
        "dynamics": dynamics,
        "models": models,
        "OPTIONS": OPTIONS,
        "LOCATION": datasets.SingleLocation(d=1000, n_tokens=10),
        "GAUSSIAN": datasets.GaussianPrompts(np.diag(np.arange(1000.0, 0.0, -1.0)), 5),
        "WISHART": datasets.SpikedWishartPrompts(
            d=100, n_tokens=5, degrees_of_freedom=200
        ),
        "SIGNAL": datasets.SignalTokens(
            d=1000, n_informative=2, n_nuisance=6, strength=0.5
        ),
        "MODEL": models.Model(
            line, weights={"k": "free"}, planted=("key",), tokens=models.Token()
        ),
    }
    with pytest.raises(ValueError, match=sentence):
        eval(call, scope)
