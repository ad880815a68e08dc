"""The two attacks that only this paper has: nearest points, kept budgets, names."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from eigenheads.extend.models import margin  # noqa: E402
from eigenheads.robustness import (  # noqa: E402
    ATTACKS,
    evaluate_robustness,
    uniform_noise,
)
from eigenheads_papers.teo2024.attacks import (  # noqa: E402
    PAPERS_ATTACKS,
    carlini_wagner,
    project_l1,
    sparse_l1_descent,
)

pytestmark = pytest.mark.torch


def images(n):
    generator = torch.Generator().manual_seed(0)
    return 0.2 + 0.6 * torch.rand(n, 1, 6, 6, generator=generator, dtype=torch.double)


def test_carlini_and_wagner_find_the_nearest_point_of_a_linear_model():
    """The nearest fooling point is |margin| / ‖w_other - w_y‖₂ away."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double()
    x = images(30)
    y = model(x).argmax(1)
    weight = model[1].weight.detach()
    nearest = -margin(model(x), y).detach() / (weight[1 - y] - weight[y]).norm(dim=1)
    found = carlini_wagner(model, x, y, weight=20.0, n_steps=2000, learning_rate=0.003)
    fooled = model(found).argmax(1) != y
    distance = (found - x).flatten(1).norm(dim=1)
    assert fooled.all()
    assert (distance >= nearest - 1e-9).all()
    assert (distance <= 1.05 * nearest + 0.02).all()
    assert all(p.grad is None for p in model.parameters())
    short = carlini_wagner(
        model, x, y, weight=20.0, n_steps=300, max_distance=1e-3, learning_rate=0.01
    )
    assert ((short - x).flatten(1).norm(dim=1) <= 1e-3).all()


def test_the_projection_onto_sums_is_the_nearest_point():
    rng = np.random.default_rng(0)
    change = torch.from_numpy(rng.standard_normal((50, 12)))
    found = project_l1(change, 2.0)
    assert (found.abs().sum(1) <= 2 + 1e-9).all()
    inside = change.abs().sum(1) <= 2
    torch.testing.assert_close(found[inside], change[inside])
    # No point of the ball is nearer: <change - found, other - found> <= 0.
    for _ in range(50):
        other = project_l1(torch.from_numpy(rng.standard_normal((50, 12))), 2.0)
        assert (((change - found) * (other - found)).sum(1) <= 1e-9).all()


def test_sparse_descent_keeps_its_sum_and_changes_few_entries():
    torch.manual_seed(0)
    layers = nn.Linear(36, 32), nn.Tanh(), nn.Linear(32, 4)
    model, x = nn.Sequential(nn.Flatten(), *layers).double(), images(100)
    y = model(x).argmax(1)
    found = sparse_l1_descent(model, x, y, budget=1.0, share=0.03)
    change = (found - x).flatten(1)
    assert (change.abs().sum(1) <= 1 + 1e-9).all()
    assert ((change.abs() > 1e-9).sum(1) <= 20).all()
    generator = torch.Generator().manual_seed(0)
    noise = uniform_noise(model, x, y, budget=255 / 36, generator=generator)
    fooled, at_random = (
        (model(z).argmax(1) != y).double().mean() for z in (found, noise)
    )
    assert fooled > at_random + 0.2  # noise of the same expected sum, or more


def test_the_library_takes_the_functions_and_says_where_the_names_are():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()
    x = images(6)
    data = (x, model(x).argmax(1))
    found = evaluate_robustness(
        model, data, corruptions=[], attacks={"carlini-wagner": carlini_wagner}
    )
    assert found.select(condition="carlini-wagner")[0].value <= 1
    assert not set(PAPERS_ATTACKS) & set(ATTACKS)
    for name, function in PAPERS_ATTACKS.items():
        sentence = f"Pass {function.__name__} of eigenheads_papers.teo2024.attacks"
        with pytest.raises(ValueError, match=sentence):
            evaluate_robustness(model, data, attacks=[name])
