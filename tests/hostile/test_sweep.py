"""Every public callable, with hostile values in every argument.

The outcome must be a result that is finite or documented otherwise, or a sentence in
our grammar: never a crash, a hang, too much memory, or a finite number from NaN. The
calls start from the examples of the docstrings, so that new public names are swept
without an entry here.
"""

import pytest
from tests.hostile.runner import Runner
from tests.hostile.worker import public_names

# Packages whose sentences are not all in our grammar yet. Only crashes, hangs and lack
# of memory fail there.
NOT_YET = ("adapters", "datasets", "dynamics", "estimators", "experiments", "nn")
NOT_YET += ("probes", "recipes", "report", "robustness", "theory")
NAMES = public_names()
# In the other packages models are loaded or code is compiled, which takes minutes.
QUICK = [
    one for one in NAMES if one.startswith(("functional", "nn", "probes", "theory"))
]


@pytest.fixture(scope="module")
def runner():
    runner = Runner()
    yield runner
    runner.close()


def check(runner, name, sample):
    failures = runner.failures(name, sample)
    if name.startswith(NOT_YET):
        failures = [one for one in failures if ": died" in one or ": no end" in one]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", QUICK)
def test_a_sample_of_hostile_calls(runner, name):
    check(runner, name, 20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_all_hostile_calls(runner, name):
    check(runner, name, None)
