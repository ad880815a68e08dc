"""Parts of an update: step sizes, parameter groups, the average of weights, seeds."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads_papers.recipes._tasks import TrainingSchedule

Tensors = tuple[Tensor, ...] | list[Tensor]


def learning_rate(schedule: TrainingSchedule, step: int, steps_per_epoch: int) -> float:
    """Return the step size of an update: a linear rise, then half a cosine."""
    n_steps = schedule.epochs * steps_per_epoch
    warmup = schedule.warmup_epochs * steps_per_epoch
    if step < warmup:
        # The first step is positive, and the rise reaches its peak at the first update
        # after it.
        return schedule.learning_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(n_steps - warmup, 1.0)
    span = schedule.learning_rate - schedule.final_learning_rate
    return schedule.final_learning_rate + span * (1 + math.cos(math.pi * done)) / 2


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameters with and without weight decay.

    Vectors (biases, norms) and embeddings of positions and classes are not decayed.
    """
    exempt: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_vector = parameter.ndim <= 1
        is_embedding = name in ("pos_embed", "cls_token", "position")
        (exempt if is_vector or is_embedding else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": exempt, "weight_decay": 0.0},
    ]


def weight_average(
    decay: float,
) -> Callable[[Tensors, Tensors, Any], None]:
    """Return the update of the running average of the weights.

    The decay is smaller at the beginning, so that the start is soon forgotten.
    """

    @torch.no_grad()
    def update(averages: Tensors, values: Tensors, count: Any) -> None:
        n = float(count)
        weight = 1.0 - min(decay, (1.0 + n) / (10.0 + n))
        for average, value in zip(averages, values, strict=True):
            average.lerp_(value.to(average), weight)

    return update


def combined_seed(*parts: int) -> int:
    """Return one seed made of several numbers."""
    # The shift keeps the seed within a signed integer of 64 bits.
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
