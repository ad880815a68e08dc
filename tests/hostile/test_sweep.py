"""Every public callable, with hostile values in every argument.

The outcome must be a result that is finite or documented otherwise, or a sentence in
our grammar: never a crash, a hang, too much memory, or a finite number from NaN.
"""

import pytest
from tests.hostile.runner import Runner
from tests.hostile.worker import public_names

NAMES = public_names()


@pytest.fixture(scope="module")
def runner():
    runner = Runner()
    yield runner
    runner.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_hostile_calls(runner, name):
    failures = runner.failures(name, sample=20)
    assert not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_all_hostile_calls(runner, name):
    failures = runner.failures(name)
    assert not failures, "\n".join(failures)
