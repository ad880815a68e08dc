"""Check of stored probes, which may come from a stranger."""

from collections.abc import Mapping
from typing import Any

from eigenheads.probes._significance import ALTERNATIVES


def check_header(header: Any, arrays: Mapping[str, Any]) -> None:
    """Raise ValueError unless a header and its arrays describe one probe.

    Examples
    --------
    >>> check_header({"layers": [0]}, {})
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
    shapes = {_check_statistic(one, arrays) for one in header["statistics"]}
    known = {one["name"] for one in header["statistics"]}
    for name in header["contrasts"]:
        _check_list(header["contrasts"], name, str)
        if not known <= {*header["contrasts"][name]}:
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


def _check_statistic(one: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """Return the shape of the observed numbers, or raise ValueError."""
    for name in ("name", "alternative", "about"):
        if not isinstance(one.get(name), str):
            raise ValueError(f"the {name} of a statistic is not a text")
    if one["alternative"] not in ALTERNATIVES:
        raise ValueError(f"unknown alternative {one['alternative']!r}")
    observed = _numbers(arrays, one["name"], 2)
    _check_list(one, "nulls", str)
    for null in one["nulls"]:
        if _numbers(arrays, f"{one['name']}/{null}", 3).shape[:2] != observed.shape:
            raise ValueError(f"draws of {one['name']!r} have another shape")
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
