"""Every public callable, with hostile values in every argument.

The outcome must be a result that is finite or documented otherwise, or a sentence in
our grammar: never a crash, a hang, too much memory, or a finite number from NaN. The
calls start from right ones, those of the examples of the docstrings or of examples.py:
a public function or method without an example fails as well.
"""

import pytest
from tests.hostile.runner import Runner
from tests.hostile.worker import public_names

NAMES = public_names()
# Cases of each name in `make test`; `make test-all` has all of them.
SAMPLE = 8


@pytest.fixture(scope="module")
def runner():
    runner = Runner()
    yield runner
    runner.close()


def check(runner, name, sample):
    failures = runner.failures(name, sample)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_hostile_calls(runner, name):
    check(runner, name, SAMPLE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_all_hostile_calls(runner, name):
    check(runner, name, None)
