"""PyTorch layers: RPC-Attention, symmetric and scaled attention (extra ``torch``)."""

from eigenheads._extras import missing as _missing

try:
    import torch as _torch  # noqa: F401 -- imported here, so that the error is clear
except ImportError as error:
    raise _missing("PyTorch", extra="torch", owner="eigenheads.nn") from error

from eigenheads.nn._diagnostics import PursuitDiagnostics, PursuitWarning
from eigenheads.nn._pursuit import rpc_attention
from eigenheads.nn._rpc import RPCAttention
from eigenheads.nn._scaled import ScaledAttention
from eigenheads.nn._symmetric import SymmetricAttention
from eigenheads.nn._visibility import Visibility

__all__ = [
    "PursuitDiagnostics",
    "PursuitWarning",
    "RPCAttention",
    "ScaledAttention",
    "SymmetricAttention",
    "Visibility",
    "rpc_attention",
]
