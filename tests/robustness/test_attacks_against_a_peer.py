"""Our attacks beside torchattacks', on one trained model of digits.

Compared where the peer is installed, which is no dependency:
``pip install --no-deps torchattacks==3.5.1`` next to torch 2.13 (no torchvision).
"""

from importlib.util import find_spec

import numpy as np
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
)

pytestmark = pytest.mark.torch
REPEATS = 40
N_IMAGES = 50


@pytest.fixture(scope="module")
def trained():
    """A small network in double precision, and images that it has right."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    x = torch.tensor(images).view(-1, 1, 8, 8) / 16
    y = torch.tensor(classes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(288, 10)
        ).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(150):
            rows = torch.randint(0, 1200, (128,))
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    model.eval()
    x, y = x[1200:], y[1200:]
    right = model(x).argmax(1) == y
    return model, x[right][:N_IMAGES], y[right][:N_IMAGES]


def fooled(model, attacked, y):
    with torch.no_grad():
        return float((model(attacked).argmax(1) != y).double().mean())


def same_in_law(ours, theirs):
    """Compare mean success rates over repeats; return the gap in standard errors.

    Repeats are independent, images of one repeat need not be (the peer gives all
    images of a batch the same squares and signs).
    """
    error = np.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / REPEATS)
    return (np.mean(ours) - np.mean(theirs)) / error


if find_spec("torchattacks"):
    import torchattacks

    @pytest.mark.parametrize("budget", [2.0, 8.0, 32.0])
    def test_fgsm_is_the_peers(trained, budget):
        model, x, y = trained
        theirs = torchattacks.FGSM(model, eps=budget / 255)(x, y)
        ours = fgsm(model, x, y, budget=budget)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("random_start", [False, True])
    @pytest.mark.parametrize("budget", [2.0, 8.0, 32.0])
    def test_pgd_is_the_peers_from_the_same_start(trained, budget, random_start):
        model, x, y = trained
        options = {"n_steps": 20, "step_size": budget / 8, "random_start": random_start}
        peer = torchattacks.PGD(
            model,
            eps=budget / 255,
            alpha=budget / 8 / 255,
            steps=20,
            random_start=random_start,
        )
        with torch.random.fork_rng():
            torch.manual_seed(5)
            theirs = peer(x, y)
        generator = torch.Generator().manual_seed(5)
        ours = pgd(model, x, y, budget=budget, generator=generator, **options)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("budget", [32.0, 48.0])
    def test_square_succeeds_as_often_as_the_peers(trained, budget):
        """40 repeats each: means within 4 standard errors."""
        model, x, y = trained
        ours, theirs = [], []
        for seed in range(REPEATS):
            generator = torch.Generator().manual_seed(seed)
            options = {"n_queries": 100, "generator": generator}
            ours.append(fooled(model, square(model, x, y, budget=budget, **options), y))
            peer = torchattacks.Square(
                model, eps=budget / 255, n_queries=100, loss="margin", seed=seed
            )
            with torch.random.fork_rng():
                theirs.append(fooled(model, peer(x, y), y))
        assert 0.1 < np.mean(theirs) < 0.95
        assert abs(same_in_law(ours, theirs)) < 4

    @pytest.mark.parametrize("budget", [32.0, 48.0])
    def test_spsa_succeeds_as_often_as_the_peers(trained, budget):
        """40 repeats each: means within 4 standard errors."""
        model, x, y = trained
        ours, theirs = [], []
        for seed in range(REPEATS):
            generator = torch.Generator().manual_seed(seed)
            options = {"n_steps": 10, "n_samples": 8, "generator": generator}
            ours.append(fooled(model, spsa(model, x, y, budget=budget, **options), y))
            peer = torchattacks.SPSA(
                model,
                eps=budget / 255,
                delta=2.55 / 255,
                lr=2 * budget / 255 / 10,
                nb_iter=10,
                nb_sample=8,
            )
            with torch.random.fork_rng():
                torch.manual_seed(1000 + seed)
                theirs.append(fooled(model, peer(x, y), y))
        assert 0.1 < np.mean(theirs) < 0.95
        assert abs(same_in_law(ours, theirs)) < 4

    @pytest.mark.parametrize("loss", ["ce", "dlr"])
    @pytest.mark.parametrize("budget", [24.0, 40.0])
    def test_apgd_succeeds_as_often_as_the_peers(trained, budget, loss):
        """Five starts each: rates within three of a hundred images."""
        model, x, y = trained
        ours, theirs = [], []
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            options = {"loss": loss, "n_steps": 20, "generator": generator}
            ours.append(fooled(model, apgd(model, x, y, budget=budget, **options), y))
            peer = torchattacks.APGD(
                model, eps=budget / 255, steps=20, n_restarts=1, seed=seed, loss=loss
            )
            with torch.random.fork_rng():
                theirs.append(fooled(model, peer(x, y), y))
        assert 0.1 < np.mean(theirs) < 0.95
        assert abs(np.mean(ours) - np.mean(theirs)) < 0.03

    def test_carlini_and_wagner_succeed_as_often_as_the_peers(trained):
        """The peer may stop early: ours succeeds at least as often, about as near."""
        from eigenheads_papers.teo2024.attacks import carlini_wagner

        model, x, y = trained
        ours = carlini_wagner(model, x, y, weight=10.0, n_steps=100)
        theirs = torchattacks.CW(model, c=10, kappa=0, steps=100, lr=0.01)(x, y)
        assert fooled(model, ours, y) >= fooled(model, theirs, y) - 0.02
        both = (model(ours).argmax(1) != y) & (model(theirs).argmax(1) != y)
        near, far = (
            (z - x)[both].flatten(1).norm(dim=1).mean() for z in (ours, theirs)
        )
        assert near <= 1.05 * far


@pytest.mark.skipif(find_spec("pyautoattack") is None, reason="no pyautoattack here")
@pytest.mark.slow
def test_autoattack_is_at_least_as_strong_as_ours(trained):
    """Its own program, called by name, with the budget in the same unit."""
    from eigenheads.robustness import evaluate_robustness

    model, x, y = trained
    table = evaluate_robustness(
        model.float(),
        (x[:30].float(), y[:30]),
        attacks=["autoattack", "pgd", "square"],
        budgets=[8],
        corruptions=[],
    )
    rows = {row.condition: row.value for row in table.rows if row.metric == "top-1"}
    model.double()
    assert rows["autoattack"] <= min(rows["pgd"], rows["square"]) + 1e-9
    assert rows["autoattack"] < rows["clean"]
