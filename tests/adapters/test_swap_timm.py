"""Swapping in modules laid out as timm's."""

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from eigenheads.adapters import attention_summary, swap_attention
from eigenheads.nn import RPCAttention

pytestmark = pytest.mark.torch
PLAIN = {"n_iter": 1, "sparsity": math.inf}


class Attention(nn.Module):
    """Attention with the names of timm's: see its ``layers/attention.py``."""

    def __init__(self, dim=16, num_heads=4, *, norms=False, attn_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.fused_attn = True
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = nn.LayerNorm(self.head_dim) if norms else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if norms else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = nn.LayerNorm(dim) if norms else nn.Identity()
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(attn_drop)

    def heads(self, x):
        batch, n, _ = x.shape
        qkv = self.qkv(x).reshape(batch, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return self.q_norm(q), self.k_norm(k), v

    def forward(self, x, attn_mask=None, is_causal=False):
        options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": self.scale}
        p = self.attn_drop.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(*self.heads(x), dropout_p=p, **options)
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        return self.proj_drop(self.proj(self.norm(mixed)))


class WithRelativePositions(Attention):
    """The same layout, another computation."""

    def forward(self, x, attn_mask=None, is_causal=False):
        place = torch.arange(x.shape[1], dtype=x.dtype)
        return super().forward(x, (place[:, None] - place).abs().neg())


class Model(nn.Module):
    def __init__(self, attention=Attention, **options):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(attention(**options) for _ in range(3))

    def forward(self, x, **options):
        for block in self.blocks:
            x = x + block(x, **options)
        return x


def tokens():
    return torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("norms", [False, True])
def test_plain_pursuit_is_the_original_and_going_back_is_exact(norms):
    model, x = Model(norms=norms).eval(), tokens()
    hidden = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    hidden[1, ..., 4:] = False
    calls = [{}, {"is_causal": True}, {"attn_mask": hidden}]
    before = [model(x, **call) for call in calls]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    swap_attention(model, to="rpc", **PLAIN)
    for call, wanted in zip(calls, before, strict=True):
        assert torch.allclose(model(x, **call), wanted, atol=1e-5)
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)
    swap_attention(model, to="rpc", n_iter=4, layers=[0])
    assert (model(x) - before[0]).abs().max() > 1e-3
    swap_attention(model, to="original")
    assert all(type(block) is Attention for block in model.blocks)
    for call, wanted in zip(calls, before, strict=True):
        assert torch.equal(model(x, **call), wanted)


def test_swapped_modules_compute_what_our_layer_computes():
    block, x = Model().blocks[0].eval(), tokens()
    layer = RPCAttention(16, 4, n_iter=3, sparsity=0.5).eval()
    layer.load_state_dict(block.state_dict())
    swap_attention(block, to="rpc", n_iter=3, sparsity=0.5, queries="keys")
    assert torch.allclose(block(x), layer(x), atol=1e-6)
    mask = torch.zeros(6, 6)
    mask[:, 2] = -1.0
    both = block(x, attn_mask=mask, is_causal=True)
    assert torch.allclose(both, layer(x, mask, is_causal=True), atol=1e-6)
    hard = torch.rand(6, 6) > 0.3
    both = block(x, attn_mask=hard, is_causal=True)
    assert torch.allclose(both, layer(x, hard, is_causal=True), atol=1e-6)


def test_what_the_layout_does_not_tell_is_refused():
    model = Model(WithRelativePositions)
    model.train()
    state = torch.get_rng_state()
    with pytest.raises(
        ValueError, match=r"blocks\.0 \(WithRelativePositions\) with an"
    ):
        swap_attention(model, to="rpc")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(part.training for part in model.modules())
    assert all(row.attention == "original" for row in attention_summary(model))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("scale", nn.Parameter(torch.ones(4)), "a scale that is not a number"),
        ("forward", lambda x, rope=None: x, "a forward that takes rope"),
        ("forward", lambda x: x.view(1, 49, 16), "does not run on a few tokens"),
        ("forward", lambda x: x[:, :1], "does not run on a few tokens"),
    ],
)
def test_modules_that_do_more_or_cannot_be_tried_are_refused(name, value, reason):
    block = Attention()
    delattr(block, name) if name == "scale" else None
    setattr(block, name, value)
    with pytest.raises(ValueError, match=rf"the model \(Attention\) with .*{reason}"):
        swap_attention(block, to="rpc")


def test_half_precision_weights_pass_the_comparison():
    model = swap_attention(Model().to(torch.bfloat16), to="rpc", n_iter=2)
    assert model(tokens().to(torch.bfloat16)).isfinite().all()


def test_copies_pickles_hooks_and_dropout_go_on():
    model, x = Model(attn_drop=0.5), tokens()
    seen = []
    model.blocks[1].register_forward_hook(lambda *call: seen.append(call[0]))
    twin = copy.deepcopy(swap_attention(Model(attn_drop=0.5), to="scaled"))
    file = io.BytesIO()
    torch.save(twin, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False).eval()
    assert torch.equal(loaded(x), twin.eval()(x))
    assert isinstance(loaded.blocks[0], Attention)
    swap_attention(model, to="rpc", n_iter=2)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    assert seen == [model.blocks[1]] * 4


def test_the_layer_prints_what_it_is():
    text = repr(swap_attention(Attention(), to="rpc", n_iter=2))
    assert text.startswith("SwappedAttention(")
    assert "attention='rpc', queries='own', n_iter=2, sparsity=4.0" in text
