"""Train and evaluate models at the scale of a paper (extra ``train``)."""

from eigenheads._extras import require as _require

for _module, _name in (
    ("torch", "PyTorch"),
    ("accelerate", "accelerate"),
    ("kornia", "kornia"),
    ("PIL", "Pillow"),
    ("safetensors", "safetensors"),
):
    _require(_module, _name, extra="train", owner="eigenheads.recipes")

from eigenheads.recipes._attention import AttentionChoice
from eigenheads.recipes._evaluation import Evaluation, evaluate_checkpoints
from eigenheads.recipes._models import LanguageModel, VisionTransformer
from eigenheads.recipes._training import TrainingResult, train_model

__all__ = [
    "AttentionChoice",
    "Evaluation",
    "LanguageModel",
    "TrainingResult",
    "VisionTransformer",
    "evaluate_checkpoints",
    "train_model",
]
