"""PyTorch layers: RPC-Attention, symmetric and scaled attention (extra ``torch``)."""

from eigenheads._errors import missing as _missing

try:
    import torch as _torch  # noqa: F401 -- imported here, so that the error is clear
except ImportError as error:
    raise _missing("PyTorch", extra="torch") from error

from eigenheads.nn._layers import ScaledAttention, SymmetricAttention
from eigenheads.nn._pursuit import PursuitDiagnostics, PursuitWarning, rpc_attention
from eigenheads.nn._rpc import RPCAttention
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
