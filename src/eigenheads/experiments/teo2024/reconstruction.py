"""The reconstruction loss along training, with both norms that it subtracts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._parallel import advance
from eigenheads._typing import FloatArray
from eigenheads.experiments import _models
from eigenheads.experiments._core import Claim, Experiment, Table
from eigenheads.experiments._models import ViT
from eigenheads.functional import log_feature_norms
from eigenheads.plotting import draw_reconstruction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STUDY = "saritas2025, abstract: the norms differ by about 10³"


@dataclass(frozen=True, kw_only=True)
class Params:
    """All ours: the paper trains ViT-tiny on ImageNet."""

    n_steps: int = 1500
    n_records: int = 30
    n_images: int = 24
    width: int = 64
    n_heads: int = 4
    n_layers: int = 3


def vit_of(params: Params) -> ViT:
    """Return the model."""
    return ViT(
        width=params.width,
        n_heads=params.n_heads,
        n_layers=params.n_layers,
        n_steps=params.n_steps,
    )


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Train, and measure both norms on held-out images every so often."""
    entropy = int(rng.bit_generator.seed_seq.entropy)  # type: ignore[attr-defined]
    batch = _models.held_out(params.n_images)[0]
    every = max(1, params.n_steps // params.n_records)
    kept: dict[str, list[Any]] = {"steps": [], "feature_norm": [], "output_norm": []}

    def record(step: int, body: Any, head: Any) -> None:
        del head
        if step % every and step != params.n_steps:
            return
        feature, output = norms(body, batch)
        kept["steps"].append(float(step))
        kept["feature_norm"].append(feature)
        kept["output_norm"].append(output)

    with _models.one_thread():
        seed = _models.seed_of("teo2024/reconstruction", entropy)
        body, head = _models.train_vit(vit_of(params), seed, record)
        accuracy = _models.accuracy(body, head)
    advance(1.0)
    table = {name: np.array(values) for name, values in kept.items()}
    return table | {"accuracy": np.array([accuracy])}


def norms(body: Any, batch: Any) -> tuple[FloatArray, FloatArray]:
    """Return |feature|² and |output|², one a layer, means over all else."""
    feature, output = [], []
    for one in _models.capture(body, batch):
        q, k = (x.astype(np.float64) for x in (one.queries, one.keys))
        feature.append(np.exp(log_feature_norms(q, k, scale=one.scale)).mean())
        output.append((one.outputs.astype(np.float64) ** 2).sum(axis=-1).mean())
    return np.array(feature), np.array(output)


def losses(table: Table) -> FloatArray:
    """Return J, (records, layers)."""
    return np.asarray(table["feature_norm"] - table["output_norm"])


def check(params: Params, table: Table) -> list[Claim]:
    """Return the paper's fall, and what it is a fall of."""
    del params
    loss = losses(table).mean(axis=1)
    output = table["output_norm"].mean(axis=1)
    ratio = np.log10(table["output_norm"] / table["feature_norm"])
    fall = loss[-1] - loss[0]
    return [
        Claim(
            statement="J at the end minus J at the start, over |J| at the start",
            source="teo2024: J falls along training",
            relation="≤",
            expected=0.0,
            measured=float(fall / abs(loss[0])),
            tolerance=0.0,
            reason="a fall of any size; ours is a small ViT on digits",
        ),
        Claim(
            statement="largest J along training, layers averaged, over |J| at the "
            "start: an error of projection is at least 0",
            source="teo2024: J is an error of projection",
            relation="≥",
            expected=0.0,
            measured=float(loss.max() / abs(loss[0])),
            tolerance=0.0,
            reason="the largest is the most favourable",
            on_record="not reproduced",
        ),
        Claim(
            statement="fall of J over the growth of |output|²",
            source="ours; saritas2025: the fall is misread",
            relation="≈",
            expected=1.0,
            measured=float(-fall / (output[-1] - output[0])),
            tolerance=0.1,
            reason="features are a thousandth; 1 means that J is minus the output's "
            "length and nothing else",
        ),
        Claim(
            statement="log10 of |output|² over |feature|² at the end, mean over layers",
            source=_STUDY,
            relation="≈",
            expected=3.0,
            measured=float(ratio[-1].mean()),
            tolerance=1.5,
            reason="the study gives an order of magnitude, of other models",
        ),
        Claim(
            statement="the same before training",
            source="ours: 10³ is there at the start",
            relation="≈",
            expected=3.0,
            measured=float(ratio[0].mean()),
            tolerance=1.5,
            reason="as above",
        ),
    ]


def draw(figure: "Figure", params: Params, table: Table) -> None:
    """Draw the loss, both norms and their ratio."""
    draw_reconstruction(figure, table, params.n_layers)


experiment = Experiment(
    key="teo2024/reconstruction",
    title="A falling reconstruction loss says that outputs grow longer",
    source="figure of the reconstruction loss along training",
    about=(
        "J = mean of |φ(q)/g(q)|² − |h|² on held-out images while a small ViT (8 × 8 "
        "digits, every pixel a token, 3 layers of 4 heads of width 16) is trained; a "
        "curve a layer. The paper trains ViT-tiny on ImageNet and reads the fall of J "
        "as learning to project. Middle: the two norms by themselves; right: their "
        "ratio, which is at most 1 for projections on unit axes. Model, data and "
        "training are ours."
    ),
    presets={
        "smoke": Params(n_steps=40, n_records=4, n_images=4),
        "demo": Params(n_steps=150, n_records=15, n_images=8),
        "paper": Params(),
    },
    simulate=simulate,
    check=check,
    draw=draw,
    work=lambda params: float(params.n_steps + 1),
    size=(11.0, 3.8),
    needs=("torch",),
)
