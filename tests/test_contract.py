"""Every public name and its signature, compared with the committed list.

``docs/developer/public_names.txt`` is the contract: a change of a public signature
shows as a change of that file. ``python tests/test_contract.py`` writes it anew.
"""

import importlib
import inspect
from pathlib import Path

import pytest

<<<<<<< HEAD
# Positional parameters, then keyword-only ones with their defaults (... if none).
REQUIRED = ...
SIGNATURES = {
    "theory.LocationLandscape": (["law"], {"inverse_temperature": REQUIRED}),
    "theory.location_descent": (
        ["law", "start"],
        {
            "inverse_temperature": REQUIRED,
            "step_size": REQUIRED,
            "n_steps": REQUIRED,
            "record_every": 1,
        },
    ),
    "theory.PCALandscape": (
        ["law"],
        {
            "inverse_temperature": REQUIRED,
            "head": "softmax",
            "rank": 1,
            "scale_matrix": None,
        },
    ),
    "theory.SignalLandscape": (["law"], {"infinite": False, "fraction": None}),
    "theory.signal_mean_dynamics": (
        ["law", "start"],
        {
            "step_size": REQUIRED,
            "n_steps": REQUIRED,
            "record_every": 1,
            "batch_size": 1,
        },
    ),
    "theory.signal_steps": (["law"], {"error": 1e-3, "n_steps": None}),
    "dynamics.simulate_location": (
        ["law"],
        {
            "inverse_temperature": REQUIRED,
            "step_size": REQUIRED,
            "batch_size": REQUIRED,
            "n_steps": REQUIRED,
            "n_runs": REQUIRED,
            "record_every": REQUIRED,
            "seed": REQUIRED,
            "method": "exact",
            "start": None,
        },
    ),
    "dynamics.simulate_signal": (
        ["law"],
        {
            "step_size": REQUIRED,
            "n_steps": REQUIRED,
            "n_runs": REQUIRED,
            "record_every": REQUIRED,
            "seed": REQUIRED,
            "batch_size": 1,
            "averaging": False,
            "method": "exact",
            "start": None,
        },
    ),
    "dynamics.simulate_pca": (
        ["law"],
        {
            "head": "softmax",
            "rank": 1,
            "inverse_temperature": REQUIRED,
            "step_size": REQUIRED,
            "batch_size": REQUIRED,
            "n_steps": REQUIRED,
            "n_runs": REQUIRED,
            "record_every": REQUIRED,
            "seed": REQUIRED,
            "method": "exact",
            "start": None,
        },
    ),
}
SIGNATURES["experiments.reproduce"] = (
    ["keys"],
    {
        "preset": "demo",
        "seed": 0,
        "out": "results",
        "jobs": None,
        "force": False,
        "data": None,
        "listener": None,
    },
)
SIGNATURES["experiments.sweep"] = (
    ["key"],
    {
        "grid": REQUIRED,
        "seeds": 10,
        "preset": "demo",
        "backend": "loky",
        "address": None,
        "jobs": None,
        "out": "results",
        "listener": None,
    },
)
NEED_TORCH = {"nn", "adapters", "robustness"}
SIGNATURES["nn.rpc_attention"] = (
    ["keys", "values"],
    {
        "queries": None,
        "n_iter": 4,
        "sparsity": 4.0,
        "threshold": "paper",
        "multiplier": "paper",
        "query_steps": "last",
        "attn_mask": None,
        "is_causal": False,
        "scale": None,
        "return_diagnostics": False,
    },
)
SIGNATURES["adapters.capture_heads"] = (
    ["model", "batch"],
    {"layers": None, "batch_size": 8, "max_bytes": 2**30},
)
SIGNATURES["adapters.probe_model"] = (
    ["model", "batch"],
    {
        "statistics": None,
        "texts": None,
        "tokenizer": None,
        "ignore_tokens": None,
        "layers": None,
        "n_permutations": 200,
        "n_redraws": None,
        "n_untrained": 4,
        "untrained": None,
        "false_discovery": "bh",
        "batch_size": 8,
        "seed": 0,
        "jobs": None,
        "progress": False,
    },
)
SIGNATURES["probes.kernel_pca_probe"] = (
    ["queries", "keys", "values"],
    {
        "outputs": None,
        "tokens": None,
        "mask": None,
        "is_causal": False,
        "scale": None,
        "standardize": False,
        "n_permutations": 200,
        "n_redraws": None,
        "untrained": None,
        "seed": 0,
    },
)
SIGNATURES["probes.covariance_probe"] = (
    ["tokens", "w_query", "w_key"],
    {
        "w_value": None,
        "w_output": None,
        "mask": None,
        "n_components": None,
        "n_permutations": 200,
        "untrained": None,
        "seed": 0,
    },
)
SIGNATURES["adapters.swap_attention"] = (["model", "to"], {"layers": None})
NAMES = {
    "robustness": ["evaluate_robustness"],
    "adapters": [
        "CapturedLayer",
        "Capture",
        "attention_summary",
        "capture_heads",
        "load_swapped",
        "probe_model",
        "swap_attention",
    ],
    "nn": ["RPCAttention", "ScaledAttention", "SymmetricAttention", "rpc_attention"],
    "datasets": [
        "BagLaw",
        "GaussianPrompts",
        "SignalTokens",
        "SingleLocation",
        "SpikedWishartPrompts",
    ],
    "estimators": [
        "AttentionPCA",
        "BagPooling",
        "PooledBagClassifier",
        "PooledBagRegressor",
        "RBFFeatures",
        "RobustPCA",
        "SignalDirection",
        "SingleLocationClassifier",
        "SingleLocationClassifierCV",
        "SingleLocationRegressor",
        "SingleLocationRegressorCV",
        "TokenTransformer",
        "compare_bag_estimators",
    ],
    "experiments": ["reproduce", "sweep"],
}
=======
import eigenheads

LISTED = Path(__file__).parent.parent / "docs" / "developer" / "public_names.txt"
# Subpackages that need PyTorch or another extra.
NEED_TORCH = {"nn", "adapters", "robustness", "recipes"}
PACKAGES = sorted(name for name in eigenheads.__all__ if not name.startswith("_"))
SIMPLE = (type(None), bool, int, float, str, tuple)
>>>>>>> main


def describe_package(package):
    """Return a line per public name of a package, methods indented below classes."""
    module = importlib.import_module(f"eigenheads.{package}")
    lines = []
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        lines.append(f"{package}.{name}{_call(thing)}")
        if inspect.isclass(thing):
            lines += [f"    .{method}" for method in _methods(thing)]
    return lines


def _methods(cls):
    # Inherited methods count if they are ours; scikit-learn's and PyTorch's are theirs.
    ours = [base for base in cls.__mro__ if base.__module__.startswith("eigenheads")]
    members = {
        name: member for base in ours[::-1] for name, member in vars(base).items()
    }
    for name in sorted(name for name in members if not name.startswith("_")):
        member = members[name]
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        if inspect.isfunction(member):
            yield name + _call(member)
        elif isinstance(member, property):
            yield name


def _call(thing):
    if not callable(thing):
        return ""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return "(…)"
    shown, starred = [], False
    for one in parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not starred:
            shown.append("*")
        starred |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        prefix = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        shown.append(prefix + one.name + _default(one.default))
    return f"({', '.join(shown)})"


def _default(value):
    if value is inspect.Parameter.empty:
        return ""
    return f"={value!r}" if isinstance(value, SIMPLE) else "=…"


def listed(package):
    """Return the committed lines of a package."""
    lines, inside = [], False
    for line in LISTED.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            inside = line.startswith(f"{package}.")
        if inside:
            lines.append(line)
    return lines


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(name, marks=[pytest.mark.torch] if name in NEED_TORCH else [])
        for name in PACKAGES
    ],
)
def test_signatures_are_the_committed_ones(package):
    assert describe_package(package) == listed(package), (
        "A public name or signature changed. If this is intended, run "
        "`python tests/test_contract.py` and add a line to CHANGELOG.md."
    )


if __name__ == "__main__":
    text = [line for package in PACKAGES for line in describe_package(package)]
    LISTED.write_text("\n".join(text) + "\n", encoding="utf-8")
