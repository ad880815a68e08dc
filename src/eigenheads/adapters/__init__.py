"""Look into models of others and change them: PyTorch, Hugging Face, timm layouts."""

from eigenheads._extras import missing as _missing

try:
    import torch as _torch  # noqa: F401 -- asked for here, so that the error is clear
except ImportError as error:
    raise _missing("PyTorch", extra="torch", owner="eigenheads.adapters") from error

from eigenheads.adapters._capture import capture_heads
from eigenheads.adapters._captured import CapturedLayer
from eigenheads.adapters._load import Loaded, load_model, parse_layers
from eigenheads.adapters._probe import Capture, probe_model
from eigenheads.adapters._sites import Site, find_sites
from eigenheads.adapters._swap import (
    AttentionSummary,
    LayerAttention,
    attention_summary,
    swap_attention,
    watch_attention,
)
from eigenheads.adapters._swap_load import load_swapped

__all__ = [
    "AttentionSummary",
    "Capture",
    "CapturedLayer",
    "LayerAttention",
    "Loaded",
    "Site",
    "attention_summary",
    "capture_heads",
    "find_sites",
    "load_model",
    "load_swapped",
    "parse_layers",
    "probe_model",
    "swap_attention",
    "watch_attention",
]
