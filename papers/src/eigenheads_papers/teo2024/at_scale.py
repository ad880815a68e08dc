"""The paper's claims at its own scale, judged by evaluations of trained models.

No model is trained here. ``eigenheads train`` trains models, ``eigenheads evaluate``
writes their tables to ``evaluation.json``, and this module reads that file.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from eigenheads.extend import FloatArray, Got, fail
from eigenheads_papers._claims import (
    Claim,
    about,
    difference,
    in_family,
    no_difference,
)
from eigenheads_papers._core import Experiment, Run, Table, parameter
from eigenheads_papers._data import data_file, has_data
from eigenheads_papers._drawing import draw_intervals, seed_intervals
from eigenheads_papers._statistics import Estimate, mean_estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE: Final = "evaluation.json"
_FORMAT: Final = "eigenheads-evaluation/1"
_LARGEST: Final = 2**28  # bytes of the file
# Metrics of which less is better.
_LOWER: Final = ("mCE", "corruption error", "perplexity")
# The options of RPC-Attention that made the paper's numbers.
_AUTHORS: Final[Mapping[str, Any]] = {
    "sparsity": 4.0,
    "threshold": "reference",
    "multiplier": "paper",
    "query_steps": "none",
    "rest": "symmetric",
}
_LEADING: Final = {"imagenet": 1, "wikitext": 4}
_PAPERS_MODELS: Final = {
    "imagenet": ((4, "first"), (5, "first"), (6, "first"), (2, "all")),
    "wikitext": ((4, "first"),),
}
# Attacks of the paper's Table 2; ours are others, and budgets in pixels.
_PAPERS_ATTACKS: Final = ("fgsm", "pgd", "spsa", "noise", "carlini-wagner", "sparse-l1")
_VIT_TINY: Final = {"image": 224, "patch": 16, "d_model": 192, "depth": 12}
_LANGUAGE: Final = {"context": 256, "d_model": 128, "d_hidden": 2048, "depth": 16}
# The text prints "over 1 %" for six iterations, 73.02 and 72.18 % for scaled and
# softmax attention, and "at least 1 PPL" for the language model.
_CLEAN_GAIN, _SCALED_GAIN, _SOFTMAX, _PERPLEXITY_GAIN = 1.0, 0.84, 72.18, 1.0


@dataclass(frozen=True, kw_only=True)
class Params:
    """Contents of an evaluation; empty without one."""

    evaluation: str = parameter("", "file with the evaluation of trained models")
    variants: tuple[str, ...] = parameter((), "kinds of attention to compare")
    roles: tuple[str, ...] = parameter((), "role of each model in the comparisons")
    measures: tuple[str, ...] = parameter((), "measures to judge")
    own_setting: bool = parameter(False, "whether the paper's setting was used")
    margin: float = parameter(0.5, "difference that counts as none")


# --- Reading -------------------------------------------------------------------------


def _read(task: str) -> tuple[Params, dict[str, FloatArray]]:
    """Return parameters and table of the evaluation of one task."""
    import json

    path = data_file(FILE)
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is too large")
        raw = path.read_bytes()
        content = json.loads(raw)
        if content["format"] != _FORMAT:
            raise ValueError("it has another format")
        return _arranged(content, task, hashlib.sha256(raw).hexdigest()[:16])
    except Exception as error:  # whatever a forged file contains
        got = Got(f"{Path(path).name} ({type(error).__name__}: {str(error)[:80]})")
        contract = f"a folder with {FILE} of `eigenheads evaluate`, of task {task}"
        fail("data", contract, got)


def _arranged(
    content: Mapping[str, Any], task: str, digest: str
) -> tuple[Params, dict[str, FloatArray]]:
    models = content["models"]
    chosen = [i for i, model in enumerate(models) if model["task"] == task]
    if not chosen:
        raise ValueError("it has no model of this task")
    variants = list(dict.fromkeys(str(models[i]["variant"]) for i in chosen))
    rows = [row for row in content["rows"] if row["checkpoint"] in set(chosen)]
    measures = list(dict.fromkeys(map(_measure, rows)))
    # Lone surrogates and control characters cannot be stored or shown.
    if not all(name.isprintable() for name in (*variants, *measures)):
        raise ValueError("a name has characters that cannot be printed")
    seeds = _seeds([models[i] for i in chosen])
    by_model = dict(zip(chosen, seeds, strict=True))
    columns = sorted(set(seeds))
    # NaN marks a seed that a variant does not have.
    values = np.full((len(variants), len(measures), len(columns)), np.nan)
    for row in rows:
        model = row["checkpoint"]
        scale = 1.0 if row["metric"] in _LOWER else 100.0
        place = (
            variants.index(models[model]["variant"]),
            measures.index(_measure(row)),
            columns.index(by_model[model]),
        )
        values[place] = scale * float(row["value"])
    first = {
        variant: next(m for m in models if m["variant"] == variant)
        for variant in variants
    }
    params = Params(
        evaluation=digest,
        variants=tuple(variants),
        roles=tuple(_role(first[variant], task) for variant in variants),
        measures=tuple(measures),
        own_setting=all(_has_papers_size(models[i], task) for i in chosen),
    )
    return params, {"values": values, "seeds": np.array(columns, dtype=np.float64)}


def _measure(row: Mapping[str, Any]) -> str:
    return f"{row['table']}; {row['condition']}; {row['metric']}"


def _seeds(models: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the seed of each model; unknown ones are numbered within a variant."""
    counts: dict[str, int] = {}
    seeds = []
    for model in models:
        count = counts[model["variant"]] = counts.get(model["variant"], -1) + 1
        seeds.append(count if model["seed"] is None else int(model["seed"]))
    pairs = list(zip([model["variant"] for model in models], seeds, strict=True))
    if len(set(pairs)) < len(pairs):
        raise ValueError("two models have the same variant and seed")
    return seeds


def _role(model: Mapping[str, Any], task: str) -> str:
    """Return what a variant is in the paper's comparisons; empty for others."""
    attention = model["attention"]
    kind, n_iter = attention["variant"], attention["n_iter"]
    if model.get("screened"):
        return "screen"
    if kind != "rpc":
        is_all = model["n_leading"] == model["size"]["depth"]
        return str(kind) if is_all else ""
    options = {name: attention[name] for name in _AUTHORS}
    n_leading, depth = model["n_leading"], model["size"]["depth"]
    where = "all" if n_leading == depth else ""
    # The paper has RPC-Attention in the first four layers of the language model.
    where = "first" if n_leading == min(_LEADING[task], depth) else where
    if options == _AUTHORS:
        is_papers = (n_iter, where) in _PAPERS_MODELS[task]
        return f"rpc {n_iter} {where}" if is_papers else ""
    without = {**options, "sparsity": 4.0} == _AUTHORS
    if without and float(attention["sparsity"]) == math.inf:
        return f"control {n_iter} {where}"
    return ""


def _has_papers_size(model: Mapping[str, Any], task: str) -> bool:
    expected = _LANGUAGE if task == "wikitext" else _VIT_TINY
    n_least = 200_000 if task == "wikitext" else 1000
    size = model["size"]
    fits = all(size.get(name) == value for name, value in expected.items())
    return fits and model["n_classes"] >= n_least


# --- Judging -------------------------------------------------------------------------


class _Judge:
    """Differences between variants, paired over the seeds that both have."""

    def __init__(self, run: Run[Params]) -> None:
        self.params, self.values = run.params, run.table["values"]
        self.own = run.params.own_setting
        self.measures = [tuple(one.split("; ")) for one in run.params.measures]

    def gap(self, variant: int, baseline: int, measure: int) -> Estimate:
        """Return by how much a variant is better than another one."""
        sign = -1.0 if self.measures[measure][2] in _LOWER else 1.0
        gaps = sign * (self.values[variant, measure] - self.values[baseline, measure])
        known = gaps[np.isfinite(gaps)]
        if not len(known):  # no seed in common
            return Estimate(
                math.nan, 0, lambda _: (-math.inf, math.inf), lambda _: math.inf
            )
        return mean_estimate(known)

    def at(self, role: str) -> int | None:
        """Return the variant of a role."""
        roles = self.params.roles
        return roles.index(role) if role in roles else None

    def papers(self, roles: Sequence[str], table: str) -> Iterator[Claim]:
        """Yield the claims that RPC-Attention beats symmetric attention."""
        baseline = self.at("symmetric")
        for role in roles:
            variant = self.at(role)
            if baseline is None or variant is None:
                continue
            for number, (own, condition, metric) in enumerate(self.measures):
                if own != table or not _is_claimed(condition, metric, own):
                    continue
                name = self.params.variants[variant]
                printed = _printed(role, condition, metric)
                yield difference(
                    f"{name}: {condition}, {metric}, better than symmetric "
                    f"attention's by{_unit(metric)}",
                    self.gap(variant, baseline, number),
                    source=f"teo2024, {_TABLES[own]}"
                    if _is_papers(role, condition, own)
                    else "question: attack or unit that the paper does not use",
                    printed=printed,
                    own_setting=self.own and printed is not None,
                )

    def scaled(self) -> Iterator[Claim]:
        """Yield the claims that scaled attention beats softmax attention."""
        plain = self.at("softmax")
        measure = self._clean()
        if plain is None or measure is None:
            return
        for role in ("scaled-scalar", "scaled-matrix"):
            variant = self.at(role)
            if variant is not None:
                yield difference(
                    f"{role}: clean, top-1, better than softmax attention's by points",
                    self.gap(variant, plain, measure),
                    source="teo2024, text on scaled attention: 73.02 % against 72.18 %",
                    printed=_SCALED_GAIN,
                    own_setting=self.own,
                )

    def controls(self) -> Iterator[Claim]:
        """Yield our controls: the sparse part, screens, and the printed baseline."""
        measure = self._clean()
        plain = self.at("softmax")
        if self.own and plain is not None and measure is not None:
            sample = self.values[plain, measure]
            yield about(
                "softmax: clean, top-1, as printed",
                mean_estimate(sample[np.isfinite(sample)]),
                _SOFTMAX,
                1.5,
                "models must be trained as well as the paper's to say something",
            )
        for role in self.params.roles:
            twin = self.at(role.replace("control", "rpc"))
            without = self.at(role)
            if not role.startswith("control") or twin is None or without is None:
                continue
            for number, (own, condition, metric) in enumerate(self.measures):
                if metric == "top-1" and own in ("accuracy", "attack"):
                    yield no_difference(
                        f"{self.params.variants[twin]}: {condition}, {metric}, less "
                        "that without the sparse part, in points",
                        self.gap(twin, without, number),
                        self.params.margin,
                        "the margin is a parameter, fixed before the run",
                    )
        yield from self._screens()

    def _screens(self) -> Iterator[Claim]:
        for index, name in enumerate(self.params.variants):
            if self.params.roles[index] != "screen":
                continue
            plain = name.removesuffix(" + screen")
            if plain not in self.params.variants:
                continue
            other = self.params.variants.index(plain)
            for number, (_, condition, metric) in enumerate(self.measures):
                if (condition == "clean" and metric == "top-1") or metric == "mCE":
                    make = no_difference if condition == "clean" else None
                    text = f"{name}: {condition}, {metric}, better than without screen"
                    gap = self.gap(index, other, number)
                    if make is None:
                        yield difference(text, gap)
                    else:
                        why = "a screen should cost little on clean images"
                        yield make(text, gap, self.params.margin, why)

    def _clean(self) -> int | None:
        wanted = ("accuracy", "clean", "top-1")
        return self.measures.index(wanted) if wanted in self.measures else None


_TABLES: Final[Mapping[str, str]] = {
    "accuracy": "Table 1",
    "corruption": "Table 1",
    "attack": "Table 2",
    "perplexity": "Table 3",
}


def _is_claimed(condition: str, metric: str, table: str) -> bool:
    """Return whether the paper compares this number, or an attack has it."""
    if table == "corruption":
        return metric == "mCE"
    return table != "attack" or metric == "top-1"


def _is_papers(role: str, condition: str, table: str) -> bool:
    """Return whether a condition is one of the paper's."""
    if table != "attack":
        return True
    name = condition.partition(",")[0]
    # Carlini and Wagner's attack has no budget, so no unit.
    is_papers_unit = "pixel" not in condition
    known = name in _PAPERS_ATTACKS or (name == "square" and role == "rpc 6 first")
    return known and is_papers_unit


def _printed(role: str, condition: str, metric: str) -> float | None:
    if role == "rpc 6 first" and (condition, metric) == ("clean", "top-1"):
        return _CLEAN_GAIN
    return _PERPLEXITY_GAIN if metric == "perplexity" else None


def _unit(metric: str) -> str:
    return "" if metric in _LOWER else " points"


def _check_images(run: Run[Params]) -> list[Claim]:
    """Return the claims about ImageNet, in families by table."""
    judge = _Judge(run)
    roles = [f"rpc {n} {where}" for n, where in _PAPERS_MODELS["imagenet"]]
    claims: list[Claim] = []
    for table in ("accuracy", "corruption", "attack"):
        made = list(judge.papers(roles, table))
        claims += in_family(f"RPC-Attention, {table}", made)
    claims += in_family("scaled attention", list(judge.scaled()))
    return claims + list(judge.controls())


def _check_text(run: Run[Params]) -> list[Claim]:
    """Return the claims about WikiText-103."""
    made = list(_Judge(run).papers(["rpc 4 first"], "perplexity"))
    return in_family("RPC-Attention, perplexity", made)


def _tabulate(run: Run[Params]) -> list[list[str]]:
    """Return mean and 95 % interval over seeds of every number, per variant."""
    params, values = run.params, run.table["values"]
    lines = [["condition", "metric", *params.variants]]
    for number, measure in enumerate(params.measures):
        _, condition, metric = measure.split("; ")
        cells = []
        for sample in values[:, number]:
            finite = sample[np.isfinite(sample)]
            text = f"{finite.mean():.2f}" if len(finite) else ""
            if len(finite) > 1:
                text += f" ± {seed_intervals(finite, axis=0)[1]:.2f}"
            cells.append(text)
        lines.append([condition, metric, *cells])
    return lines


def _draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw each variant less the first one, per table, paired over seeds."""
    params, values = run.params, run.table["values"]
    base = next((i for i, r in enumerate(params.roles) if r == "symmetric"), 0)
    tables = list(
        dict.fromkeys(measure_name.split("; ")[0] for measure_name in params.measures)
    )
    panels: Any = figure.subplots(1, max(len(tables), 1), sharey=True, squeeze=False)
    for axes, table in zip(panels[0], tables, strict=False):
        rows = []
        for number, measure in enumerate(params.measures):
            of_table, _, metric = measure.split("; ")
            if of_table == table and metric in ("top-1", "AUPR", "mCE", "perplexity"):
                sign = -1.0 if metric in _LOWER else 1.0
                rows.append(sign * values[:, number])
        gaps = np.mean(rows, axis=0) if rows else np.zeros(values[:, 0].shape)
        gaps = gaps - gaps[base]
        # Only seeds that all variants have can be compared in one picture.
        common = np.isfinite(gaps).all(axis=0)
        draw_intervals(axes, gaps[:, common] if common.any() else np.zeros((1, 1)))
        axes.set(title=table, xlabel="better by (95 % interval over seeds)")
    panels[0, 0].set_yticks(range(len(params.variants)), params.variants)
    panels[0, 0].invert_yaxis()


def _simulate_images(params: Params, rng: np.random.Generator) -> Table:
    """Read the table of image models."""
    del params, rng
    return _read("imagenet")[1]


def _simulate_text(params: Params, rng: np.random.Generator) -> Table:
    """Read the table of language models."""
    del params, rng
    return _read("wikitext")[1]


def _with_images(params: Params) -> Params:
    return _read("imagenet")[0] if has_data(FILE) else params


def _with_text(params: Params) -> Params:
    return _read("wikitext")[0] if has_data(FILE) else params


_EMPTY = dict.fromkeys(("smoke", "demo", "paper"), Params())
_ABOUT = (
    "Models that `eigenheads train` trained, evaluated by `eigenheads evaluate`. "
    "Differences are paired over seeds. Numbers count as claims of the paper only if "
    "size and classes are the paper's; otherwise they are checks of ours."
)
_IMAGES: Experiment[Params] = Experiment(
    key="teo2024/imagenet",
    title="RPC-Attention on ImageNet, in models that you trained",
    source="Tables 1 and 2, and 73.02 % against 72.18 %",
    about=_ABOUT,
    presets=_EMPTY,
    simulate=_simulate_images,
    check=_check_images,
    draw=_draw,
    tabulate=_tabulate,
    size=(12.0, 3.6),
    files=lambda params: (FILE,),
    with_data=_with_images,
    is_users=True,
)
experiments = (
    _IMAGES,
    replace(
        _IMAGES,
        key="teo2024/wikitext",
        title="RPC-Attention on WikiText-103, in models that you trained",
        source="Table 3",
        simulate=_simulate_text,
        check=_check_text,
        with_data=_with_text,
    ),
)
