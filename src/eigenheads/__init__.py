"""Attention heads as statistical estimators."""

from importlib import import_module
from types import ModuleType

__version__ = "0.1.0.dev0"

_SUBMODULES = (
    "adapters",
    "datasets",
    "estimators",
    "extend",
    "functional",
    "live",
    "models",
    "nn",
    "probes",
    "report",
    "robustness",
    "theory",
)

__all__ = ["__version__", *_SUBMODULES]


def __getattr__(name: str) -> ModuleType:
    """Import a submodule when it is first used, so that this import stays light."""
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
