"""Large inputs finish within stated processor time and memory, or are refused at once.

Each case runs in a process of its own, which reports what it took. `pytest -m slow -rP
tests/hostile/test_scale.py` prints the measurements.
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

MEASURE = """
import json, resource, sys, time, warnings
import numpy as np
from eigenheads import datasets, dynamics, estimators
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
RUNS = "law = datasets.SingleLocation(d=100, n_tokens=10)"
SIMULATE = (
    "dynamics.simulate_location(law, n_runs={n}, n_steps=10, record_every=10, "
    "step_size=0.01, inverse_temperature=1.0, batch_size=1, seed=0)"
)
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
    "1e6 runs of a simulation": (RUNS, SIMULATE.format(n=1_000_000), 300, 4000),
}  # fmt: skip


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


REFUSED = {
    "runs": ("n_runs=10**7, d=100, method='exact'", "`n_runs` must be an integer"),
    "real vectors": (
        "n_runs=10**5, d=10**6, method='full'",
        "`n_runs` must be so small",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_said_beforehand(name):
    from eigenheads.datasets import SingleLocation
    from eigenheads.dynamics import simulate_location

    options = eval(f"dict({REFUSED[name][0]})")
    law = SingleLocation(d=options.pop("d"), n_tokens=10)
    with pytest.raises(ValueError, match=REFUSED[name][1]):
        simulate_location(
            law,
            n_steps=10,
            record_every=10,
            step_size=0.01,
            inverse_temperature=1.0,
            batch_size=1,
            seed=0,
            **options,
        )
