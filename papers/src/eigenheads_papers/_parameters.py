"""Parameters of experiments: their meanings, and values that a caller changes."""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from eigenheads.extend import Got, fail
from eigenheads_papers._core import Experiment
from eigenheads_papers._registry import is_built_in

Value: TypeAlias = float | bool | str
# Tables hold integers of 64 bits.
MAX_WHOLE = 2**63 - 1
# Names that papers and other libraries use for our parameters.
_OTHER_NAMES = {
    "lambda": "inverse_temperature",
    "lam": "inverse_temperature",
    "beta": "inverse_temperature",
    "temperature": "inverse_temperature",
    "eta": "step_size",
    "lr": "step_size",
    "learning_rate": "step_size",
    "dim": "d",
    "dimension": "d",
    "l": "n_tokens",
    "length": "n_tokens",
    "theta": "strength",
    "runs": "n_runs",
    "steps": "n_steps",
}


# One meaning per name: an experiment that needs another one uses another name.
MEANINGS: Final[Mapping[str, str]] = {
    "accepted_error": "share of errors at which the needed strength is read",
    "alpha": "logarithm of the number of tokens, per dimension",
    "attack_budget": "size of the attack, in 1/255 of the pixel range",
    "attack_distance": "largest Euclidean change by an attack, in pixel ranges",
    "attack_sum": "largest sum of changes by an attack, in pixel ranges",
    "averaging": "decay of the running average of the weights",
    "batch_size": "samples per gradient step",
    "beta": "inverse temperature over the square root of the dimension",
    "betas": "inverse temperatures over the square root of the dimension",
    "budget": "tokens per run, which sets the number of steps",
    "calibration": "numbers of images that fit a screen",
    "check_d": "dimension of the check against samples",
    "check_n_tokens": "tokens per sample in the check against samples",
    "counts": "numbers of nuisance tokens",
    "d": "dimension of the tokens",
    "d_head": "width of a head",
    "d_model": "width of the model",
    "data": "data set",
    "decay": "decay rate of the inverse temperature",
    "degrees_of_freedom": "degrees of freedom of the Wishart covariances",
    "depth": "number of layers",
    "digits": "whether to include images of digits",
    "dimensions": "dimensions of the tokens",
    "dof": "degrees of freedom of Student's t",
    "dropped": "largest share of tokens to drop in training",
    "duration": "end time of the gradient flow",
    "eigenvalues": "eigenvalues of the covariance",
    "error": "size of the planted errors",
    "evaluation": "file with the evaluation of trained models",
    "factors": "step sizes, in units of the best one",
    "fast_start": "overlap at the start of the fast runs",
    "fast_steps": "steps of the fast runs",
    "few_severities": "severities at which every model is measured",
    "figure_d": "dimension of the setting of the paper's figure",
    "figure_tokens": "tokens of the setting of the paper's figure",
    "first_power": "smallest dimension, as a power of two",
    "gamma": "standard deviation of the deciding token",
    "hard": "numbers of nuisance tokens under the hard reading of the strength",
    "head": "softmax or linear",
    "head_rate": "learning rate of the classifier",
    "heads": "numbers of heads",
    "hidden": "width of the hidden layer",
    "horizon": "training time: steps times step size, or steps per dimension",
    "inverse_temperature": "inverse temperature of the head, the λ of the papers",
    "key_overlaps": "overlaps of the key with the oracle's",
    "key_scales": "standard deviations of the clean keys",
    "kinds": "kinds of attention to fine-tune with",
    "last_power": "largest dimension, as a power of two",
    "laws": "laws of bags",
    "layers": "layers of the model to measure",
    "learning_rate": "largest learning rate",
    "least": "smallest agreement that counts as learned",
    "least_accuracy": "accuracy in percent that counts as well trained",
    "length": "words per sequence",
    "lengths": "numbers of tokens per prompt",
    "main_attacks": "attacks that every model meets",
    "main_calibration": "images that fit the screen of the main comparison",
    "margin": "difference that counts as none, fixed before the run",
    "max_steps": "largest number of steps",
    "max_strength": "strength of the law that chooses a position by its score",
    "max_time": "end of the time axis",
    "measures": "measures to judge",
    "mnist": "whether to include MNIST",
    "most": "largest error that counts as learned",
    "musk": "sets of molecules",
    "n_attack_steps": "gradient steps of an attack",
    "n_attacked": "images to attack",
    "n_bags": "bags to fit",
    "n_batches": "batches that estimate an error",
    "n_blind": "images for attacks without gradients",
    "n_broken": "runs with a condition of the theorem broken",
    "n_classes": "number of classes",
    "n_controls": "runs without a signal",
    "n_covariances": "random covariances",
    "n_epochs": "passes over the training samples",
    "n_flows": "gradient flows to draw",
    "n_folds": "folds of a cross-validation",
    "n_grid": "points per axis of the map",
    "n_heads": "heads per layer",
    "n_images": "images to measure",
    "n_informative": "informative tokens per prompt",
    "n_iter": "iterations of the pursuit",
    "n_landmarks": "RBF features of the search",
    "n_layers": "number of layers",
    "n_nuisance": "nuisance tokens per prompt",
    "n_other_seeds": "training runs per model that is measured in part",
    "n_passages": "passages of text to measure",
    "n_passes": "passes over the prompts",
    "n_patches": "patches per image that an attack may change",
    "n_permutations": "draws of each permutation null",
    "n_planted": "tokens per sequence with planted errors",
    "n_prompts": "prompts of the training set",
    "n_records": "recorded points along training",
    "n_redraws": "draws of each null that redraws matrices",
    "n_repeats": "repetitions of each point",
    "n_runs": "independent runs",
    "n_samples": "samples that estimate a risk",
    "n_searches": "starts of the search for fixed points",
    "n_seeds": "training runs per variant",
    "n_sequences": "sequences with planted errors",
    "n_shown": "iterations to show",
    "n_slow": "runs where the risk is nearly flat",
    "n_starts": "random starts",
    "n_steps": "training steps",
    "n_test": "test samples",
    "n_tokens": "tokens per sample or prompt",
    "n_train": "training samples",
    "n_twin": "sentences for the untrained twin of the encoder",
    "n_untrained": "untrained copies of the model",
    "n_words": "size of the vocabulary",
    "noise": "standard deviation of the noise of the target",
    "occluded": "share of the area that a grey square covers",
    "omegas": "weights of the positional target",
    "on_manifold": "whether to start on the invariant manifold",
    "others": "models that are measured in part",
    "overlaps": "overlaps of head and principal direction",
    "own_setting": "whether the models were trained in the paper's setting",
    "patch": "width of a patch in pixels",
    "penalty": "price of distances above the threshold, for an aimed attack",
    "photographs": "whether digits lie on photographs",
    "population_inverse_temperature": "inverse temperature of the population descent",
    "population_step_size": "step size of the population descent",
    "positive_share": "share of positive sequences",
    "primary": "models that are measured under every condition",
    "prompts_per_covariance": "prompts that share a covariance",
    "rank": "rank of the clean keys",
    "ranks": "numbers of directions to learn",
    "ratio": "ratio of successive eigenvalues",
    "ratios": "samples per dimension",
    "record_every": "steps between records",
    "replaced": "share of patches that are replaced",
    "roles": "role of each model in the comparisons",
    "rounded": "whether linear layers multiply in bfloat16",
    "scale": "scale of the Wishart covariances",
    "severities": "severities of the corruptions, 1 to 5",
    "severity": "severity of the corruptions, 1 to 5",
    "share": "share of the key entries that are replaced",
    "shares": "shares of informative, or of replaced tokens",
    "sharpness": "inverse temperature before its scaling with the dimension",
    "sharpness_exponent": "exponent of the inverse temperature in the dimension",
    "sharpnesses": "inverse temperatures of which the best one counts",
    "shift": "distance of the classes",
    "signals": "sizes of the signal, the c of the paper",
    "slow_d": "dimension of the runs where the risk is nearly flat",
    "slow_horizon": "their training time",
    "slow_step": "their step size before its scaling with the dimension",
    "soft": "numbers of nuisance tokens under the soft reading of the strength",
    "source": "text: the shipped sentences, or wikitext2",
    "sparsity": "the λ of RPC-Attention",
    "spike": "size of the spike of the covariance",
    "start": "size of the weights, or of the overlaps, at the start",
    "step": "step size before its scaling with the dimension",
    "step_size": "step size",
    "strength": "strength of the signal, the θ of the paper",
    "strengths": "strengths of the signal",
    "tokens_exponent": "exponent of the number of tokens in the dimension",
    "typos": "share of words with a typing mistake",
    "variants": "kinds of attention to compare",
    "vit_steps": "training steps of the small vision transformer",
    "width": "width of the model, or of the keys",
}


def parameter_rows(experiment: Experiment[Any]) -> list[tuple[str, ...]]:
    """Return name, meaning, and the value at each preset, of every parameter.

    A field of a user's parameters says its meaning as metadata:
    ``field(default=3, metadata={"meaning": "number of runs"})``.
    """
    rows = []
    # A name may mean something else in an experiment of a user.
    meanings = MEANINGS if is_built_in(experiment.key) else {}
    presets = experiment.presets.values()
    for field in dataclasses.fields(next(iter(presets))):
        values = [_shown(getattr(params, field.name)) for params in presets]
        meaning = field.metadata.get("meaning") or meanings.get(field.name, "")
        rows.append((field.name, str(meaning), *values))
    return rows


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(_shown(part) for part in value) or "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def suggest_name(name: object, names: Sequence[str]) -> str:
    """Return a hint that names the parameter that was probably meant, or nothing.

    Examples
    --------
    >>> suggest_name("lambda", ["d", "inverse_temperature"])
    "Did you mean 'inverse_temperature'?"
    """
    usual = _OTHER_NAMES.get(str(name).lower())
    close = [usual] if usual in names else []
    close += difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    return f"Did you mean {close[0]!r}?" if close else ""


def parse_settings(
    texts: Sequence[str], *, option: str, contract: str = "NAME=VALUE"
) -> dict[str, str]:
    """Return values by parameter name from strings ``name=value``.

    Examples
    --------
    >>> parse_settings(["d=400", "n_runs=3"], option="set")
    {'d': '400', 'n_runs': '3'}
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            fail(option, contract, text)
        if name in settings:
            fail(option, "each parameter once", Got(f"{name!r} twice"))
        settings[name] = value
    return settings


def change_params(params: Any, settings: Mapping[str, Any]) -> Any:
    """Return parameters with some values replaced, each of the type it had.

    Parameters
    ----------
    params
        A dataclass.
    settings
        Values by name; strings are read as values, with commas for several.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Sizes:
    ...     d: int = 3
    ...     scales: tuple[float, ...] = (1.0,)
    >>> change_params(Sizes(), {"d": "1e3", "scales": "1,2"})
    Sizes(d=1000, scales=(1.0, 2.0))
    """
    if not settings:
        return params
    # Nested sizes, such as those of a text, have no plain value to replace.
    names = [
        field.name
        for field in dataclasses.fields(params)
        if not dataclasses.is_dataclass(getattr(params, field.name))
    ]
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in names:
            contract = f"parameters of the experiment ({', '.join(names)})"
            fail("settings", contract, name, hint=suggest_name(name, names))
        changed[name] = _like(name, value, getattr(params, name))
    return dataclasses.replace(params, **changed)


def _like(name: str, value: object, present: object) -> object:
    """Return a value of the type of the present one; a tuple for a tuple."""
    if not isinstance(present, tuple):
        return coerce_value(name, value, type(present))
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    parts = list(value) if isinstance(value, Sequence | np.ndarray) else [value]
    # An empty tuple does not tell the type of its elements; their text does.
    kind = type(present[0]) if present else type(parts[0]) if parts else str
    return tuple(coerce_value(name, part, kind) for part in parts)


def coerce_value(label: str, value: object, kind: type) -> Value:
    """Return a value with the type of the parameter, or raise."""
    if isinstance(value, np.generic):
        value = value.item()
    if kind is str:
        if not isinstance(value, str):
            _refuse(label, "strings", value)
        return value
    if kind is bool:
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower(), value)
        if not isinstance(value, bool):
            _refuse(label, "true or false", value)
        return value
    return _number_like(label, value, kind)


def _number_like(label: str, value: object, kind: type) -> float:
    number = read_number(value) if isinstance(value, str) else value
    # Booleans are integers in Python and would pass as 0 and 1.
    if isinstance(number, bool) or not isinstance(number, int | float):
        _refuse(label, "finite numbers", value)
    if not math.isfinite(number):
        _refuse(label, "finite numbers", value)
    if kind is not int:
        return float(number)
    if not float(number).is_integer():
        _refuse(label, "integers", value)
    if abs(number) > MAX_WHOLE:
        _refuse(label, "integers below 2**63", value)
    return int(number)


def read_number(word: str) -> float:
    """Return the number of a word, or NaN."""
    try:
        return float(word)
    except ValueError:
        return math.nan


def _refuse(label: str, contract: str, value: object) -> NoReturn:
    fail(label, contract, value)
