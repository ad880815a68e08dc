"""PyTorch layers: RPC-Attention, symmetric and scaled attention (extra ``torch``)."""

try:
    import torch as _torch  # noqa: F401 -- asked for here, so that the error is clear
except ImportError as error:
    raise ImportError(
        "eigenheads.nn: PyTorch is not installed. "
        "Run `pip install 'eigenheads[torch]'`."
    ) from error

from eigenheads.nn._diagnostics import PursuitDiagnostics, PursuitWarning
from eigenheads.nn._pursuit import rpc_attention
from eigenheads.nn._rpc import RPCAttention
from eigenheads.nn._scaled import ScaledAttention
from eigenheads.nn._symmetric import SymmetricAttention

__all__ = [
    "PursuitDiagnostics",
    "PursuitWarning",
    "RPCAttention",
    "ScaledAttention",
    "SymmetricAttention",
    "rpc_attention",
]
