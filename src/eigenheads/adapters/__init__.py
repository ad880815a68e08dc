"""Capture, probe and swap attention of PyTorch, Hugging Face and timm models."""

from eigenheads._errors import missing as _missing

try:
    import torch as _torch  # noqa: F401 -- imported here, so that the error is clear
except ImportError as error:
    raise _missing("PyTorch", extra="torch") from error

from eigenheads.adapters._ablate import Ablation, ablate_heads
from eigenheads.adapters._augment_tokens import TokenAugmentation, augment_tokens
from eigenheads.adapters._capture import CapturedLayer, capture_heads
from eigenheads.adapters._hide_tokens import hide_tokens, screen_tokens
from eigenheads.adapters._load import LoadedModel, load_model, load_swapped
from eigenheads.adapters._probe import compare_models, probe_model
from eigenheads.adapters._sources import Capture
from eigenheads.adapters._swap import (
    SwapWarning,
    attention_summary,
    swap_attention,
    watch_attention,
)

__all__ = [
    "Ablation",
    "Capture",
    "CapturedLayer",
    "LoadedModel",
    "SwapWarning",
    "TokenAugmentation",
    "ablate_heads",
    "attention_summary",
    "augment_tokens",
    "capture_heads",
    "compare_models",
    "hide_tokens",
    "load_model",
    "load_swapped",
    "probe_model",
    "screen_tokens",
    "swap_attention",
    "watch_attention",
]
