"""Untrained copies of a model, for comparison with its trained heads."""

import copy
from typing import Any

import torch
from torch import nn


def untrained_copy(model: nn.Module, seed: int) -> nn.Module | str:
    """Return the model with newly drawn weights, or the reason why that is impossible.

    A Hugging Face model is made again from its configuration; another one is copied,
    and each of its parts draws its parameters by its own ``reset_parameters``. The
    global random state does not change.

    Examples
    --------
    >>> from torch import nn
    >>> made = untrained_copy(nn.Linear(2, 2), seed=0)
    >>> type(made).__name__
    'Linear'
    >>> class Custom(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table = nn.Parameter(torch.zeros(3))
    >>> untrained_copy(Custom(), seed=0)
    'Custom has no method that draws its parameter table'
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: nn.Module | str = _from_configuration(model) or _reset(model)
    if isinstance(made, str):
        return made
    first = next(model.parameters(), None)
    if first is not None:
        made = made.to(device=first.device, dtype=first.dtype)
    return made.eval()


def _from_configuration(model: nn.Module) -> nn.Module | None:
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(config, "_attn_implementation_internal"):
        return None
    kind: Any = type(model)
    made: nn.Module = kind(copy.deepcopy(config))
    return made


def _reset(model: nn.Module) -> nn.Module | str:
    made = copy.deepcopy(model)
    # Children first: a part may set what its children have drawn.
    for module in reversed(list(made.modules())):
        owned = [name for name, _ in module.named_parameters(recurse=False)]
        reset = getattr(module, "reset_parameters", None)
        reset = reset or getattr(module, "_reset_parameters", None)
        if callable(reset):
            reset()
        elif owned:
            name = type(module).__name__
            return f"{name} has no method that draws its parameter {owned[0]}"
    return made
