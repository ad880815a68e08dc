"""Train and evaluate models at the scale of a paper (extra ``train``)."""

from eigenheads._extras import missing as _missing

try:
    import accelerate as _accelerate  # noqa: F401 -- so that the error is clear
    import kornia as _kornia  # noqa: F401
    import PIL as _pillow  # noqa: F401
    import safetensors as _safetensors  # noqa: F401
except ImportError as error:
    _what = error.name or "accelerate"
    raise _missing(_what, extra="train", owner="eigenheads.recipes") from error

from eigenheads.recipes._attention import AttentionChoice
from eigenheads.recipes._evaluation import evaluate_checkpoints
from eigenheads.recipes._models import LanguageModel, VisionTransformer
from eigenheads.recipes._run import TrainingResult
from eigenheads.recipes._tables import Evaluation
from eigenheads.recipes._training import train_model

__all__ = [
    "AttentionChoice",
    "Evaluation",
    "LanguageModel",
    "TrainingResult",
    "VisionTransformer",
    "evaluate_checkpoints",
    "train_model",
]
