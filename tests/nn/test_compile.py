r"""Compiled layers: the same numbers, and no silent return to eager mode."""

import pytest
import torch
from torch import nn

from eigenheads.nn import (
    RPCAttention,
    ScaledAttention,
    SymmetricAttention,
    rpc_attention,
)

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def fresh_compiler(rng_seed):
    torch.manual_seed(rng_seed)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def n_graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_many_settings_compile_each_once_and_never_fall_back():
    """Ten numbers of iterations: more than the eight versions the compiler keeps."""
    x = torch.randn(2, 6, 8)
    for n_iter in range(1, 11):
        layer = RPCAttention(8, 2, n_iter=n_iter, sparsity=0.5).eval()
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), layer(x))
        assert n_graphs() == n_iter


def test_a_shared_forward_does_fall_back():
    """What the test above would miss without a code object for each setting."""
    x = torch.randn(2, 6, 8)
    with (
        torch._dynamo.config.patch(fail_on_recompile_limit_hit=True),
        pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit),
    ):
        for n_iter in range(1, 11):
            layer = RPCAttention(8, 2, n_iter=n_iter).eval()
            del layer.__dict__["forward"]
            torch.compile(layer, backend="eager")(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.ModuleList(
            [
                RPCAttention(8, 2, n_iter=3, sparsity=0.5),
                RPCAttention(8, 2, n_iter=2, symmetric=False, is_causal=True),
                SymmetricAttention(8, 2),
                ScaledAttention(8, 2),
                ScaledAttention(8, 2, kind="matrix", n_tokens=9),
            ]
        )

    def forward(self, x, mask):
        for layer in self.mix:
            x = x + layer(x, mask)
        return x


def test_all_layers_compile_into_one_graph():
    block, x = Block(), torch.randn(2, 6, 8)
    mask = (torch.arange(6) < 5).view(1, 1, 1, 6)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask), block(x, mask))
    assert n_graphs() == 1


def test_all_layers_can_be_exported_for_any_batch():
    block, x = Block().eval(), torch.randn(2, 6, 8)
    mask = (torch.arange(6) < 5).view(1, 1, 1, 6)
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "mask": None}
    exported = torch.export.export(block, (x, mask), dynamic_shapes=shapes).module()
    other = torch.randn(7, 6, 8)
    torch.testing.assert_close(exported(other, mask), block(other, mask))


@pytest.mark.slow  # writes, compiles and loads C++; graphs are tested without it above
# The compiler itself imports modules that PyTorch has deprecated.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_inductor_gives_the_same_outputs():
    layer, x = RPCAttention(8, 2, n_iter=2, sparsity=0.5).eval(), torch.randn(2, 6, 8)
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True)
        torch.testing.assert_close(compiled(x), layer(x))
    assert n_graphs() == 1


@pytest.mark.slow  # writes, compiles and loads a dozen C++ kernels
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_inductor_gives_the_same_outputs_and_gradients():
    layer, x = RPCAttention(8, 2, n_iter=3, sparsity=0.5), torch.randn(2, 6, 8)
    expected = layer(x)
    expected.square().sum().backward()
    gradient = layer.qkv.weight.grad.clone()
    layer.zero_grad()
    compiled = torch.compile(layer, fullgraph=True)
    output = compiled(x)
    output.square().sum().backward()
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(layer.qkv.weight.grad, gradient, rtol=1e-4, atol=1e-5)
    assert n_graphs() == 1


def test_the_function_compiles_whole():
    keys, values = torch.randn(2, 1, 2, 6, 4).unbind()
    compiled = torch.compile(rpc_attention, backend="eager", fullgraph=True)
    for options in ({}, {"is_causal": True}, {"sparsity": "auto"}):
        torch.testing.assert_close(
            compiled(keys, values, **options), rpc_attention(keys, values, **options)
        )
    assert n_graphs() == 3
