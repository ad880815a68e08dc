"""verify accepts right models and shows wrong ones."""

import pytest
from tests.models import declared_models as declared

from eigenheads.models import verify


@pytest.mark.parametrize(
    "name", ["location_model", "two_heads_model", "clustering_model"]
)
def test_declared_models_pass(name):
    outcome = verify(getattr(declared, name)(), d=8, n_runs=120)
    assert outcome.passed, str(outcome)
    assert str(outcome).count("ok") == 3


def test_a_wrong_law_and_a_wrong_gradient_fail(monkeypatch):
    model = declared.location_model()
    model.compiled  # noqa: B018 -- generated from the declaration as it is now
    # The loss on real vectors is another one than the compiled.
    honest = model.loss
    monkeypatch.setattr(model, "loss", lambda *sample: 2.0 * honest(*sample))
    outcome = verify(model, n_runs=120)
    assert not outcome.passed
    assert outcome.gradient_error > 0.1
    assert outcome.p_value < 1e-3
    assert "FAILED" in str(outcome)


def test_bad_input_gets_a_sentence():
    with pytest.raises(TypeError, match="verify: `model` must be a Model"):
        verify("location")
    with pytest.raises(ValueError, match="verify: `d` must be an integer from 4"):
        verify(declared.location_model(), d=3)
