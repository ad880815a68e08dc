"""The public names and signatures that other work builds on."""

import importlib
import inspect

import pytest

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


def marked(module, *values):
    """Mark what needs PyTorch."""
    marks = [pytest.mark.torch] if module in NEED_TORCH else []
    return pytest.param(*values, marks=marks)


@pytest.mark.parametrize(
    "address", [marked(address.partition(".")[0], address) for address in SIGNATURES]
)
def test_signature_is_the_contract(address):
    module, _, name = address.partition(".")
    function = getattr(importlib.import_module(f"eigenheads.{module}"), name)
    positional, keywords = SIGNATURES[address]
    parameters = inspect.signature(function).parameters.values()
    assert [
        p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD
    ] == positional
    assert {
        p.name: REQUIRED if p.default is p.empty else p.default
        for p in parameters
        if p.kind is p.KEYWORD_ONLY
    } == keywords


@pytest.mark.parametrize(
    ("module", "name"),
    [marked(m, m, n) for m, names in NAMES.items() for n in names],
)
def test_name_is_public(module, name):
    public = importlib.import_module(f"eigenheads.{module}")
    assert name in public.__all__
    assert hasattr(public, name)


def test_laws_take_their_parameters_in_order():
    from eigenheads.datasets import SingleLocation

    fields = [field.name for field in SingleLocation.__dataclass_fields__.values()]
    assert fields == ["d", "n_tokens", "gamma", "noise"]


def test_signal_tokens_take_their_parameters_in_order():
    from eigenheads.datasets import SignalTokens

    fields = {
        field.name: field.default
        for field in SignalTokens.__dataclass_fields__.values()
    }
    assert list(fields) == [
        "d",
        "n_informative",
        "n_nuisance",
        "strength",
        "signs",
        "inverse_temperature",
    ]
    assert (fields["signs"], fields["inverse_temperature"]) == ("random", 1.0)


def test_laws_of_pca_take_their_parameters_in_order():
    from eigenheads.datasets import GaussianPrompts, SpikedWishartPrompts

    fields = [f.name for f in GaussianPrompts.__dataclass_fields__.values() if f.init]
    assert fields == ["covariance", "n_tokens"]
    fields = list(SpikedWishartPrompts.__dataclass_fields__)
    agreed = ["d", "n_tokens", "degrees_of_freedom", "spike", "scale"]
    assert fields[:5] == agreed


def test_claims_have_the_agreed_fields():
    from eigenheads.experiments import Claim

    assert list(Claim.__dataclass_fields__) == [
        "statement",
        "source",
        "relation",
        "expected",
        "measured",
        "tolerance",
        "reason",
        "on_record",
        "interval",
        "level",
        "printed",
        "own_setting",
        "detectable",
        "family",
        "undecided",
        "estimate",
    ]
