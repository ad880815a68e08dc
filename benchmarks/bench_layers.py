"""Speed and memory of the fused pursuit, compared with explicit softmaxes.

Each time is the minimum of interleaved runs; only ratios are printed. Each shape has
its own process, because the speed of the explicit matrices depends on the memory that
earlier work left behind. Memory is the peak of a training step above the memory held
before it, also in its own process.

A forward pass cannot be faster than its `n_iter` fused attentions. Their speed over the
plain version is printed as an upper bound, and so is that of the matrix products
alone, written into allocated memory, without softmax and pursuit.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from eigenheads.nn import Visibility, rpc_attention
from eigenheads.nn._pursuit import PursuitSettings, pursue

N_ITER = 4
SPARSITY = 4.0

# Sizes: batch, heads, tokens, d_head.
SHAPES: list[tuple[int, ...]] = [(8, 3, 197, 64), (2, 3, 1024, 64), (1, 6, 2048, 64)]
MEMORY_SHAPE = (1, 6, 2048, 64)

Attention = Callable[[Tensor, Tensor], Tensor]
T = TypeVar("T")


def plain(keys: Tensor, values: Tensor) -> Tensor:
    """Run the pursuit as usually written: explicit softmaxes, multipliers and mu."""
    mu = keys[0, 0].numel() / (4 * keys.abs().sum((-2, -1), keepdim=True))
    low_rank, multiplier = torch.zeros_like(keys), torch.zeros_like(keys)
    for _ in range(N_ITER):
        argument = keys - low_rank + multiplier / mu
        sparse = argument.sign() * (argument.abs() - SPARSITY / mu).clamp_min(0)
        cleaned = keys - sparse - multiplier / mu
        scores = cleaned @ cleaned.transpose(-2, -1) * keys.shape[-1] ** -0.5
        low_rank = scores.softmax(-1) @ values
        multiplier = multiplier + mu * (keys - low_rank - sparse)
    return low_rank


def ours(keys: Tensor, values: Tensor) -> Tensor:
    return rpc_attention(keys, values, n_iter=N_ITER, sparsity=SPARSITY)


def ours_recomputed(keys: Tensor, values: Tensor) -> Tensor:
    return pursue(
        keys,
        values,
        None,
        settings=PursuitSettings(N_ITER, SPARSITY, None),
        visibility=Visibility(keys.shape[-2]),
        scale=keys.shape[-1] ** -0.5,
        recompute=True,
    ).output


def fused(keys: Tensor, values: Tensor) -> Tensor:
    """Compute `N_ITER` fused attentions and nothing else."""
    for _ in range(N_ITER):
        output = F.scaled_dot_product_attention(keys, keys, values)
    return output


def products(keys: Tensor, values: Tensor) -> Tensor:
    """Compute the matrix products of `N_ITER` explicit attentions and nothing else."""
    k, v = keys.flatten(0, 1), values.flatten(0, 1)
    scores = _buffer(k.shape[0], k.shape[1])
    for _ in range(N_ITER):
        torch.bmm(k, k.transpose(1, 2), out=scores)
        output = torch.bmm(scores, v)
    return output


@cache
def _buffer(heads: int, tokens: int) -> Tensor:
    return torch.empty(heads, tokens, tokens)


METHODS: dict[str, Attention] = {
    "plain": plain,
    "ours": ours,
    "recomputed": ours_recomputed,
    "fused": fused,
    "products": products,
}


def draw(shape: tuple[int, ...], *, requires_grad: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    keys, values = (0.5 * torch.randn(2, *shape, generator=generator)).unbind()
    return keys.requires_grad_(requires_grad), values.requires_grad_(requires_grad)


def forward(method: str, keys: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        METHODS[method](keys, values)


def training_step(method: str, keys: Tensor, values: Tensor) -> None:
    keys, values = keys.detach().requires_grad_(), values.detach().requires_grad_()
    METHODS[method](keys, values).square().sum().backward()


def minima(
    step: Callable[[str, Tensor, Tensor], None],
    methods: list[str],
    shape: tuple[int, ...],
    repeats: int,
) -> dict[str, float]:
    keys, values = draw(shape, requires_grad=False)
    seconds = dict.fromkeys(methods, float("inf"))
    for _ in range(repeats):
        for name in methods:
            start = time.perf_counter()
            step(name, keys, values)
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def apart(work: Callable[..., T], *arguments: object) -> T:
    """Return ``work(*arguments)``, computed in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def peak_megabytes(method: str, shape: tuple[int, ...]) -> float:
    """Return the memory that a training step adds in a new process."""
    keys, values = draw(shape, requires_grad=True)
    small = draw((1, 1, 64, shape[-1]), requires_grad=True)
    METHODS[method](*small).sum().backward()  # load threads and libraries
    before = _reset_peak()
    METHODS[method](keys, values).square().sum().backward()
    return _peak() - before


def _reset_peak() -> float:
    """Reset the peak if the system can; return the memory held now."""
    if not sys.platform.startswith("linux"):
        return _peak()
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> float:
    if not sys.platform.startswith("linux"):
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**10


def print_speed(shapes: list[tuple[int, ...]], repeats: int) -> None:
    for shape in shapes:
        names = ["ours", "plain", "fused", "products"]
        ahead = apart(minima, forward, names, shape, repeats)
        whole = apart(minima, training_step, names[:2], shape, repeats)
        print(f"{shape}, n_iter={N_ITER}")
        print(
            f"  forward        {ahead['plain'] / ahead['ours']:5.2f} x faster than "
            f"plain; {ahead['ours'] / ahead['fused']:.2f} x the time of n_iter fused "
            "attentions"
        )
        print(
            f"  upper bound    {ahead['plain'] / ahead['fused']:5.2f} x: n_iter fused "
            f"attentions alone; {ahead['plain'] / ahead['products']:.2f} x: matrix "
            "products alone"
        )
        print(
            f"  training step  {whole['plain'] / whole['ours']:5.2f} x faster than "
            "plain"
        )


def print_memory(shape: tuple[int, ...]) -> None:
    names = ["plain", "ours", "recomputed"]
    peaks = {name: apart(peak_megabytes, name, shape) for name in names}
    print(f"Peak memory of a training step, {shape}, n_iter={N_ITER}")
    for name in ("ours", "recomputed"):
        print(
            f"  {name:13}  {peaks['plain'] / max(peaks[name], 0.1):5.2f} x lower than "
            f"plain ({peaks[name]:.0f} against {peaks['plain']:.0f} MB)"
        )


def main(quick: bool = False) -> None:
    print_speed(SHAPES[:1] if quick else SHAPES, repeats=1 if quick else 9)
    print_memory((1, 2, 512, 64) if quick else MEMORY_SHAPE)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
