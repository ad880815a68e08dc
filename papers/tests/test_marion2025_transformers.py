"""Appendix E.3 of marion2025: transformers on single-location regression."""

import functools

import numpy as np
import pytest

from eigenheads_papers import get_experiment
from eigenheads_papers._core import Run
from eigenheads_papers._run import draw_experiment, experiment_rng
from eigenheads_papers.marion2025 import transformers

pytestmark = pytest.mark.torch
KEY = "marion2025/transformers"


@functools.cache
def smoke_run(seed):
    experiment = get_experiment(KEY)
    params = experiment.presets["smoke"]
    table = experiment.simulate(params, experiment_rng(KEY, seed))
    return params, table


def test_the_figure_is_drawn_from_the_table_alone_and_reproducibly():
    run = Run(*smoke_run(0))
    first = draw_experiment(get_experiment(KEY), run)
    assert first == draw_experiment(get_experiment(KEY), run)


def test_a_short_training_decides_nothing_and_learns_something():
    params, table = smoke_run(0)
    claims = transformers.check(Run(params, table))
    assert {claim.outcome for claim in claims} == {"undecided"}
    assert table["risk"].max() < 1
    assert table["value"].min() > 0.5


@pytest.mark.parametrize(
    ("overlap", "verdict"), [(0.99, "held"), (0.5, "contradicted")]
)
def test_overlaps_decide_the_claim(overlap, verdict, rng):
    params = transformers.Params()
    shape = (len(params.heads), params.n_seeds)
    table = {name: np.full(shape, 0.99) for name in transformers.MEASURES}
    table["risk"] = np.full(shape, 0.01)
    table["key"] = overlap + 0.001 * rng.standard_normal(shape)
    claims = transformers.check(Run(params, table))
    found = [claim.outcome for claim in claims if "k*" in claim.statement]
    assert found == [verdict, verdict]


def test_key_directions_are_those_of_the_scores():
    """Log weights of two tokens differ by the key's product with what norm leaves."""
    import torch

    from eigenheads_papers.marion2025._transformer import SmallTransformer

    torch.manual_seed(0)
    model = SmallTransformer(12, 3, 8).double()
    with torch.no_grad():
        model.first_norm.weight.add_(0.3 * torch.randn(12))
        model.attention.in_proj_bias.add_(0.2 * torch.randn(36))
        tokens = torch.randn(5, 4, 12, dtype=torch.float64)
        logs = model(tokens)[1].log()
        spread = tokens.var(dim=-1, unbiased=False).add(1e-5).sqrt()
        scores = torch.einsum("hd,nld->nhl", model.key_directions(), tokens)
        scores = scores / spread[:, None] / 2  # √(12/3) = 2
    found = logs - logs[..., :1]
    assert torch.allclose(found, scores - scores[..., :1])


def test_the_task_is_the_law_in_another_basis():
    import torch

    from eigenheads_papers.marion2025._transformer import Task

    params = transformers.Params(d=20, n_tokens=4)
    task = Task(params, torch.Generator().manual_seed(1))
    tokens, targets, locations = task.draw(20_000)
    chosen = tokens[torch.arange(20_000), locations]
    # Standard errors of these means are at most 0.007.
    assert abs(float((chosen @ task.key).mean()) - np.sqrt(10)) < 0.03
    assert abs(float(targets.var()) - 0.5) < 0.03
    assert abs(float(task.key @ task.value)) < 1e-6
    assert abs(np.bincount(locations) / 20_000 - 0.25).max() < 0.015
