"""Cost of the token screen: forward passes, and memory of the calibration.

The model has the size of a tiny vision transformer: 197 tokens, width 192, twelve
layers, three heads. Forward passes of the plain and the screened model alternate in one
process; the ratio is that of the smallest processor times of one thread. The
calibration reads blocks that are made on the fly, so that its peak of memory is its
own; it runs in a process of its own, on 50 tokens of width 48, so that 100 000 inputs
take seconds. Screen and evaluation of images of 224 pixels run in one, too.
"""

import copy
import multiprocessing
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eigenheads.adapters import screen_tokens
from eigenheads.estimators import TokenScreen
from eigenheads.robustness import evaluate_robustness

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


class Classifier(nn.Module):
    """A tiny vision transformer for images of 224 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 16, stride=16)
        self.start = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.place = nn.Parameter(0.1 * torch.randn(1, N_TOKENS, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).mT
        tokens = torch.cat([self.start.expand(len(x), -1, -1), patches], 1)
        return self.head(self.blocks(tokens + self.place)[:, 0])


def at_224(n: int, results: "multiprocessing.Queue[str]") -> None:
    """Put what screen and evaluation of `n` images take, in batches of 32."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Classifier().eval()
    coarse = torch.rand(n, 3, 14, 14)
    data = F.interpolate(coarse, 224, mode="bilinear"), torch.zeros(n, dtype=torch.long)
    with torch.no_grad():
        model(data[0][:32])
        data = data[0], model(data[0]).argmax(1)

    def measured(name: str, call: Callable[[], object]) -> None:
        start = time.process_time()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        call()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        results.put(
            f"{name:34} {time.process_time() - start:7.1f} s, "
            f"{grown / 1024:6.0f} MB more"
        )

    options = {"severities": [3], "batch_size": 32, "seed": 0}
    with torch.no_grad():
        measured("forward pass of 32", lambda: model(data[0][:32]))
        measured("screen_tokens, both actions tried", lambda: screen(model, data[0]))
        measured("screened forward pass of 32", lambda: model(data[0][:32]))
    measured(
        f"evaluation of {n}: two corruptions",
        lambda: evaluate_robustness(
            model,
            data,
            attacks=[],
            corruptions=["gaussian_noise", "defocus_blur"],
            **options,
        ),
    )
    measured(
        f"evaluation of {n}: PGD, ten steps",
        lambda: evaluate_robustness(
            model,
            data,
            corruptions=[],
            attacks={"pgd": {"n_steps": 10}},
            budgets=[1],
            batch_size=32,
        ),
    )
    results.put("")


def screen(model: nn.Module, inputs: Tensor) -> None:
    """Fit a screen to inputs in batches of 32."""
    screen_tokens(model, list(inputs.split(32)))


def print_224(n: int) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    worker = context.Process(target=at_224, args=(n, results))
    worker.start()
    while line := results.get():
        print(line)
    worker.join()


def main(*, quick: bool = False) -> None:
    torch.set_num_threads(1)
    seconds, hide, impute = forward_ratio(1 if quick else 12)
    print(f"forward pass of {BATCH} inputs, {N_TOKENS} tokens: {seconds:.2f} s")
    print(f"screened over plain: hide {hide:.3f}, impute {impute:.3f} (limit 1.15)")
    for n in (200,) if quick else (1000, 10_000, 100_000):
        print(f"calibration on {n:7d} inputs: {peak(n):7.1f} MB above a small fit")
    print("images of 224 pixels, 197 tokens:")
    print_224(96 if quick else 256)
