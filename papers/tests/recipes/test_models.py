"""Models of the recipes: timm's layout, attention by layer, export and compilation."""

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from eigenheads.nn import (  # noqa: E402
    RPCAttention,
    ScaledAttention,
    SymmetricAttention,
)
from eigenheads_papers.recipes import (  # noqa: E402
    AttentionChoice,
    LanguageModel,
    VisionTransformer,
)
from eigenheads_papers.recipes._models import (  # noqa: E402
    VIT_TINY,
    LanguageSize,
    VisionSize,
)
from eigenheads_papers.teo2024._models import SoftmaxAttention  # noqa: E402
from eigenheads_papers.teo2024.variants import KINDS  # noqa: E402

pytestmark = pytest.mark.torch
SLOW = pytest.mark.slow
SMALL = VisionSize(image=8, patch=4, d_model=16, depth=3, n_heads=2)


def test_vit_tiny_has_deit_tinys_tensors():
    model = VisionTransformer(1000)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    # The published count of DeiT-tiny.
    assert sum(value.numel() for value in model.parameters()) == 5_717_416
    assert shapes["blocks.11.attn.qkv.weight"] == (576, 192)
    assert shapes["pos_embed"] == (1, 197, 192)
    assert shapes["patch_embed.proj.weight"] == (192, 3, 16, 16)
    assert {name.split(".")[0] for name in shapes} == {
        "cls_token",
        "pos_embed",
        "patch_embed",
        "blocks",
        "norm",
        "head",
    }
    assert VIT_TINY.n_tokens == 197


@pytest.mark.parametrize("variant", KINDS)
def test_every_variant_trains_one_step(variant):
    torch.manual_seed(0)
    choice = AttentionChoice(variant=variant, layers="all")
    model = VisionTransformer(5, size=SMALL, attention=choice, drop_path=0.1)
    logits = model(torch.rand(4, 3, 8, 8))
    logits.logsumexp(-1).sum().backward()
    assert logits.shape == (4, 5)
    assert torch.isfinite(model.blocks[0].attn.qkv.weight.grad).all()


def test_variant_is_put_into_the_layers_asked_for():
    def kinds(**options):
        choice = AttentionChoice(**options)
        model = VisionTransformer(5, size=SMALL, attention=choice)
        return [type(block.attn) for block in model.blocks]

    assert kinds() == [SoftmaxAttention] * 3
    assert kinds(variant="rpc") == [RPCAttention] + [SymmetricAttention] * 2
    assert (
        kinds(variant="rpc", rest="softmax") == [RPCAttention] + [SoftmaxAttention] * 2
    )
    assert kinds(variant="rpc", layers="all") == [RPCAttention] * 3
    assert kinds(variant="scaled-matrix") == [ScaledAttention] * 3
    language = LanguageModel(
        7,
        size=LanguageSize(depth=6, d_model=8, d_hidden=8, n_heads=2, context=4),
        attention=AttentionChoice(variant="rpc"),
    )
    found = [type(block.attn) for block in language.blocks]
    assert found == [RPCAttention] * 4 + [SymmetricAttention] * 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"variant": "fourier"}, "`variant` must be"),
        ({"layers": "last"}, "`layers` must be 'first', 'all' or a number"),
        ({"n_iter": 0}, "`n_iter` must be"),
        ({"sparsity": -1.0}, "`sparsity` must be"),
    ],
)
def test_bad_choices_get_a_sentence(options, match):
    with pytest.raises(ValueError, match=match):
        AttentionChoice(**options)


def test_language_model_does_not_see_the_future():
    torch.manual_seed(0)
    size = LanguageSize(depth=2, d_model=8, d_hidden=8, n_heads=2, context=6)
    for variant in ("softmax", "symmetric", "rpc", "scaled-scalar", "scaled-matrix"):
        choice = AttentionChoice(variant=variant, layers="all")
        model = LanguageModel(9, size=size, attention=choice).eval()
        ids = torch.randint(9, (2, 6))
        changed = ids.clone()
        changed[:, 4:] = (changed[:, 4:] + 1) % 9
        torch.testing.assert_close(model(ids)[:, :4], model(changed)[:, :4])


@pytest.mark.parametrize("variant", KINDS)
def test_models_can_be_exported(variant):
    torch.manual_seed(0)
    choice = AttentionChoice(variant=variant, layers="all", n_iter=2)
    model = VisionTransformer(5, size=SMALL, attention=choice).eval()
    images = torch.rand(2, 3, 8, 8)
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images), model(images))


class TimmsAttention(nn.Module):
    """Attention under timm's names, written without our layers."""

    def __init__(self, d, n_heads):
        super().__init__()
        self.num_heads = n_heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class TimmsTransformer(nn.Module):
    """A vision transformer with the names of timm's modules."""

    def __init__(self, n_classes, size):
        super().__init__()
        d = size.d_model
        self.cls_token = nn.Parameter(torch.randn(1, 1, d))
        self.pos_embed = nn.Parameter(torch.randn(1, size.n_tokens, d))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, d, size.patch, stride=size.patch)
        self.blocks = nn.Sequential()
        for _ in range(size.depth):
            block = nn.Module()
            block.norm1 = nn.LayerNorm(d, eps=1e-6)
            block.attn = TimmsAttention(d, size.n_heads)
            block.norm2 = nn.LayerNorm(d, eps=1e-6)
            block.mlp = nn.Module()
            block.mlp.fc1, block.mlp.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
            self.blocks.append(block)
        self.norm = nn.LayerNorm(d, eps=1e-6)
        self.head = nn.Linear(d, n_classes)

    def forward(self, x):
        x = self.patch_embed.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = x + block.attn(block.norm1(x))
            hidden = torch.nn.functional.gelu(block.mlp.fc1(block.norm2(x)))
            x = x + block.mlp.fc2(hidden)
        return self.head(self.norm(x)[:, 0])


def exchange(theirs, ours):
    """Load the weights of each into the other; outputs must agree."""
    size = ours.pos_embed.shape[1], ours.patch_embed.proj.kernel_size[0]
    side = int((size[0] - 1) ** 0.5) * size[1]
    images = torch.rand(2, 3, side, side)
    normalised = (images - ours.mean) / ours.std
    fresh = {name: value.clone() for name, value in ours.state_dict().items()}
    with torch.no_grad():
        ours.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(ours(images), theirs(normalised))
        theirs.load_state_dict(fresh)
        ours.load_state_dict(fresh)
        torch.testing.assert_close(ours(images), theirs(normalised))


def test_weights_are_exchanged_with_timms_layout():
    torch.manual_seed(0)
    exchange(TimmsTransformer(5, SMALL).eval(), VisionTransformer(5, size=SMALL).eval())


# timm needs torchvision, so it is not among the development tools.
if find_spec("timm") is not None:

    def test_weights_are_exchanged_with_timm():
        import timm

        theirs = timm.create_model("vit_tiny_patch16_224", num_classes=5).eval()
        exchange(theirs, VisionTransformer(5).eval())


# The layers themselves are compiled in tests/nn; the others take as long.
@pytest.mark.parametrize(
    "variant",
    [one if one == "rpc" else pytest.param(one, marks=SLOW) for one in KINDS],
)
def test_models_compile_into_one_graph(variant):
    torch.manual_seed(0)
    choice = AttentionChoice(variant=variant, layers="all", n_iter=2)
    model = VisionTransformer(5, size=SMALL, attention=choice).eval()
    images = torch.rand(2, 3, 8, 8)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))
    torch._dynamo.reset()
