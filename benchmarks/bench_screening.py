"""Cost of the token screen: forward passes, and memory of the calibration.

The model has the size of a tiny vision transformer: 197 tokens, width 192, twelve
layers, three heads. Forward passes of the plain and the screened model alternate in one
process; the ratio is that of the smallest processor times of one thread. The
calibration reads blocks that are made on the fly, so that its peak of memory is its
own; it runs in a process of its own, on 50 tokens of width 48, so that 100 000 inputs
take seconds.
"""

import copy
import multiprocessing
import resource
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eigenheads.adapters import screen_tokens
from eigenheads.estimators import TokenScreen

N_TOKENS, WIDTH, DEPTH, HEADS, BATCH = 197, 192, 12, 3, 16
SMALL = (50, 48)  # tokens and width of the calibration


class Attention(nn.Module):
    """Attention laid out as timm's."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def images(n: int, seed: int = 0, shape: tuple[int, int] = (N_TOKENS, WIDTH)) -> Tensor:
    """Return tokens with a common cause; the first is the same for all inputs."""
    generator = torch.Generator().manual_seed(seed)
    cause = torch.randn(n, 1, shape[1], generator=generator)
    tokens = cause + 0.5 * torch.randn(n, *shape, generator=generator)
    tokens[:, 0] = 1.0
    return tokens


def forward_ratio(repeats: int) -> tuple[float, float, float]:
    """Return the times of the screened model over the plain one: hide and impute."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(Block() for _ in range(DEPTH))).eval()
    calibration = images(120)
    hidden = screen_tokens(copy.deepcopy(plain), calibration, action="hide")
    imputed = screen_tokens(copy.deepcopy(plain), calibration, action="impute")
    x = images(BATCH, seed=1)
    x[:, 5:25] = x.flip(0)[:, 5:25]  # a tenth of the tokens is replaced
    best = [np.inf] * 3
    with torch.no_grad():
        for _ in range(repeats + 1):
            for at, model in enumerate((plain, hidden, imputed)):
                start = time.process_time()
                model(x)
                best[at] = min(best[at], time.process_time() - start)
    return best[0], best[1] / best[0], best[2] / best[0]


def calibrate(n: int, results: "multiprocessing.Queue[float]") -> None:
    """Fit a screen on `n` inputs, and put the peak of memory in megabytes."""
    block = images(100, shape=SMALL).double().numpy()
    rng = np.random.default_rng(0)

    def blocks():
        for _ in range(n // len(block)):
            yield block * rng.choice([-1.0, 1.0], (len(block), 1, 1))

    # Allocate what every fit needs.
    TokenScreen().fit(images(80, shape=SMALL).double().numpy())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    TokenScreen().fit_blocks(blocks)
    results.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def peak(n: int) -> float:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[float] = context.Queue()
    worker = context.Process(target=calibrate, args=(n, results))
    worker.start()
    worker.join()
    return results.get()


def main(*, quick: bool = False) -> None:
    torch.set_num_threads(1)
    seconds, hide, impute = forward_ratio(1 if quick else 12)
    print(f"forward pass of {BATCH} inputs, {N_TOKENS} tokens: {seconds:.2f} s")
    print(f"screened over plain: hide {hide:.3f}, impute {impute:.3f} (limit 1.15)")
    for n in (200,) if quick else (1000, 10_000, 100_000):
        print(f"calibration on {n:7d} inputs: {peak(n):7.1f} MB above a small fit")
