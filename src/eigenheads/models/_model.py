"""Declare an attention model: a loss in NumPy and a law of tokens.

Numba keeps compiled code beside the file of a function, so the source of a model is
written to a file whose name is the digest of its contents. Processes that write the
same file at the same time write the same bytes, under temporary names that are then
moved into place. Where no folder can be written, the module lives in memory and each
process compiles it.
"""

import hashlib
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from eigenheads._checks import (
    Got,
    as_float,
    check_choice,
    check_count,
    fail,
    shown,
)
from eigenheads._compile import PACKAGE_DIGEST
from eigenheads._files import check_module_file
from eigenheads._typing import FloatArray
from eigenheads.models._blocks import (
    Counts,
    Workspace,
    memory_shapes,
    module_source,
)
from eigenheads.models._emit import Sizes
from eigenheads.models._graph import NotTraceable
from eigenheads.models._program import Program, ProgramLines
from eigenheads.models._tokens import (
    LatentMultiple,
    LawSource,
    RandomNumber,
    Token,
    TokenLaw,
)

# --- Generated modules on disk -------------------------------------------------------


def cache_folder() -> Path:
    """Return the folder of generated modules.

    ``EIGENHEADS_CACHE_DIR``, else a folder in ``NUMBA_CACHE_DIR``, else in the user's
    folder for caches.
    """
    folder = os.environ.get("EIGENHEADS_CACHE_DIR")
    if folder:
        return Path(folder)
    numba = os.environ.get("NUMBA_CACHE_DIR")
    if numba:
        return Path(numba) / "eigenheads-models"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", str(Path.home()))
    else:
        base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(base) / "eigenheads" / "models"


_LOADED: dict[str, ModuleType] = {}


def load_module(source: str, custom: Callable[..., Any] | None = None) -> ModuleType:
    """Return the module of this source, from the cache if it is there.

    A module that calls a function of the user (`custom`) lives in memory: nothing on
    disk would know of an edit of that function.
    """
    if custom is not None:
        return _in_memory(source, custom)
    # The name is a digest of the whole source and of what it calls: an edited model or
    # a new version of the package gets a new file, and no file changes its meaning.
    digest = hashlib.sha256((PACKAGE_DIGEST + source).encode()).hexdigest()
    name = f"eigenheads_model_{digest[:20]}"
    if name not in _LOADED:
        path = _written(name, source)
        _LOADED[name] = (
            _in_memory(source) if path is None else _imported(name, source, path)
        )
    return _LOADED[name]


def _written(name: str, source: str) -> Path | None:
    """Return the file of a module, written if it is not there; None if it cannot be."""
    path = cache_folder() / f"{name}.py"
    try:
        check_module_file(path)
        # Left alone if it is there: its age is part of the key of compiled code.
        if path.exists() and path.read_text(encoding="utf-8") == source:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Each writer has a temporary file of its own, in the same folder, so that the
        # rename is atomic: readers see no file or a whole file. If two processes write
        # at the same time, the last one wins, with the same bytes.
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(source)
        Path(temporary).replace(path)
    # A folder that cannot be written is no error: the module lives in memory.
    except OSError:
        return None
    return path


def _imported(name: str, source: str, path: Path) -> ModuleType:
    """Run the source, which the file has, under the name of the file.

    An import would run bytecode beside the file, which need not be of this source.
    """
    module = ModuleType(name)
    module.__file__ = str(path)
    # Numba finds a cached function's module by its name.
    sys.modules[name] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def _in_memory(source: str, custom: Callable[..., Any] | None = None) -> ModuleType:
    module = ModuleType("eigenheads_model_in_memory")
    if custom is not None:
        module.__dict__["custom_draw"] = custom
    exec(compile(source, "<model>", "exec"), module.__dict__)
    return module


# --- The model -----------------------------------------------------------------------


_GEOMETRIES = ("sphere", "free")
# Each normal of a sample is a leaf of the traced loss.
_MAX_NORMALS = 10_000


class Model:
    r"""An attention model: weights, planted directions, a law of tokens and a loss.

    A sample has tokens :math:`x_i = \sum_j m_{ij} u_j + s_i z_i` in
    :math:`\mathbb R^d` with orthonormal planted :math:`u_j` and standard normal
    :math:`z_i`. The loss is an ordinary function of one sample, written with NumPy;
    training is stochastic gradient descent on fresh samples. :func:`simulate` runs it
    exactly in law in any dimension.

    Parameters
    ----------
    loss
        ``loss(X, w, u, g, p)`` returns a number. ``X`` holds the tokens, (n_tokens, d);
        ``w.k``, ``u.key`` are weights and planted directions, (d,); ``g[0]`` is a
        standard normal and ``g.label`` a latent of the sample; ``p.name`` is a
        parameter. A penalty is a part of the loss: ``p.c * (w.k @ w.v) ** 2``.
    weights
        Names of the weight vectors, each ``"sphere"`` (unit length) or ``"free"``.
    planted
        Names of the planted directions.
    tokens
        Groups of tokens in order of position; a single :class:`Token` is one group.
    normals
        Number of standard normals ``g[0]``, ``g[1]``, … per sample.
    latents
        Other random numbers of a sample by name, such as ``{"label": signs()}``.
    parameters
        Default values of parameters.
    draw
        A law of your own instead of the groups': a Numba function ``draw(rng, d, mean,
        scale, latents)`` that writes the means on the planted directions, (n_planted,
        n_tokens), the scales, (n_tokens,), and latents. `tokens` then only counts.

    Examples
    --------
    >>> def location(X, w, u, g, p):
    ...     T = np.sum(np.tanh(p.inverse_temperature * (X @ w.k)) * (X @ w.v))
    ...     return (T - X[0] @ u.value - p.noise * g[0]) ** 2
    >>> model = Model(
    ...     location, weights={"k": "sphere", "v": "sphere"}, planted=("key", "value"),
    ...     tokens=[Token(mean={"key": lambda d: (d / 2) ** 0.5}, scale=0.7), Token(4)],
    ...     normals=1, parameters={"noise": 0.1})
    >>> model.parameters
    ('inverse_temperature', 'noise')
    >>> model.overlaps
    ('k.key', 'k.value', 'v.key', 'v.value', 'k.v')
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        *,
        weights: Mapping[str, str],
        planted: Sequence[str] = (),
        tokens: Token | Sequence[Token],
        normals: int = 0,
        latents: Mapping[str, RandomNumber] | None = None,
        parameters: Mapping[str, float] | None = None,
        draw: Callable[..., None] | None = None,
    ) -> None:
        if not callable(loss):
            contract = "a function loss(X, w, u, g, p)"
            fail("loss", contract, loss, error=TypeError)
        self.loss = loss
        self.weights = _check_weights(weights)
        numbers = _check_latents({} if latents is None else latents)
        self.planted = _check_names("planted", planted, taken=tuple(self.weights))
        self.law = TokenLaw(
            _check_tokens(tokens, self.planted, numbers),
            self.planted,
            check_count("normals", normals, minimum=0, maximum=_MAX_NORMALS),
            numbers,
            _check_draw(draw),
        )
        self._program = self._traced()
        self.defaults = self._check_parameters({} if parameters is None else parameters)

    @property
    def name(self) -> str:
        """Name of the loss."""
        return getattr(self.loss, "__name__", "loss")

    @property
    def n_tokens(self) -> int:
        """Tokens per sample."""
        return self.law.n_tokens

    @property
    def n_axes(self) -> int:
        """Directions that the simulation follows: planted ones and weights."""
        return len(self.planted) + len(self.weights)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, in the order in which the loss reads them."""
        return tuple(self._program.parameters)

    @property
    def n_combinations(self) -> int:
        """Combinations of tokens whose products the loss takes.

        0 if it only reads fields ``X @ w.k``.
        """
        return self._program.n_combinations

    @property
    def on_sphere(self) -> tuple[bool, ...]:
        """True for each weight that has unit length."""
        return tuple(kind == "sphere" for kind in self.weights.values())

    @property
    def overlaps(self) -> tuple[str, ...]:
        """Names of the inner products that describe the weights.

        ``"k.key"`` with planted directions, ``"k.v"`` among weights, and the squared
        length ``"k.k"`` of each free weight.
        """
        names = list(self.weights)
        planted = [f"{w}.{u}" for w in names for u in self.planted]
        pairs = [
            f"{name}.{partner}"
            for row, name in enumerate(names)
            for partner in names[row:]
            if name != partner or self.weights[name] == "free"
        ]
        return (*planted, *pairs)

    def __repr__(self) -> str:
        return (
            f"Model({self.name}: weights {', '.join(self.weights)}; planted "
            f"{', '.join(self.planted) or 'none'}; {self.n_tokens} tokens)"
        )

    def evaluate(
        self,
        tokens: FloatArray,
        weights: FloatArray,
        planted: FloatArray,
        latents: FloatArray,
        parameters: Sequence[float] | FloatArray,
    ) -> float:
        """Return the loss of one sample of real vectors; nothing is traced.

        `tokens` has shape (n_tokens, d); `weights` and `planted` have one row each per
        name; `latents` and `parameters` are in the order of the declaration.
        """
        normals = self.law.normals
        g = _LatentValues(latents[:normals], self.law.latent_names, latents[normals:])
        return self.loss(
            tokens,
            SimpleNamespace(**dict(zip(self.weights, weights, strict=True))),
            SimpleNamespace(**dict(zip(self.planted, planted, strict=True))),
            g,
            SimpleNamespace(**dict(zip(self.parameters, parameters, strict=True))),
        )

    @cached_property
    def _sources(self) -> tuple[Sizes, LawSource, ProgramLines]:
        sizes = Sizes(self.n_tokens)
        return sizes, LawSource(self.law, sizes), self._program.lines(sizes)

    def law_numbers(self, d: int) -> FloatArray:
        """Return the numbers of the token law in dimension `d`."""
        return self._sources[1].numbers(d)

    @property
    def sizes(self) -> Any:
        """Whole numbers that the generated module reads, such as group boundaries."""
        return np.array([*self._sources[0].values, 0], dtype=np.int64)

    def workspace(self, state: FloatArray, *, n_axes: int) -> Workspace:
        """Return arrays for the generated functions, in a frame of `n_axes` axes.

        `state` has one row per weight, then per velocity and average.
        """
        n_extra = len(state) - len(self.weights)
        shapes = memory_shapes(
            self._counts,
            n_tokens=self.n_tokens,
            n_latents=self.law.normals + len(self.law.latents) + 1,
            n_axes=n_axes,
            n_extra=n_extra,
        )
        return Workspace.of(
            state, shapes, [*self._sources[2].shapes, (1,)], self._program.constants
        )

    @property
    def _counts(self) -> Counts:
        return Counts(len(self.planted), len(self.weights), self.n_combinations)

    @cached_property
    def source(self) -> str:
        """Source of the generated module: law, gradient and simulation."""
        sizes, law, program = self._sources
        uses_overlaps = self._program.uses_overlaps
        return module_source(self._counts, sizes.lines(), law, program, uses_overlaps)

    @cached_property
    def compiled(self) -> ModuleType:
        """The generated module; its functions compile at their first call."""
        return load_module(self.source, self.law.custom)

    def _traced(self) -> Program:
        try:
            program, again = (
                Program(
                    self.loss,
                    n_tokens=self.n_tokens,
                    weights=tuple(self.weights),
                    planted=self.planted,
                    normals=self.law.normals,
                    latents=self.law.latent_names,
                )
                for _ in range(2)
            )
            # A random number would become a constant of the compiled loss.
            if not program.graph.equals(again.graph):
                raise NotTraceable(
                    "a loss that differs from call to call",
                    "Declare random numbers: normals=1 in Model(...), and g[0] here.",
                )
            return program
        except NotTraceable as problem:
            contract = "a function that can be compiled"
            got, hint = Got(problem.found), problem.remedy
            fail("loss", contract, got, hint=hint)
        except (TypeError, AttributeError, IndexError, ValueError) as problem:
            # A mistake inside the loss: name it, and keep its traceback below.
            contract = "a function that can be traced"
            got = Got(f"{type(problem).__name__}: {problem}")
            fail("loss", contract, got)

    def _check_parameters(self, defaults: Mapping[str, float]) -> dict[str, float]:
        if not isinstance(defaults, Mapping):
            fail("parameters", "a mapping", defaults, error=TypeError)
        values = {}
        for name, value in defaults.items():
            check_choice("parameters", name, self.parameters)
            values[name] = as_float(value)
            if not math.isfinite(values[name]):
                fail("parameters", "finite numbers", value)
        return values


class _LatentValues(SimpleNamespace):
    """Latents of one sample: ``g[0]`` and ``g.label``."""

    def __init__(
        self, normals: FloatArray, names: Sequence[str], values: FloatArray
    ) -> None:
        super().__init__(**dict(zip(names, values, strict=True)))
        self._normals = normals

    def __getitem__(self, index: int) -> float:
        return self._normals[index]


def _check_names(
    name: str, names: object, *, taken: Sequence[str] = ()
) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence | Mapping):
        fail(name, "a sequence of names", names, error=TypeError)
    result = tuple(names)
    for item in result:
        if not isinstance(item, str) or not item.isidentifier():
            fail(name, "names that are Python identifiers", item)
        if item in taken or result.count(item) > 1:
            contract = "names that differ from each other and from the weights"
            fail(name, contract, item)
    return result


def _check_weights(weights: object) -> dict[str, str]:
    if not isinstance(weights, Mapping) or not weights:
        contract = 'a mapping of names to "sphere" or "free", at least one'
        fail("weights", contract, weights, error=TypeError)
    _check_names("weights", weights)
    for kind in weights.values():
        check_choice("weights", kind, _GEOMETRIES)
    return dict(weights)


def _check_latents(latents: object) -> dict[str, RandomNumber]:
    if not isinstance(latents, Mapping):
        fail("latents", "a mapping", latents, error=TypeError)
    _check_names("latents", latents)
    for name, law in latents.items():
        if not isinstance(law, RandomNumber):
            contract = "made of signs, gaussian or choice"
            got = Got(f"{name}={shown(law)}")
            hint = "Call it, such as signs()." if callable(law) else ""
            fail("latents", contract, got, hint=hint)
    return dict(latents)


def _check_tokens(
    tokens: object, planted: tuple[str, ...], latents: Mapping[str, Any]
) -> tuple[Token, ...]:
    groups = (tokens,) if isinstance(tokens, Token) else tokens
    if not isinstance(groups, Sequence) or not groups:
        fail("tokens", "one or more Token", tokens, error=TypeError)
    for group in groups:
        if not isinstance(group, Token):
            fail("tokens", "one or more Token", group, error=TypeError)
        for name in group.directions:
            check_choice("tokens", name, planted or ("(none)",))
        coefficients = group.mean.values() if isinstance(group.mean, Mapping) else ()
        for law in (*coefficients, group.scale):
            if isinstance(law, LatentMultiple) and law.latent not in latents:
                contract = "laws of declared latents"
                fail("tokens", contract, law.latent)
    if not sum(group.n for group in groups):
        fail("tokens", "at least one token", Got("0 tokens"))
    return tuple(groups)


def _check_draw(draw: Any) -> Callable[..., None] | None:
    if draw is None:
        return None
    if not hasattr(draw, "py_func"):
        hint = "Decorate it with numba.njit."
        contract = "a compiled function draw(rng, d, mean, scale, latents)"
        fail("draw", contract, draw, hint=hint, error=TypeError)
    return draw


def weights_in_frame(planted: Any, gram: Any, *, columns: int) -> FloatArray:
    r"""Return rows with given overlaps: planted part, then lower triangular.

    Parameters
    ----------
    planted
        Overlaps M with the planted directions, (r, p).
    gram
        Inner products Q of the rows, (r, r); :math:`Q - M M^\top` must have no
        negative eigenvalue beyond rounding.
    columns
        Number of columns of the result, at least p + r.
    """
    planted, gram = np.asarray(planted, float), np.asarray(gram, float)
    r, p = planted.shape
    state = np.zeros((r, columns))
    state[:, :p] = planted
    residual = gram - planted @ planted.T
    for row in range(r):
        for column in range(row):
            pivot = state[column, p + column]
            explained = state[row, p : p + column] @ state[column, p : p + column]
            rest = residual[row, column] - explained
            state[row, p + column] = rest / pivot if pivot > 0 else 0.0
        squared = residual[row, row] - np.sum(state[row, p : p + row] ** 2)
        # A length that is rounding is none: dividing by it would make noise.
        is_real = squared > 1e-14 * gram[row, row]
        state[row, p + row] = math.sqrt(squared) if is_real else 0.0
    return state
