"""Train the models of one seed, and attack them with and without their gradients."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from eigenheads.extend import FloatArray, torch_generator
from eigenheads.robustness import pgd, square
from eigenheads_papers._training import seeded
from eigenheads_papers.teo2024._models import SmallViT
from eigenheads_papers.teo2024._robustness_cell import train_averaged_vit
from eigenheads_papers.teo2024.inputs import Digits
from eigenheads_papers.teo2024.masking import SOURCES, WITH_S, WITHOUT_S
from eigenheads_papers.teo2024.variants import VARIANTS

if TYPE_CHECKING:
    from eigenheads_papers.teo2024.masking import Masking


def attack_models(how: "Masking", seed: int, digits: Digits) -> FloatArray:
    """Return accuracies in percent by condition, at λ = 0.1 and then with S = 0."""
    x = torch.tensor(digits.train[:, None]).float() / 255
    y = torch.from_numpy(digits.train_classes)
    train = partial(train_averaged_vit, how, x=x, y=y)
    sources = [train(name, seed + 1) for name in SOURCES]
    images = torch.tensor(digits.test[: how.n_attacked, None]).float() / 255
    truth = torch.from_numpy(digits.test_classes[: how.n_attacked])

    def fool(model: SmallViT) -> Tensor:
        return pgd(
            model,
            images,
            truth,
            budget=how.attack_budget,
            n_steps=how.n_attack_steps,
            generator=torch_generator(seed),
        )

    transferred = [fool(source) for source in sources]
    rows: list[float] = []
    for name in (WITH_S, WITHOUT_S):
        model = train(name, seed)
        searched = square(
            model,
            images,
            truth,
            budget=how.attack_budget,
            n_queries=how.n_queries,
            generator=torch_generator(seed),
        )
        attacked = [
            fool(model),
            searched,
            *transferred,
            fool(_without_s(how, model, images.shape[-1])),
        ]
        right = [_is_right(model, changed, truth) for changed in (images, *attacked)]
        # The clean image counts, too: an attack may turn a wrong answer right.
        right.append(torch.stack(right).all(0))
        rows += [100 * float(one.double().mean()) for one in right]
    return np.array(rows)


def _without_s(how: "Masking", model: SmallViT, side: int) -> SmallViT:
    """Return the same weights with S forced to zero."""
    with seeded(0):
        copy = SmallViT(VARIANTS[WITHOUT_S], size=how, side=side)
    copy.load_state_dict(model.state_dict())
    return copy.eval()


@torch.no_grad()
def _is_right(model: SmallViT, x: Tensor, y: Tensor) -> Tensor:
    return model(x).argmax(1) == y
