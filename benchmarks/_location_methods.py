"""Methods that the single-location benchmark compares."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC


def ridge_on_the_mean():
    return make_pipeline(StandardScaler(), Ridge(1.0))


class PooledPCARidge:
    """Ridge on the token chosen by the pooled principal direction, in either sign."""

    def fit(self, bags, y):
        pooled = bags.reshape(-1, bags.shape[-1])
        centred = pooled - pooled.mean(axis=0)
        _, vectors = np.linalg.eigh(centred.T @ centred)
        fits = []
        for sign in (1.0, -1.0):
            key = sign * vectors[:, -1]
            chosen = _tokens_at(bags, (bags @ key).argmax(axis=1))
            ridge = Ridge(1.0).fit(chosen, y)
            fits.append((ridge.score(chosen, y), key, ridge))
        _, self.key_, self.ridge_ = max(fits, key=lambda fit: fit[0])
        return self

    def locate(self, bags):
        return (bags @ self.key_).argmax(axis=1)

    def predict(self, bags):
        return self.ridge_.predict(_tokens_at(bags, self.locate(bags)))


def _tokens_at(bags, places):
    return bags[np.arange(len(bags)), places]


@dataclass
class ABMIL:
    """torchmil's attention-based network, trained with Adam on mini-batches."""

    seed: int
    loss: str = "mse"
    epochs: int = 40
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 0.0

    def fit(self, bags: Any, y: Any) -> "ABMIL":
        torch, network = _torch_and_abmil()
        torch.manual_seed(self.seed)
        pooled = np.concatenate(list(bags))
        self.mean_, self.scale_ = pooled.mean(axis=0), pooled.std(axis=0) + 1e-12
        is_regression = self.loss == "mse"
        y = np.asarray(y, dtype=float)
        self.shift_ = y.mean() if is_regression else 0.0
        self.spread_ = y.std() if is_regression else 1.0
        criterion = torch.nn.MSELoss() if is_regression else _logistic(torch)
        self.network_ = network(in_shape=(pooled.shape[1],), criterion=criterion)
        targets = torch.tensor((y - self.shift_) / self.spread_, dtype=torch.float32)
        inputs = self._tensors(torch, bags)
        optimiser = torch.optim.Adam(
            self.network_.parameters(),
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
        )
        for _ in range(self.epochs):
            for batch in torch.randperm(len(targets)).split(self.batch_size):
                optimiser.zero_grad()
                tokens = torch.stack([inputs[i] for i in batch.tolist()])
                criterion(self.network_(tokens), targets[batch]).backward()
                optimiser.step()
        return self

    def predict(self, bags: Any) -> Any:
        outputs, _ = self._forward(bags)
        return outputs * self.spread_ + self.shift_

    def locate(self, bags: Any) -> Any:
        return np.array([np.argmax(weights) for weights in self._forward(bags)[1]])

    def _forward(self, bags: Any) -> Any:
        torch, _ = _torch_and_abmil()
        outputs, weights = [], []
        with torch.no_grad():
            for tokens in self._tensors(torch, bags):
                output, attention = self.network_(tokens[None], return_att=True)
                outputs.append(float(output))
                weights.append(attention[0].numpy().ravel())
        return np.array(outputs), weights

    def _tensors(self, torch: Any, bags: Any) -> list[Any]:
        return [
            torch.tensor((bag - self.mean_) / self.scale_, dtype=torch.float32)
            for bag in bags
        ]


def _logistic(torch: Any) -> Any:
    return torch.nn.BCEWithLogitsLoss()


def _torch_and_abmil() -> Any:
    try:
        import torch
        from torchmil.models import ABMIL as network
    except ImportError as error:
        raise ImportError(
            f"the peer torchmil cannot be imported ({error}). Install it as the "
            "docstring of bench_location_estimators says, or pass --without-peers."
        ) from error
    return torch, network


class MaximumInstanceSVM:
    """mi-SVM style: label instances, fit an SVM, relabel, until nothing changes."""

    def __init__(self, *, C=10.0, max_rounds=10):
        self.C, self.max_rounds = C, max_rounds

    def fit(self, bags, y):
        pooled, member = np.concatenate(bags), _members(bags)
        is_positive = np.asarray(y, dtype=bool)
        labels = is_positive[member]
        for _ in range(self.max_rounds):
            svm = SVC(C=self.C, gamma="scale", class_weight="balanced")
            self.svm_ = make_pipeline(StandardScaler(), svm).fit(pooled, labels)
            margins = self.svm_.decision_function(pooled)
            relabelled = (margins > 0) & is_positive[member]
            for bag in np.flatnonzero(is_positive):
                inside = np.flatnonzero(member == bag)
                relabelled[inside[margins[inside].argmax()]] = True
            if (relabelled == labels).all():
                break
            labels = relabelled
        return self

    def predict(self, bags):
        margins, member = self.svm_.decision_function(np.concatenate(bags)), None
        member = _members(bags)
        return np.array([margins[member == i].max() > 0 for i in range(len(bags))])


def _members(bags):
    return np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
