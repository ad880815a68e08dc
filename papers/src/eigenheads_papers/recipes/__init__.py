"""Train and evaluate models at the scale of a paper (extra ``train``)."""

from eigenheads.extend import require as _require

try:
    import accelerate as _accelerate  # noqa: F401 -- so that the error is clear
    import kornia as _kornia  # noqa: F401
    import PIL as _pillow  # noqa: F401
    import safetensors as _safetensors  # noqa: F401
except ImportError as error:
    _what = error.name or "accelerate"
    _require(_what, _what, extra="train", package="eigenheads-papers")
    raise

from eigenheads_papers.recipes._evaluation import evaluate_checkpoints
from eigenheads_papers.recipes._models import (
    AttentionChoice,
    LanguageModel,
    VisionTransformer,
)
from eigenheads_papers.recipes._tables import Evaluation
from eigenheads_papers.recipes._training import TrainingResult, train_model

__all__ = [
    "AttentionChoice",
    "Evaluation",
    "LanguageModel",
    "TrainingResult",
    "VisionTransformer",
    "evaluate_checkpoints",
    "train_model",
]
