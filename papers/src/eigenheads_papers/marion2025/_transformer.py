"""A small transformer for single-location regression: its training, its directions."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads.extend import FloatArray, torch_generator
from eigenheads_papers._training import falling, make_updates, seeded

if TYPE_CHECKING:
    from eigenheads_papers.marion2025.transformers import Params


class SmallTransformer(nn.Module):
    """One pre-norm block with a class token, whose state gives the prediction."""

    def __init__(self, d: int, n_heads: int, hidden: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.randn(d) / math.sqrt(d))
        self.first_norm, self.second_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, n_heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))
        self.out = nn.Linear(d, 1)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions (n,) and the class token's weights (n, heads, L)."""
        asking = self.class_token.expand(len(tokens), 1, -1)
        states = self.first_norm(torch.cat([asking, tokens], dim=1))
        # Only the class token is read, so only its query is needed.
        mixed, weights = self.attention(
            states[:, :1], states, states, average_attn_weights=False
        )
        state = asking + mixed
        state = state + self.mlp(self.second_norm(state))
        return self.out(state)[:, 0, 0], weights[:, :, 0, 1:]

    def key_directions(self) -> Tensor:
        """Return the direction of a token that raises its score, per head: (h, d)."""
        d, heads = len(self.class_token), self.attention.num_heads
        query_map, key_map, _ = self.attention.in_proj_weight.chunk(3)
        query_bias = self.attention.in_proj_bias[:d]
        query = query_map @ self.first_norm(self.class_token) + query_bias
        # The score is a product over the rows of a head. Of the layer norm, what is
        # linear in the token counts: its gains and the mean that it subtracts.
        rows = (query[:, None] * key_map).reshape(heads, d // heads, d).sum(dim=1)
        rows = rows * self.first_norm.weight
        return rows - rows.mean(dim=1, keepdim=True)


class Task:
    """Prompts of the law in a random basis: Adam and layer norm see coordinates."""

    def __init__(self, params: "Params", generator: torch.Generator) -> None:
        self.params, self.generator = params, generator
        square = torch.randn(params.d, params.d, generator=generator)
        self.basis = torch.linalg.qr(square)[0].T
        self.key, self.value = self.basis[0], self.basis[1]

    def draw(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, targets without noise, and locations."""
        params, generator = self.params, self.generator
        tokens = torch.randn(n, params.n_tokens, params.d, generator=generator)
        locations = torch.randint(params.n_tokens, (n,), generator=generator)
        rows = torch.arange(n)
        # The Gaussian is rotation invariant, so shifting along the key is enough.
        tokens[rows, locations] *= params.gamma
        tokens[rows, locations] += math.sqrt(params.d / 2) * self.key
        return tokens, tokens[rows, locations] @ self.value, locations


def train_and_measure(params: "Params", n_heads: int, seed: int) -> FloatArray:
    """Return risk, weight on the location, overlaps with k* and v*, of a fresh model.

    The risk is the excess over the noise, in null risks. With several heads, weight
    and key overlap are those of the head that attends to the location most.
    """
    generator = torch_generator(seed)
    task = Task(params, generator)
    with seeded(seed):
        model = SmallTransformer(params.d, n_heads, params.hidden)

    def losses() -> Iterator[Tensor]:
        for _ in range(params.n_steps):
            tokens, clean, _ = task.draw(params.batch_size)
            noise = params.noise * torch.randn(len(clean), generator=generator)
            yield torch.mean((model(tokens)[0] - clean - noise) ** 2)

    optimizer = torch.optim.Adam(model.parameters(), lr=params.step_size)
    # The step falls linearly to zero, so that the end is not noisy.
    make_updates(optimizer, losses(), falling(params.n_steps))
    return _measure(model.eval(), task)


def _measure(model: SmallTransformer, task: Task) -> FloatArray:
    tokens, clean, locations = task.draw(task.params.n_test)
    tokens.requires_grad_(True)
    answers, weights = model(tokens)
    risk = torch.mean((answers - clean) ** 2) / task.params.gamma**2
    rows = torch.arange(len(tokens))
    on_location = weights[rows, :, locations].mean(dim=0)
    best = int(on_location.argmax())
    # The mean gradient of the prediction in the deciding token is what the model
    # reads of it. What comes from the softmax has no preferred sign and cancels.
    (slopes,) = torch.autograd.grad(answers.sum(), tokens)
    read = slopes[rows, locations].mean(dim=0)
    with torch.no_grad():
        key = model.key_directions()[best]
        overlaps = [_cosine(key, task.key), _cosine(read, task.value)]
    measured = [float(risk.detach()), float(on_location[best].detach())]
    return np.array([*measured, *overlaps])


def _cosine(first: Tensor, second: Tensor) -> float:
    return float(abs(first @ second) / (first.norm() * second.norm()))
