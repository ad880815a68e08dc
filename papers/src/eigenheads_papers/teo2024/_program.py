"""The authors' reconstruction statistic, as their program computes it.

Their model standardises every query and key before it attends, so the statistic
belongs to another model than ours: it is trained here with the same change.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eigenheads_papers import _models


class StandardizedAttention(nn.MultiheadAttention):
    """Attention of standardised queries and keys; what it read and wrote is kept.

    Each query and key gets mean 0 and standard deviation 1 over its entries, with
    D − 1 in the variance.
    """

    kept: tuple[Tensor, Tensor, Tensor]

    def forward(self, query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """Attend from the tokens to themselves; no masks, no dropout."""
        n, length, width = query.shape
        mixed = nn.functional.linear(query, self.in_proj_weight, self.in_proj_bias)
        shape = (n, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = mixed.view(shape).permute(2, 0, 3, 1, 4)
        q, k = _standardized(q), _standardized(k)
        scale = q.shape[-1] ** -0.5
        outputs = (scale * q @ k.mT).softmax(dim=-1) @ v
        self.kept = (q.detach(), k.detach(), outputs.detach())
        merged = outputs.transpose(1, 2).reshape(n, length, width)
        return self.out_proj(merged), None


def standardize_attention(body: nn.Module) -> None:
    """Make every attention layer of a model standardise, with the same parameters."""
    for module in body.modules():
        if type(module) is nn.MultiheadAttention:
            module.__class__ = StandardizedAttention


def program_log_norms(q: Tensor, k: Tensor) -> Tensor:
    r"""Return the logarithm of the program's :math:`\lVert\varphi(q)/g(q)\rVert^2`.

    For standardised q and k, with the softmax weight :math:`p_0` of the first key,

    .. math:: q \cdot q + 2 \log p_0 - 2\, q \cdot k_0

    The scale :math:`1/\sqrt D` is in :math:`p_0` alone, so that the normaliser
    recovered from the first key is not that of the softmax.
    """
    products = q @ k.mT
    logs = (q.shape[-1] ** -0.5 * products).log_softmax(dim=-1)
    return (q * q).sum(dim=-1) + 2 * logs[..., 0] - 2 * products[..., 0]


@torch.no_grad()
def program_loss(body: nn.Module, batch: Tensor) -> list[float]:
    """Return the mean of feature norm less output norm, layer by layer.

    The program prints the logarithm, averaged over layers. The model must be in
    training mode: PyTorch's fast path for inference would skip these layers.
    """
    body(batch)
    found = []
    for module in body.modules():
        if isinstance(module, StandardizedAttention):
            q, k, outputs = (x.double() for x in module.kept)
            feature = program_log_norms(q, k).exp()
            found.append(float((feature - outputs.square().sum(dim=-1)).mean()))
    return found


def train_program(vit: "_models.ViT", seed: int, record: Any) -> None:
    """Train the ViT with standardised attention; `record` as in `train_vit`."""

    def begin_or_record(step: int, body: Any, head: Any) -> None:
        # The call before the first update is the one place where the layers can change
        # before they are trained; their parameters stay those of the optimizer.
        if step == 0:
            standardize_attention(body)
        record(step, body, head)

    _models.train_vit(vit, seed, begin_or_record)


def _standardized(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(dim=-1, keepdim=True)
    return centred / rows.std(dim=-1, keepdim=True)
