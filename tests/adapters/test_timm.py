"""timm itself, where it is installed: captured, swapped, and its weights loaded.

It imports torchvision, whose wheels do not fit a CPU-only torch unless two operators
are defined before; everywhere else, the layouts of the neighbouring tests stand for it.
"""

import math
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from tests.adapters.test_capture import check, own_results

from eigenheads.adapters import capture_heads, swap_attention
from eigenheads.nn import RPCAttention, ScaledAttention, SymmetricAttention

pytestmark = pytest.mark.torch

if find_spec("timm") and find_spec("torchvision"):

    @pytest.fixture(scope="module")
    def timm():
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", "(Tensor a) -> Tensor")
        return import_module("timm")

    @pytest.fixture(params=[{}, {"qk_norm": True}], ids=str)
    def model(timm, request):
        torch.manual_seed(0)
        return timm.create_model(
            "vit_tiny_patch16_224", img_size=32, depth=2, **request.param
        ).eval()

    @pytest.fixture
    def images():
        return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    def test_capture(model, images):
        check(capture_heads(model, images), own_results(model, (images,)))

    @torch.no_grad()
    def test_swap_and_back(model, images):
        before = model(images)
        swap_attention(model, to="rpc", n_iter=1, sparsity=math.inf)
        torch.testing.assert_close(model(images), before, rtol=0, atol=1e-5)
        swap_attention(model, to="rpc", layers=[0], n_iter=2, sparsity="auto")
        assert (model(images) - before).abs().max() > 1e-3
        swap_attention(model, to="original")
        assert torch.equal(model(images), before)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: RPCAttention(192, 3, symmetric=False, n_iter=1, sparsity=math.inf),
            lambda: ScaledAttention(192, 3),
            lambda: SymmetricAttention(192, 3),
        ],
    )
    @torch.no_grad()
    def test_state_dicts_load(timm, make):
        theirs = timm.create_model("vit_tiny_patch16_224", depth=1).blocks[0].attn
        ours, x = make(), torch.randn(2, 5, 192)
        missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
        assert set(missing) <= {"scaling"}
        assert unexpected == []
        if not isinstance(ours, SymmetricAttention):  # whose queries are its keys
            torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-5)
