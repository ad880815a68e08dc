"""Attacks keep their budget, do harm, and meet the closed form on linear models."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from eigenheads.robustness import (  # noqa: E402
    apgd,
    fgsm,
    pgd,
    spsa,
    square,
    uniform_noise,
)
from eigenheads.robustness._attack_input import margin  # noqa: E402

pytestmark = pytest.mark.torch
ATTACKS = {"fgsm": fgsm, "pgd": pgd, "spsa": spsa, "square": square}


def network(seed=0, classes=4):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 32), nn.Tanh(), nn.Linear(32, classes)
    ).double()


def linear(seed=0):
    """Two classes, so that the worst point of the ball is x - r sign(w_y - w_other)."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double()


def images(n=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 0.2 + 0.6 * torch.rand(n, 1, 6, 6, generator=generator, dtype=torch.double)


def run(name, model, x, y, budget, **options):
    if name != "fgsm":
        options["generator"] = torch.Generator().manual_seed(3)
    return ATTACKS[name](model, x, y, budget=budget, **options)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("budget", [0.5, 8.0, 200.0])
def test_within_budget_and_bounds(name, budget):
    model, x = network(), images()
    y = model(x).argmax(1)
    found = run(name, model, x, y, budget)
    assert found.shape == x.shape
    assert not found.requires_grad
    assert (found - x).abs().max() <= budget / 255 + 1e-12
    assert found.min() >= 0
    assert found.max() <= 1
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ATTACKS)
def test_harm_beats_random_noise_of_the_same_size(name):
    """Every attack lowers the margin by more than the best of 20 random corners."""
    model, x = network(), images()
    y = model(x).argmax(1)
    corners = [
        margin(model(x + 8 / 255 * torch.randn_like(x).sign()), y) for _ in range(20)
    ]
    best = torch.stack(corners).max(0).values
    found = margin(model(run(name, model, x, y, 8)), y)
    fooled = found > 0  # Square stops there
    assert ((found > best) | fooled).double().mean() >= 0.95
    clean = F.cross_entropy(model(x), y)
    assert F.cross_entropy(model(run(name, model, x, y, 8)), y) > clean


def test_fgsm_is_one_step_of_pgd():
    model, x = network(), images()
    y = model(x).argmax(1)
    one = pgd(model, x, y, budget=4, n_steps=1, step_size=4, random_start=False)
    torch.testing.assert_close(one, fgsm(model, x, y, budget=4), rtol=0, atol=1e-15)


@pytest.mark.parametrize("budget", [2.0, 16.0])
def test_linear_model_closed_form(budget):
    """The least margin over the ball is m + r ‖w_other - w_y‖₁, and is attained."""
    model, x = linear(), images()
    y = model(x).argmax(1)
    weight = model[1].weight
    gap = (weight[1 - y] - weight[y]).detach()
    worst = margin(model(x), y).detach() + budget / 255 * gap.abs().sum(1)
    for name in ("fgsm", "pgd"):
        found = margin(model(run(name, model, x, y, budget)), y).detach()
        torch.testing.assert_close(found, worst, rtol=1e-9, atol=1e-12)
    for name, options in (("spsa", {"n_samples": 64}), ("square", {"n_queries": 400})):
        found = margin(model(run(name, model, x, y, budget, **options)), y).detach()
        assert (found <= worst + 1e-12).all()
        clean = margin(model(x), y).detach()
        # Blind, with enough queries, both come near the bound (Square stops once it
        # has fooled the model).
        near = ((found - clean) / (worst - clean) > 0.9) | (found > 0)
        assert near.double().mean() >= 0.95


def test_more_steps_and_larger_budgets_do_more_harm():
    model, x = network(1), images()
    y = model(x).argmax(1)
    loss = [
        F.cross_entropy(model(run("pgd", model, x, y, b)), y).item() for b in (1, 4, 16)
    ]
    assert loss == sorted(loss)
    weak, strong = (
        margin(model(run("square", model, x, y, 8, n_queries=n)), y).mean()
        for n in (1, 300)
    )
    assert strong > weak


def test_square_leaves_fooled_images_and_draws_by_its_generator():
    model, x = network(), images()
    wrong = (model(x).argmax(1) + 1) % 4
    first = square(
        model, x, wrong, budget=0.01, generator=torch.Generator().manual_seed(0)
    )
    again = square(
        model, x, wrong, budget=0.01, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    # The stripes only: constant along columns.
    assert ((first - x).std(dim=-2) < 1e-12).all()


def test_bounds_scale_the_budget():
    model, x = network(), images()
    y = model(x).argmax(1)
    wide = fgsm(model, x, y, budget=1, bounds=(-1.0, 1.0))
    assert torch.allclose((wide - x).abs().max(), torch.tensor(2 / 255).double())


@pytest.mark.parametrize("name", ATTACKS)
def test_bad_budgets_are_named(name):
    with pytest.raises(ValueError, match=f"{name}: `budget` must be"):
        run(name, network(), images(2), torch.zeros(2, dtype=torch.long), -1)


@pytest.mark.parametrize("loss", ["ce", "dlr"])
def test_apgd_keeps_its_budget_and_is_as_strong_as_pgd(loss):
    model, x = network(), images(200)
    y = model(x).argmax(1)
    generator = torch.Generator().manual_seed(0)
    for budget in (4, 8, 16):
        found = apgd(model, x, y, budget=budget, loss=loss, generator=generator)
        assert (found - x).abs().max() <= budget / 255 + 1e-12
        assert found.min() >= 0
        assert found.max() <= 1
        fooled = (model(found).argmax(1) != y).double().mean()
        other = pgd(model, x, y, budget=budget, n_steps=50, generator=generator)
        assert fooled >= (model(other).argmax(1) != y).double().mean() - 0.01


def test_apgd_by_logit_ratios_does_not_mind_the_scale_of_the_logits():
    """Cross-entropy has no gradient left where logits are huge; the ratio has."""
    model, x = network(), images(100)
    y = model(x).argmax(1)

    def sharp(x):
        return 1e5 * model(x)

    options = {"budget": 24, "n_steps": 30}
    found = {
        loss: (
            model(
                apgd(
                    sharp,
                    x.float().double(),
                    y,
                    loss=loss,
                    generator=torch.Generator().manual_seed(0),
                    **options,
                )
            ).argmax(1)
            != y
        )
        .double()
        .mean()
        for loss in ("ce", "dlr")
    }
    assert found["dlr"] > found["ce"] + 0.1


def test_noise_is_uniform_and_the_worst_of_several_draws_is_worse():
    model, x = network(), images(300)
    y = model(x).argmax(1)
    one, many = (
        uniform_noise(
            model, x, y, budget=8, n_draws=n, generator=torch.Generator().manual_seed(0)
        )
        for n in (1, 20)
    )
    change = 255 / 8 * (one - x)
    assert change.abs().max() <= 1
    assert abs(change.square().mean() - 1 / 3) < 0.02
    assert (many - x).abs().max() <= 8 / 255 + 1e-12
    assert margin(model(many), y).mean() > margin(model(one), y).mean()


def test_budgets_per_channel_are_kept():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 3)).double()
    x = images(20).expand(-1, 3, -1, -1).contiguous()
    y = model(x).argmax(1)
    budget = torch.tensor([1.0, 4.0, 0.0]).double().view(3, 1, 1)
    for attack in (fgsm, pgd, apgd, spsa, square, uniform_noise):
        change = 255 * (attack(model, x, y, budget=budget) - x).abs()
        largest = change.amax((0, 2, 3))
        assert (largest <= torch.tensor([1.0, 4.0, 0.0]) + 1e-6).all()
        assert largest[1] > 2


def test_autoattack_is_that_of_a_package(monkeypatch):
    """It gets budget, seed and classes; without it the error says what to do."""
    import sys
    from types import ModuleType, SimpleNamespace

    from eigenheads.robustness import evaluate_robustness

    seen = []

    class AutoAttack:
        def __init__(self, model, *, eps, seed, device):
            seen.append((eps, seed))
            self.apgd_targeted, self.fab = SimpleNamespace(), SimpleNamespace()
            self.model, self.eps = model, eps

        def run_standard_evaluation(self, x, y, batch_size):
            assert self.apgd_targeted.n_target_classes == 3
            assert self.fab.n_target_classes == 3
            return x - 2 * self.eps, y  # beyond the budget: it is brought back

    torch.manual_seed(0)
    images, classes = torch.full((3, 1, 2, 2), 0.5), torch.tensor([1, 1, 1])

    def read(x):
        """The second of four classes is right while the image is bright enough."""
        logits = torch.zeros(len(x), 4) - 9
        logits[:, 0] = 0
        logits[:, 1] = x.sum((1, 2, 3)) - 1.98
        return logits

    options = {"attacks": ["autoattack"], "budgets": [4], "corruptions": []}
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(ImportError, match="pip install --no-deps pyautoattack"):
        evaluate_robustness(read, (images, classes), **options)
    fake = ModuleType("pyautoattack")
    fake.AutoAttack = AutoAttack
    monkeypatch.setitem(sys.modules, "pyautoattack", fake)
    table = evaluate_robustness(read, (images, classes), **options)
    again = evaluate_robustness(read, (images, classes), **options)
    assert seen[0] == seen[1] and seen[0][0] == pytest.approx(4 / 255)
    values = {row.condition: row.value for row in table.rows if row.metric == "top-1"}
    assert values == {"clean": 1.0, "autoattack": 0.0}
    assert [row.value for row in again.rows] == [row.value for row in table.rows]
    with pytest.raises(ValueError, match="at least 4 classes"):
        evaluate_robustness(lambda x: read(x)[:, :2], (images, classes), **options)
