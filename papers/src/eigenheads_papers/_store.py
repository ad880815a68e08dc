"""Results on disk: one folder each, complete or absent.

A folder holds ``table.safetensors`` (the arrays), ``figure.svg`` and
``manifest.json``. The manifest is written last and carries the digest of the arrays:
a folder without one is not a result, so a kill at any moment loses at most the result
that was being written.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from eigenheads.extend import (
    UsageError,
    check_instance,
    check_items,
    check_path,
    check_regular,
    escape_controls,
    read_arrays,
    remove_leftovers,
    write_arrays,
    write_atomically,
)
from eigenheads_papers._claims import OUTCOMES, Claim, Relation
from eigenheads_papers._core import Experiment, Result
from eigenheads_papers._registry import experiment_keys

FORMAT = "eigenheads-result/3"
# Largest manifest, figure and table that are read, in bytes.
_LARGEST_TEXT, _LARGEST_FIGURE, _LARGEST_TABLE = 2**24, 2**25, 2**32
_MANIFEST, _TABLE, _FIGURE = "manifest.json", "table.safetensors", "figure.svg"
_RELATIONS, _OUTCOMES = get_args(Relation), OUTCOMES
# A field of the wrong type or size can raise any of these while it is read.
_WRONG_FIELD = (
    AttributeError,
    KeyError,
    OSError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


class StoreError(UsageError, ValueError):
    """Error: a file in the store is damaged or was not written by this package."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_controls(message))


def plain_params(params: Any) -> dict[str, Any]:
    """Return a parameter dataclass as JSON values (tuples become lists)."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(params)))
    return plain


def params_from_json(experiment: Experiment[Any], fields: Mapping[str, Any]) -> Any:
    """Return the parameters of an experiment from JSON values.

    All presets have one class. JSON has turned its tuples into lists, so they are
    turned back.
    """
    kind = type(next(iter(experiment.presets.values())))
    return kind(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
    )


def result_folder(
    root: Path,
    *,
    key: str,
    preset: str,
    seed: int,
    params: Mapping[str, Any],
    version: str,
) -> Path:
    """Return the folder of a request."""
    request = json.dumps([key, preset, seed, params, version], sort_keys=True)
    digest = hashlib.sha256(request.encode()).hexdigest()[:10]
    return root / key / f"{preset}-seed{seed}-{digest}"


def save_result(folder: Path, result: Result) -> None:
    """Write a result; a reader sees all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    # Without its manifest the folder counts as absent while its files are replaced.
    (folder / _MANIFEST).unlink(missing_ok=True)
    write_arrays(folder / _TABLE, result.table)
    write_atomically(folder / _FIGURE, lambda file: _write(file, result.figure))
    manifest = {
        "format": FORMAT,
        "key": result.key,
        "preset": result.preset,
        "seed": result.seed,
        "params": result.params,
        "version": result.version,
        "created": result.created,
        "seconds": round(result.seconds, 3),
        "versions": result.versions,
        "sha256": {name: _digest(folder / name) for name in (_TABLE, _FIGURE)},
        "claims": [claim_to_json(claim) for claim in result.claims],
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(folder / _MANIFEST, lambda file: _write(file, text.encode()))


def load_result(folder: Path) -> Result | None:
    """Return a complete result, or None; raise an error that names a damaged file."""
    path = folder / _MANIFEST
    if not path.is_file():
        return None
    manifest = _read_manifest(path)
    # Digests come first, so that a damaged file is named before it is parsed.
    for name in (_TABLE, _FIGURE):
        _check_digest(folder / name, manifest)
    try:
        arrays = read_arrays(folder / _TABLE)
        return Result(
            key=_text(manifest["key"]),
            preset=_text(manifest["preset"]),
            seed=int(manifest["seed"]),
            params=_params(manifest["params"]),
            version=_text(manifest["version"]),
            table={name: _column(array) for name, array in arrays.items()},
            claims=tuple(claim_from_json(claim) for claim in manifest["claims"]),
            seconds=float(manifest["seconds"]),
            created=_text(manifest["created"]),
            versions={_text(k): _text(v) for k, v in manifest["versions"].items()},
            figure=(folder / _FIGURE).read_bytes(),
            reused=True,
        )
    except _WRONG_FIELD as error:
        raise _damaged(path, f"a field is missing or wrong: {error}") from error


def _check_digest(path: Path, manifest: dict[str, Any]) -> None:
    try:
        check_regular(path, _LARGEST_TABLE if path.name == _TABLE else _LARGEST_FIGURE)
        digest = _digest(path)
    except OSError as error:
        raise _damaged(path, f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    digests = manifest.get("sha256")
    if not isinstance(digests, dict) or digests.get(path.name) != digest:
        raise _damaged(path, f"its digest is not the one in {_MANIFEST}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    if escape_controls(value) != value:
        raise ValueError(f"{value!r} has control characters")
    return value


def _column(array: NDArray[np.generic]) -> NDArray[np.float64]:
    if array.dtype.kind not in "biuf":
        raise TypeError(f"a column of the table has dtype {array.dtype}")
    return array.astype(np.float64, copy=False)


def _params(value: Any) -> dict[str, Any]:
    """Return the parameters, or raise unless they are what our writer writes."""
    params = dict(value)
    _check_plain(params)
    return params


def _check_plain(value: object) -> None:
    """Raise unless a value is made of numbers and texts without control characters."""
    if isinstance(value, str):
        _text(value)
    elif isinstance(value, list):
        for item in value:
            _check_plain(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            _text(name)
            _check_plain(item)


def stored_results(
    root: str | PathLike[str], *, experiments: Sequence[Experiment[Any]] = ()
) -> Iterator[Result]:
    """Yield every complete result below a folder, in the order of the report.

    Parameters
    ----------
    root
        Folder of results.
    experiments
        Experiments of your own whose results are read as well. Folders of other keys
        are ignored.
    """
    folder = check_path("root", root)
    users = check_items("experiments", experiments, "experiments")
    for experiment in users:
        check_instance("experiments", experiment, Experiment)
    keys = [*experiment_keys(), *(experiment.key for experiment in users)]
    for key in dict.fromkeys(keys):
        for path in sorted((folder / key).glob(f"*/{_MANIFEST}")):
            result = load_result(path.parent)
            if result is not None:
                yield result


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = _read_json(path)
    except (OSError, ValueError) as error:
        raise _damaged(path, "it is not JSON text") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _damaged(path, f"it does not say format {FORMAT!r}")
    return manifest


def _read_json(path: Path) -> Any:
    """Return what a JSON file holds; ValueError if it is none, too large or deep."""
    check_regular(path, _LARGEST_TEXT)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _damaged(path: Path, why: str) -> StoreError:
    # The path ends in paper, figure, result and file: the first two are the key.
    key = "/".join(path.parts[-4:-2])
    return StoreError(
        f"store: `{path}` must be a whole file of a result; got a damaged or foreign "
        f"one ({why}). Reproduce {key} with --force to compute it again, or remove "
        "its folder."
    )


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """Return a claim as a manifest has it, with its verdict."""
    fields = dataclasses.asdict(dataclasses.replace(claim, estimate=None))
    del fields["estimate"]
    # JSON has no NaN and no infinity: such numbers are null.
    for name in ("measured", "detectable"):
        fields[name] = _finite(fields[name])
    if claim.interval:
        fields["interval"] = [_finite(end) for end in claim.interval]
    return {**fields, "verdict": claim.verdict}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def claim_from_json(fields: Mapping[str, Any]) -> Claim:
    """Return a claim as a manifest has it."""
    values = {name: value for name, value in fields.items() if name != "verdict"}
    for name in ("expected", "measured", "tolerance"):
        values[name] = math.nan if values[name] is None else float(values[name])
    for name in ("statement", "source", "relation", "reason", "on_record"):
        values[name] = _text(values[name])
    for name, choices in (("relation", _RELATIONS), ("on_record", _OUTCOMES)):
        if values[name] not in choices:
            raise ValueError(f"{name} {values[name]!r} is none of {', '.join(choices)}")
    for name in ("undecided", "unjudged", "changed", "family"):
        values[name] = _text(values.get(name, ""))
    for name in ("level", "printed", "detectable"):
        value = values.get(name)
        values[name] = None if value is None else float(value)
    # The writer stores an infinite end as null, and the place in the pair tells its
    # sign.
    if values.get("interval") is not None:
        low, high = values["interval"]
        values["interval"] = (
            -math.inf if low is None else float(low),
            math.inf if high is None else float(high),
        )
        # Every claim with an interval has a detectable effect, so null is infinity.
        if values["detectable"] is None:
            values["detectable"] = math.inf
    return Claim(**values)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(file: Any, content: bytes) -> None:
    file.write(content)
