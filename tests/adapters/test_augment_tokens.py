"""Tokens replaced or dropped at random in training."""

import pytest

torch = pytest.importorskip("torch")

from tests.adapters.models import TimmAttention  # noqa: E402
from torch import nn  # noqa: E402

from eigenheads.adapters import augment_tokens  # noqa: E402

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(16), TimmAttention()
        self.seen = None

    def forward(self, x, mask=None):
        self.seen = x.detach().clone()
        return x + self.attn(self.norm(x), mask)


class Vision(nn.Module):
    """Images to tokens, two blocks, a class token."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 16)
        self.cls = nn.Parameter(torch.randn(1, 1, 16))
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x, mask=None):
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1)
        for block in self.blocks:
            x = block(x, mask)
        return x[:, 0]


def seen(model, x, **options):
    """Return the tokens that enter the first block."""
    with augment_tokens(model, **options):
        model(x)
    return model.blocks[0].seen


@pytest.fixture
def setting():
    torch.manual_seed(0)
    model, x = Vision(), torch.randn(5, 20, 3)
    model(x)
    return model, x, model.blocks[0].seen


def test_replaced_tokens_are_others_of_the_batch(setting):
    model, x, before = setting
    after = seen(model, x, share=0.3)
    changed = (after != before).any(-1)
    assert (changed.sum(1) == 6).all()
    # The class token stays, and every new token is another one of the batch.
    assert not changed[:, 0].any()
    pool = before[:, 1:].reshape(-1, 16)
    found = (after[changed][:, None] == pool).all(-1).any(1)
    assert found.all()


def test_dropped_tokens_leave_the_others_in_order(setting):
    model, x, before = setting
    after = seen(model, x, share=0.5, mode="drop")
    assert after.shape == (5, 11, 16)
    for row, whole in zip(after, before, strict=True):
        places = (row[:, None] == whole).all(-1).double().argmax(1)
        assert places[0] == 0 and (places.diff() > 0).all()


def test_nothing_happens_in_evaluation_or_after_removal(setting):
    model, x, before = setting
    with augment_tokens(model, 0.5) as handle:
        model.eval()
        model(x)
        assert torch.equal(model.blocks[0].seen, before) and handle.n_passes == 0
        model.train()
        model(x)
        assert handle.n_passes == 1
    model(x)
    assert torch.equal(model.blocks[0].seen, before)
    assert not model.blocks[0]._forward_pre_hooks


def test_a_schedule_sees_the_number_of_passes(setting):
    model, x, _ = setting
    lengths = []
    with augment_tokens(model, lambda n: n / 4, mode="drop"):
        for _ in range(4):
            model(x)
            lengths.append(model.blocks[0].seen.shape[1])
    assert lengths == [21, 16, 11, 6]


def test_gradients_pass_to_the_tokens_that_were_taken(setting):
    model, x, _ = setting
    with augment_tokens(model, 1.0):
        model(x).square().sum().backward()
    assert model.embed.weight.grad.abs().sum() > 0


def test_the_same_generator_gives_the_same_tokens(setting):
    model, x, _ = setting
    found = [
        seen(model, x, share=0.3, generator=torch.Generator().manual_seed(k))
        for k in (0, 0, 1)
    ]
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_encoder(batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(4, 9, 8)
    with augment_tokens(model, 0.5, mode="drop"):
        out = model(x if batch_first else x.transpose(0, 1))
    assert out.shape == ((4, 5, 8) if batch_first else (5, 4, 8))


def test_hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=2,
        hidden_dropout_prob=0.0,
    )
    model = transformers.ViTForImageClassification(config).train()
    images = torch.randn(3, 3, 8, 8)
    plain = model(images).logits
    with augment_tokens(model, 0.5):
        changed = model(images).logits
    assert changed.shape == plain.shape and not torch.allclose(changed, plain)
    with augment_tokens(model, 0.5, mode="drop"):
        states = model(images, output_hidden_states=True).hidden_states
    assert states[-1].shape[1] == 1 + 8


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"share": 1.5}, "`share` must be"),
        ({"share": 0.5, "mode": "hide"}, "`mode` must be"),
        ({"share": lambda n: 2.0}, "`share` must be"),
    ],
)
def test_mistakes_get_a_sentence(setting, options, match):
    model, x, _ = setting
    with (
        pytest.raises(ValueError, match=f"(augment_tokens|TokenAugmentation): {match}"),
        augment_tokens(model, **options),
    ):
        model(x)


def test_masks_do_not_fit_a_shorter_sequence(setting):
    model, x, _ = setting
    mask = torch.ones(5, 1, 1, 21, dtype=torch.bool)
    with (
        augment_tokens(model, 0.5, mode="drop"),
        pytest.raises(ValueError, match="mask"),
    ):
        model(x, mask)
    with augment_tokens(model, 0.5):
        model(x, mask)
