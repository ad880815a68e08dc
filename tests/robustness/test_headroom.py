"""Headroom of hiding tokens: the oracle decides whether a screen is measured."""

import numpy as np
import pytest
import torch
from torch import nn

from eigenheads.adapters import hide_tokens
from eigenheads.robustness import (
    PATCH_CORRUPTIONS,
    corrupt_patches,
    screening_headroom,
)


class MeanOfPatches(nn.Module):
    """Classes are bright and dark; the class token averages visible patches."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True, bias=False)
        with torch.no_grad():
            self.attention.in_proj_weight[:4] = 0.0
            self.attention.in_proj_weight[4:] = torch.eye(2)
            self.attention.out_proj.weight.copy_(torch.eye(2))

    def tokens(self, x):
        cut = x.unfold(2, 2, 2).unfold(3, 2, 2).mean((1, 4, 5)).flatten(1) - 0.5
        return torch.stack([cut, -cut], dim=-1)

    def forward(self, x):
        tokens = nn.functional.pad(self.tokens(x), (0, 0, 1, 0))
        return self.attention(tokens, tokens, tokens)[0][:, 0]


class Deaf(nn.Module):
    """A model that hiding tokens cannot help."""

    def __init__(self):
        super().__init__()
        self.inner = MeanOfPatches()

    def forward(self, x):
        return self.inner(x) * 0 + self.inner.tokens(x).mean(1)


def bright_and_dark(n=300):
    y = torch.arange(n) % 2
    x = torch.where(y[:, None, None, None] == 0, 0.62, 0.38).expand(n, 1, 8, 8)
    return x + 0.02 * torch.rand(n, 1, 8, 8), y


def test_the_oracle_gains_where_hidden_tokens_do_not_matter():
    class Flagging(MeanOfPatches):
        runs = 0

        def forward(self, x):
            type(self).runs += 1
            hidden = nn.functional.pad((self.tokens(x)[..., 0] > 0.45), (1, 0))
            with hide_tokens(self.inner, hidden):
                return self.inner(x)

    screened = Flagging()
    screened.inner = MeanOfPatches()
    found = screening_headroom(
        MeanOfPatches(),
        bright_and_dark(),
        patch=2,
        hide=hide_tokens,
        screened=screened,
        kind="saturated",
        share=0.5,
    )
    assert found.clean == 1.0
    assert found["none"].accuracy == pytest.approx(0.5)
    assert found["oracle"].accuracy == found["screen"].accuracy == 1.0
    assert found["random"].gain < 0.1
    assert found.can_help
    assert found["oracle"].low > 0.4
    assert "screen +50.0" in found.summary
    assert str(found).splitlines()[1].split() == [
        "hidden",
        "accuracy",
        "gain,",
        "points",
    ]
    # The same seed gives the same numbers.
    again = screening_headroom(
        MeanOfPatches(), bright_and_dark(), patch=2, hide=hide_tokens,
        kind="saturated", share=0.5, batch_size=7,
    )  # fmt: skip
    assert again["random"].gain == pytest.approx(found["random"].gain, abs=1e-9)


def test_a_model_that_hiding_cannot_help():
    """A screen that is given is measured all the same: it may impute."""
    options = {"patch": 2, "hide": hide_tokens, "kind": "saturated", "share": 0.5}
    found = screening_headroom(Deaf(), bright_and_dark(), **options)
    assert not found.can_help
    assert [row.remedy for row in found.rows] == ["none", "oracle", "random"]
    assert "no screen that hides them can help this model here" in str(found)
    with pytest.raises(KeyError):
        found["screen"]
    found = screening_headroom(Deaf(), bright_and_dark(), screened=Deaf(), **options)
    assert found["screen"].gain == 0.0
    assert "points (" in found.summary and "the screen +0.0" in found.summary


@pytest.mark.parametrize("kind", PATCH_CORRUPTIONS)
def test_only_the_flagged_patches_change(rng, kind):
    x = rng.random((50, 3, 12, 8))
    found, flags = corrupt_patches(x, kind, 0.25, patch=4, rng=rng)
    assert found.shape == x.shape
    assert flags.shape == (50, 6)
    same = np.repeat(np.repeat(~flags.reshape(50, 1, 3, 2), 4, 2), 4, 3)
    same = np.broadcast_to(same, x.shape)
    assert (found[same] == x[same]).all()
    changed = (found != x).reshape(50, 3, 3, 4, 2, 4).any(axis=(1, 3, 5))
    assert (changed.reshape(50, 6) == flags).all()
    if kind != "occluded":
        assert (flags.sum(1) == 2).all()
    if kind == "shuffled":
        assert np.sort(found.ravel()) == pytest.approx(np.sort(x.ravel()))
    if kind == "replaced":
        assert np.isin(found, x).all()
    tensor, _ = corrupt_patches(
        torch.from_numpy(x).float(), kind, 0.25, patch=4, rng=rng
    )
    assert tensor.dtype == torch.float32


def test_wrong_arguments_are_refused(rng):
    x = rng.random((4, 1, 8, 8))
    with pytest.raises(ValueError, match="multiples of 3"):
        corrupt_patches(x, "saturated", 0.5, patch=3, rng=rng)
    with pytest.raises(ValueError, match="Did you mean 'replaced'"):
        corrupt_patches(x, "replace", 0.5, patch=4, rng=rng)
    with pytest.raises(ValueError, match="at least two"):
        corrupt_patches(x[:1], "replaced", 0.5, patch=4, rng=rng)
    with pytest.raises((ValueError, TypeError), match="hide"):
        screening_headroom(MeanOfPatches(), bright_and_dark(), patch=2, hide=3)
