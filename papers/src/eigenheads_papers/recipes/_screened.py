"""Vision transformers whose attention does not see tokens that fit badly."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads.estimators import TokenScreen
from eigenheads.extend.models import ScreenModule
from eigenheads_papers.recipes._models import VisionTransformer

# As in adapters.screen_tokens.
_COMPONENTS, _MAX_SHARE = 8, 0.5


class ScreenedTransformer(nn.Module):
    """A vision transformer behind a screen of its embedded tokens.

    It does what :func:`eigenheads.adapters.screen_tokens` does to other models: tokens
    over the held-out quantile of clean tokens are hidden from all layers, whatever
    their attention.

    Parameters
    ----------
    model
        The trained model; its weights are not changed.
    calibration
        Batches of clean images, the same in each iteration.
    """

    def __init__(self, model: VisionTransformer, calibration: Iterable[Tensor]) -> None:
        super().__init__()
        self.model = model
        screen = TokenScreen(_COMPONENTS, max_share=_MAX_SHARE)
        screen.fit_blocks(lambda: _embedded(model, calibration))
        shape = (*screen.mean_.shape, screen.components_.shape[1])
        self.screen = ScreenModule(shape, max_share=_MAX_SHARE)
        self.screen.load(screen)
        self.screen.to(model.pos_embed.device)

    @property
    def std(self) -> Tensor:
        """Standard deviations by which the model divides its channels."""
        return self.model.std

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images."""
        tokens = self.model.embed(images)
        visible = ~self.screen(tokens)
        return self.model.classify(tokens, visible[:, None, None, :])


@torch.no_grad()
def _embedded(
    model: VisionTransformer, calibration: Iterable[Tensor]
) -> Iterator[np.ndarray[Any, Any]]:
    device = model.pos_embed.device
    for images in calibration:
        yield model.embed(images.to(device)).double().cpu().numpy()
