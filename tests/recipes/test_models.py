"""Models of the recipes: timm's layout, attention by layer, export and compilation."""

import pytest

torch = pytest.importorskip("torch")

from eigenheads.nn import (  # noqa: E402
    RPCAttention,
    ScaledAttention,
    SymmetricAttention,
)
from eigenheads.recipes import (  # noqa: E402
    AttentionChoice,
    LanguageModel,
    VisionTransformer,
)
from eigenheads.recipes._attention import VARIANTS, SoftmaxAttention  # noqa: E402
from eigenheads.recipes._models import (  # noqa: E402
    VIT_TINY,
    LanguageSize,
    VisionSize,
)

pytestmark = pytest.mark.torch
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


@pytest.mark.parametrize("variant", VARIANTS)
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


@pytest.mark.parametrize("variant", ["rpc", "symmetric", "scaled-scalar"])
def test_layers_can_be_exported(variant):
    torch.manual_seed(0)
    choice = AttentionChoice(variant=variant, layers="all", n_iter=2)
    model = VisionTransformer(5, size=SMALL, attention=choice).eval()
    images = torch.rand(2, 3, 8, 8)
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images), model(images))
