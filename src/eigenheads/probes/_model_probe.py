"""Result of probing a whole model: arrays by statistic and null."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_number,
    check_path,
    check_positive,
    fail,
)
from eigenheads._errors import require
from eigenheads._files import read_arrays, write_arrays, write_atomically
from eigenheads._notebook import html_table
from eigenheads._typing import FloatArray
from eigenheads.probes._nulls import UNTRAINED
from eigenheads.probes._result import (
    ALTERNATIVES,
    LEVEL,
    Statistic,
    draws_needed,
    least_p_value,
    max_statistic_p_values,
    q_values,
)

if TYPE_CHECKING:
    import pandas as pd

_FORMAT = "eigenheads probe 3"
# Entry of the file that holds everything except arrays, as JSON.
_HEADER = "header"


def check_level(level: object) -> None:
    """Raise unless a level of q-values is a number above 0 and at most 1."""
    check_positive("level", level)
    check_number("level", level, maximum=1.0)


@dataclass(frozen=True, eq=False)
class ModelProbe:
    """Statistics of all heads of a model, with their null distributions.

    Attributes
    ----------
    layers
        Index of each probed layer in the model.
    names
        Path of each layer's attention module.
    statistics
        By name; arrays have shape (layers, heads) and (layers, heads, draws).
    settings
        Model, number of sequences, draws, seed, untrained copies.
    notes
        Remarks on what the numbers cannot show: nulls that were not available, too few
        draws, sequences that are too short.
    contrasts
        By name of a set of tokens, such as ``"without the first token"``, and by
        statistic: the observed numbers on these tokens, (layers, heads).

    Examples
    --------
    >>> import numpy as np
    >>> cka = Statistic("cka", np.array([[0.9, 0.2]]), {}, "greater", "Alignment.")
    >>> probe = ModelProbe([0], ["attention"], {"cka": cka})
    >>> probe.statistics["cka"].observed.shape
    (1, 2)
    >>> probe.to_records()[1]["observed"]
    0.2
    """

    layers: Sequence[int]
    names: Sequence[str]
    statistics: Mapping[str, Statistic]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    contrasts: Mapping[str, Mapping[str, FloatArray]] = field(default_factory=dict)

    def __getitem__(self, statistic: str) -> Statistic:
        """Return a statistic by name; an error lists the names."""
        check_choice("statistic", statistic, list(self.statistics))
        return self.statistics[statistic]

    @cached_property
    def _q_values(self) -> dict[str, dict[str, FloatArray]]:
        """Q-values by null and statistic; a null with all heads is one family."""
        by_null: dict[str, dict[str, FloatArray]] = {}
        for null, names in self._families.items():
            p_values = [self._p_values[name][null] for name in names]
            q = q_values(np.stack(p_values), method=self._method)
            if self._takes_largest(null):
                # The methods share the level, so that the shares of false discoveries
                # that they allow add up to it.
                share = self._share_of_largest(null)
                combined = np.fmin(
                    q / (1 - share), self._largest_p_values(null) / share
                )
                q = np.minimum(1.0, combined)
            by_null[null] = dict(zip(names, q, strict=True))
        return by_null

    def _largest_p_values(self, null: str) -> FloatArray:
        """Return p-values by the largest scores, (statistics, layers, heads).

        Statistics with so few draws that these decide nothing are NaN and do not take
        part: the test uses as many draws as all of its members have.
        """
        tests = [self.statistics[name] for name in self._families[null]]
        enough = [2 / (1 + test.nulls[null].shape[-1]) <= LEVEL for test in tests]
        p_values = np.full((len(tests), *tests[0].observed.shape), np.nan)
        p_values[enough] = (
            max_statistic_p_values(
                [
                    (test.observed, test.nulls[null], test.alternative)
                    for test, takes_part in zip(tests, enough, strict=True)
                    if takes_part
                ]
            )
            if any(enough)
            else np.nan
        )
        return p_values

    def _share_of_largest(self, null: str) -> float:
        """Return the share of the level that p-values by the largest scores have.

        It is the least with which these can decide, at most a half.
        """
        counts = [self[name].nulls[null].shape[-1] for name in self._families[null]]
        n_draws = min((n for n in counts if 2 / (1 + n) <= LEVEL), default=0)
        # The factor absorbs rounding errors of the quotient.
        return min(0.5, (1 + 1e-9) / (LEVEL * (1 + n_draws)))

    @cached_property
    def _p_values(self) -> dict[str, dict[str, FloatArray]]:
        return {name: statistic.p_value for name, statistic in self.statistics.items()}

    @cached_property
    def _families(self) -> dict[str, list[str]]:
        """Names of the statistics with each null.

        Tests against one null share its draws; different nulls are different
        hypotheses, and a finding must reject each of them.
        """
        families: dict[str, list[str]] = {}
        for name, statistic in self.statistics.items():
            for null in statistic.nulls:
                families.setdefault(null, []).append(name)
        return families

    @property
    def _method(self) -> str:
        return str(self.settings.get("false_discovery", "bh"))

    def _n_alone(self, null: str, level: float) -> int:
        """Return the draws with which a single test of a family can have q <= level."""
        members = [self.statistics[name] for name in self._families[null]]
        n_tests = sum(int(np.isfinite(member.observed).sum()) for member in members)
        sides = {member.alternative for member in members}
        alternative = "two-sided" if "two-sided" in sides else "greater"
        return draws_needed(
            max(1, n_tests), alternative=alternative, level=level, method=self._method
        )

    def _takes_largest(self, null: str) -> bool:
        """Return whether largest scores help: with enough draws they do not.

        Heads of untrained models are no joint draws of all heads.
        """
        n_draws = max(
            self.statistics[name].nulls[null].shape[-1] for name in self._families[null]
        )
        return null != UNTRAINED and 0 < n_draws < self._n_alone(null, LEVEL)

    def q_value(self, statistic: str, null: str) -> FloatArray:
        r"""Return q-values (layers, heads).

        All heads and statistics with the same null are one family. Rejecting q-values
        up to :math:`\alpha` keeps the false-discovery rate below :math:`\alpha`.

        Notes
        -----
        With :math:`B` draws no p-value is below :math:`1/(B + 1)`, so that
        Benjamini-Hochberg needs :math:`20 m` draws to find one head in :math:`m` tests.
        With fewer draws the q-value is :math:`\min(q/(1 - w), p/w)`, with the q-value
        :math:`q` of :func:`q_values`, the p-value :math:`p` of the largest standard
        score over the family (Westfall and Young, 1993), for which 39 draws suffice,
        and its share :math:`w = \min(1/2, 20/(B + 1))` of the level. If :math:`V` false
        ones are among :math:`R` discoveries, then
        :math:`V/R \le V_q/R_q + 1\{V_p > 0\}`, with expectation at most
        :math:`(1 - w)\alpha + w\alpha`. The null ``untrained`` has no joint draws of
        all heads and uses :func:`q_values` only.
        """
        nulls = list(self[statistic].nulls)
        check_choice("null", null, nulls)
        return self._q_values[null][statistic]

    def is_undecided(
        self, statistic: str, null: str, level: float = LEVEL
    ) -> NDArray[np.bool_]:
        """Return the heads beyond all draws for which the draws are still too few.

        Such a head has the smallest p-value that the number of draws allows, and yet
        its q-value exceeds `level`. Some heads are beyond all draws by chance, with any
        number of draws. Only if these are more than draws explain, at `level`, more
        draws are of use; this cannot be counted for the null ``untrained``.
        """
        check_level(level)
        q = self.q_value(statistic, null)
        heads = self._is_extreme(statistic, null) & (q > level)
        if null == UNTRAINED or self._chance_of_extremes(statistic, null) <= level:
            return heads
        return np.zeros_like(heads)

    def _chance_of_extremes(self, statistic: str, null: str) -> float:
        """Return the p-value of the number of heads that are beyond all draws.

        The same number is counted for each draw, against the others and the observed
        one: if heads share draws, these numbers are exchangeable. Zero if there are too
        few draws for a p-value.
        """
        measured = self.statistics[statistic]
        numbers = np.concatenate(
            [measured.observed[..., None], measured.nulls[null]], axis=-1
        )
        numbers = numbers.reshape(-1, numbers.shape[-1])
        numbers = numbers[np.isfinite(numbers).all(axis=1)]
        if numbers.shape[1] * LEVEL < 1:
            return 0.0
        counts = np.zeros(numbers.shape[1])
        if measured.alternative != "less":
            counts += (numbers == numbers.max(axis=1, keepdims=True)).sum(axis=0)
        if measured.alternative != "greater":
            counts += (numbers == numbers.min(axis=1, keepdims=True)).sum(axis=0)
        return float(np.mean(counts >= counts[0]))

    def draws_needed(self, null: str, level: float = LEVEL) -> int:
        """Return the number of draws with which the undecided heads can be decided.

        It is the least number of draws for which the heads that are beyond all draws
        now would have q <= `level` if they stayed so.
        """
        check_level(level)
        check_choice("null", null, list(self._families))
        names = self._families[null]
        n_extreme = sum(int(self._is_extreme(name, null).sum()) for name in names)
        alone = self._n_alone(null, level)
        # Benjamini-Hochberg: k tests at the least p-value need a k-th of the draws.
        needed = (alone + 1) / max(1, n_extreme)
        if null != UNTRAINED:
            # It has the level less 1/(B + 1), or less a half.
            needed = max(needed + 1 / level, 2 / level)
        return min(alone, math.ceil(round(needed, 6)) - 1)

    def stands_out(self, statistic: str, level: float = LEVEL) -> NDArray[np.bool_]:
        """Return the heads with q <= `level` against every null that can decide.

        A null with so few draws that no p-value reaches `level` cannot decide.
        """
        check_level(level)
        measured = self[statistic]
        nulls = [n for n in measured.nulls if self.can_decide(statistic, n, level)]
        heads = np.isfinite(measured.observed) & bool(nulls)
        for null in nulls:
            heads &= self.q_value(statistic, null) <= level
        return heads

    def top_heads(
        self, statistic: str, number: int = 5, level: float = LEVEL
    ) -> list[dict[str, Any]]:
        """Return the heads that lead in a statistic, the first one first.

        Parameters
        ----------
        statistic
            Its name.
        number
            Number of rows, at most.
        level
            Heads that stand out at this level come before all others.

        Returns
        -------
        rows
            With ``statistic``, ``layer``, ``head``, ``value`` and ``stands_out``. Large
            values lead, or small ones if these are tested; of two-sided statistics
            those far from the median.
        """
        measured = self[statistic]
        number = check_count("number", number)
        values = measured.observed
        lead = {
            "greater": values,
            "less": -values,
            "two-sided": np.abs(values - _median(values)),
        }[measured.alternative]
        marks = self.stands_out(statistic, level)
        places = [
            place for place in np.ndindex(values.shape) if np.isfinite(lead[place])
        ]
        places.sort(key=lambda place: (not marks[place], -lead[place]))
        return [
            {
                "statistic": statistic,
                "layer": self.layers[layer],
                "head": head,
                "value": float(values[layer, head]),
                "stands_out": bool(marks[layer, head]),
            }
            for layer, head in places[:number]
        ]

    def findings(self, level: float = LEVEL) -> list[str]:
        """Return sentences: the leading heads of each statistic, then the tests."""
        from eigenheads.probes._findings import findings

        check_level(level)
        return findings(self, level)

    def __repr__(self) -> str:
        n_heads = sum(
            self._has_head(layer, head) for layer, head in np.ndindex(*self._shape)
        )
        return (
            f"<ModelProbe: {len(self.statistics)} statistics of {n_heads} heads in "
            f"{len(self.layers)} layers>"
        )

    def __str__(self) -> str:
        """Return the findings, one sentence per line."""
        return "\n".join([f"{self!r}", *self.findings()])

    def can_decide(self, statistic: str, null: str, level: float = LEVEL) -> bool:
        """Return whether the draws suffice for any q-value up to `level`."""
        check_level(level)
        measured = self[statistic]
        check_choice("null", null, list(measured.nulls))
        n_draws = measured.nulls[null].shape[-1]
        if self._takes_largest(null):
            return 2 / (1 + n_draws) <= level
        return least_p_value(n_draws, alternative=measured.alternative) <= level

    def summary(self, level: float = LEVEL) -> list[dict[str, Any]]:
        """Return one row per statistic and null with the number of heads found.

        ``n_found`` is None where the draws are so few that no head could be found;
        ``n_undecided`` counts heads that are beyond all draws and not found, and
        ``n_needed`` is the number of draws that can decide, or None if these do;
        ``needs`` has it in words, in copies for the null of untrained models.

        Parameters
        ----------
        level
            Heads with a q-value up to this are found.
        """
        check_level(level)
        rows: list[dict[str, Any]] = []
        for name, statistic in self.statistics.items():
            means = statistic.null_mean
            for null in statistic.nulls:
                q = self.q_value(name, null)
                n_undecided = int(self.is_undecided(name, null, level).sum())
                is_decided = self.can_decide(name, null, level)
                needed = None
                if n_undecided:
                    needed = self.draws_needed(null, level)
                elif not is_decided:
                    needed = self._least_draws(name, null, level)
                rows.append(
                    {
                        "statistic": name,
                        "alternative": statistic.alternative,
                        "median": _median(statistic.observed),
                        "null": null,
                        "null_median": _median(means[null]),
                        "n_found": int(np.sum(q <= level)) if is_decided else None,
                        "n_heads": int(np.sum(np.isfinite(q))),
                        "n_undecided": n_undecided,
                        "n_needed": needed,
                        "needs": self._in_words(name, null, needed),
                    }
                )
        return rows

    def _is_extreme(self, statistic: str, null: str) -> NDArray[np.bool_]:
        """Return the heads with the least p-value that the number of draws allows."""
        measured = self.statistics[statistic]
        n_draws = measured.nulls[null].shape[-1]
        least = least_p_value(n_draws, alternative=measured.alternative)
        # The factor absorbs rounding errors of the quotient.
        return np.asarray(self._p_values[statistic][null] <= least * (1 + 1e-9))

    def _least_draws(self, statistic: str, null: str, level: float) -> int:
        """Return the draws with which a null can decide at all."""
        if self._takes_largest(null):
            return math.ceil(round(2 / level, 6)) - 1
        alternative = self[statistic].alternative
        return draws_needed(1, alternative=alternative, level=level)

    def _in_words(self, statistic: str, null: str, n_draws: int | None) -> str:
        if n_draws is None:
            return ""
        n_copies = self.settings.get("n_untrained")
        if null != UNTRAINED or not n_copies:
            return f"{n_draws} draws"
        # Each untrained copy gives the same number of draws.
        each = self[statistic].nulls[null].shape[-1] / n_copies
        return f"{math.ceil(n_draws / each)} copies"

    def to_records(self) -> list[dict[str, Any]]:
        """Return one row per head, statistic and null.

        Columns are those of :meth:`Statistic.to_records`, the layer's ``name`` and
        ``q_value``.
        """
        rows: list[dict[str, Any]] = []
        for name, statistic in self.statistics.items():
            q = {null: self.q_value(name, null) for null in statistic.nulls}
            for row in statistic.to_records():
                # Rows of single statistics count layers from 0; the model may not.
                place, null = (row["layer"], row["head"]), row["null"]
                if math.isnan(row["observed"]) and not self._has_head(*place):
                    continue
                row["layer"] = self.layers[place[0]]
                row["name"] = self.names[place[0]]
                row["q_value"] = math.nan if null is None else float(q[null][place])
                rows.append(row)
        return rows

    def _repr_html_(self) -> str:
        """Return a table for notebooks: heads that stand out, by statistic and null."""
        header = ["statistic", "null", "median", "of the null", "heads found", "needs"]
        rows = [
            [row["statistic"], row["null"].replace("_", " ")]
            + [f"{row[name]:.4g}" for name in ("median", "null_median")]
            + [_found_in_words(row), row["needs"]]
            for row in self.summary()
        ]
        title = (
            f"ModelProbe: {len(self.statistics)} statistics, {len(self.layers)} layers"
        )
        notes = [f"A head is found if its q-value is at most {LEVEL}.", *self.notes]
        return html_table(title, header, rows, notes=notes, n_texts=2)

    def contrast_rows(self) -> list[dict[str, Any]]:
        """Return one row per statistic and other set of tokens.

        ``median`` is that of the statistic, ``other_median`` the one on these tokens,
        and ``correlation`` the rank correlation over heads between the two.
        """
        return [
            {
                "statistic": statistic,
                "tokens": name,
                "median": _median(self[statistic].observed),
                "other_median": _median(numbers[statistic]),
                "correlation": _rank_correlation(
                    self[statistic].observed, numbers[statistic]
                ),
            }
            for statistic in self.statistics
            for name, numbers in self.contrasts.items()
        ]

    def to_frame(self) -> "pd.DataFrame":
        """Return the rows as a pandas table (extra ``frame``)."""
        pd = require("pandas", "pandas", extra="frame")
        return pd.DataFrame.from_records(self.to_records())

    def save(self, path: str | PathLike[str]) -> None:
        """Write the rows (``.json``) or everything, with draws (``.safetensors``).

        Only the latter can be loaded again. The file appears at once, under its final
        name.
        """
        check_path("path", path)
        target = Path(path)
        suffixes = (".json", ".safetensors")
        check_choice("path", target.suffix, suffixes)
        if target.suffix == ".json":
            write_atomically(target, self._write_json)
        else:
            write_arrays(target, self._arrays())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "ModelProbe":
        """Read a ``.safetensors`` file that :meth:`save` wrote."""
        check_path("path", path)
        try:
            # The reader checks sizes before it allocates, and takes stored arrays only.
            file: dict[str, Any] = dict(read_arrays(Path(path)))
            header = json.loads(str(file[_HEADER]))
            if header["format"] != _FORMAT:
                raise ValueError(f"format {header['format']!r}")
            _check_header(header, file)
            statistics = {
                entry["name"]: Statistic(
                    name=entry["name"],
                    observed=file[entry["name"]],
                    nulls={n: file[f"{entry['name']}/{n}"] for n in entry["nulls"]},
                    alternative=entry["alternative"],
                    about=entry["about"],
                )
                for entry in header["statistics"]
            }
            contrasts = {
                name: {
                    statistic: file[f"{name}: {statistic}"] for statistic in measured
                }
                for name, measured in header["contrasts"].items()
            }
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            got = Got(f"{str(path)!r} ({error})")
            contract = "a file that ModelProbe.save wrote"
            fail("path", contract, got)
        plain = ("layers", "names", "settings", "notes")
        fields = {name: header[name] for name in plain}
        return cls(statistics=statistics, contrasts=contrasts, **fields)

    def _write_json(self, file: IO[bytes]) -> None:
        about = {name: statistic.about for name, statistic in self.statistics.items()}
        rows = [_without_nan(row) for row in self.to_records()]
        content = {**self._description(), "about": about, "records": rows}
        content["contrasts"] = [_without_nan(row) for row in self.contrast_rows()]
        text = json.dumps(content, indent=1, allow_nan=False)
        file.write(f"{text}\n".encode())

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays, and a header with everything else as JSON."""
        header = self._description() | {
            "layers": list(self.layers),
            "names": list(self.names),
            "statistics": [
                {
                    "name": name,
                    "alternative": statistic.alternative,
                    "about": statistic.about,
                    "nulls": list(statistic.nulls),
                }
                for name, statistic in self.statistics.items()
            ],
        }
        header["contrasts"] = {
            name: list(numbers) for name, numbers in self.contrasts.items()
        }
        arrays: dict[str, NDArray[Any]] = {_HEADER: np.array(json.dumps(header))}
        for name, numbers in self.contrasts.items():
            arrays |= {f"{name}: {statistic}": x for statistic, x in numbers.items()}
        for name, statistic in self.statistics.items():
            arrays[name] = statistic.observed
            arrays |= {f"{name}/{null}": x for null, x in statistic.nulls.items()}
        return arrays

    def _description(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "settings": dict(self.settings),
            "notes": list(self.notes),
        }

    @property
    def _shape(self) -> tuple[int, ...]:
        """Numbers of layers and heads."""
        shapes = [statistic.observed.shape for statistic in self.statistics.values()]
        return shapes[0] if shapes else (0, 0)

    def _has_head(self, layer: int, head: int) -> bool:
        """Return whether a layer has so many heads: NaN may also be a result."""
        return any(
            math.isfinite(statistic.observed[layer, head])
            for statistic in self.statistics.values()
        )


def _found_in_words(row: Mapping[str, Any]) -> str:
    if row["n_found"] is None:
        return "cannot tell"
    return f"{row['n_found']} of {row['n_heads']}"


def _median(numbers: FloatArray) -> float:
    finite = numbers[np.isfinite(numbers)]
    return float(np.median(finite)) if finite.size else math.nan


def _rank_correlation(before: FloatArray, after: FloatArray) -> float:
    finite = np.isfinite(before) & np.isfinite(after)
    first, second = before[finite], after[finite]
    # Constant numbers have no ranks.
    if finite.sum() < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(spearmanr(first, second).statistic)


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in which JSON's null stands for NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


# --- Files, which may come from a stranger --------------------------------------------


def _check_header(header: Any, arrays: Mapping[str, Any]) -> None:
    """Raise ValueError unless a header and its arrays describe one probe.

    Examples
    --------
    >>> _check_header({"layers": [0]}, {})
    Traceback (most recent call last):
    ...
    ValueError: names is not a list of texts
    """
    if not isinstance(header, dict):
        raise ValueError("the header is not a mapping")
    _check_list(header, "layers", int)
    _check_list(header, "names", str)
    _check_list(header, "notes", str)
    _check_list(header, "statistics", dict)
    for name in ("settings", "contrasts"):
        if not isinstance(header.get(name), dict):
            raise ValueError(f"{name} is not a mapping")
    if len(header["names"]) != len(header["layers"]):
        raise ValueError("names and layers differ in length")
    _check_settings(header["settings"])
    shapes = {_check_statistic(entry, arrays) for entry in header["statistics"]}
    names = {entry["name"] for entry in header["statistics"]}
    for name in header["contrasts"]:
        _check_list(header["contrasts"], name, str)
        if not names <= {*header["contrasts"][name]}:
            raise ValueError(f"contrast {name!r} lacks a statistic")
        for statistic in header["contrasts"][name]:
            shapes.add(_numbers(arrays, f"{name}: {statistic}", 2).shape)
    if not shapes or any(0 in shape for shape in shapes):
        raise ValueError("no statistics, layers or heads")
    if len(shapes) > 1 or any(len(header["layers"]) != shape[0] for shape in shapes):
        raise ValueError("arrays and layers have different shapes")


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a setting that computations use is wrong."""
    if type(settings.get("n_untrained", 0)) is not int:
        raise ValueError("n_untrained is not an integer")
    if settings.get("false_discovery", "bh") not in ("bh", "by"):
        raise ValueError("false_discovery is neither 'bh' nor 'by'")


def _check_statistic(entry: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """Return the shape of the observed numbers, or raise ValueError."""
    for name in ("name", "alternative", "about"):
        if not isinstance(entry.get(name), str):
            raise ValueError(f"the {name} of a statistic is not a text")
    if entry["alternative"] not in ALTERNATIVES:
        raise ValueError(f"unknown alternative {entry['alternative']!r}")
    observed = _numbers(arrays, entry["name"], 2)
    _check_list(entry, "nulls", str)
    for null in entry["nulls"]:
        if _numbers(arrays, f"{entry['name']}/{null}", 3).shape[:2] != observed.shape:
            raise ValueError(f"draws of {entry['name']!r} have another shape")
    return observed.shape


def _check_list(mapping: Mapping[str, Any], name: str, kind: type) -> None:
    items = mapping.get(name)
    words = {int: "integers", str: "texts", dict: "mappings"}[kind]
    if not isinstance(items, list) or any(type(item) is not kind for item in items):
        raise ValueError(f"{name} is not a list of {words}")


def _numbers(arrays: Mapping[str, Any], name: str, n_axes: int) -> Any:
    """Return an array of floating-point numbers, or raise ValueError."""
    array = arrays.get(name)
    if array is None or array.dtype.kind != "f" or array.ndim != n_axes:
        raise ValueError(f"{name!r} is not an array of numbers with {n_axes} axes")
    return array
