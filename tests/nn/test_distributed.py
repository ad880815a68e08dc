r"""Two processes that average gradients learn what one process learns."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

# Each process has one half of the batch; both compare with the whole batch alone.
SCRIPT = r"""
import copy, sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from eigenheads.nn import RPCAttention, ScaledAttention, SymmetricAttention

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", init_method="file://" + store, rank=rank, world_size=2
)
torch.manual_seed(0)
model = nn.Sequential(
    RPCAttention(8, 2, sparsity=0.5),
    RPCAttention(8, 2, n_iter=2, sparsity="auto", recompute=True),
    SymmetricAttention(8, 2),
    ScaledAttention(8, 2),
).double()
alone = copy.deepcopy(model)
x = torch.randn(4, 5, 8, dtype=torch.float64)
parallel = DistributedDataParallel(model)
for _ in range(2):
    for module, batch in ((parallel, x[2 * rank : 2 * rank + 2]), (alone, x)):
        module.zero_grad()
        module(batch).square().mean().backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.1 * parameter.grad
for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(ours, theirs)
distributed.destroy_process_group()
print("equal")
"""


def test_two_gloo_processes_learn_what_one_does(tmp_path):
    command = [sys.executable, "-c", SCRIPT]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for worker in workers:
        output, error = worker.communicate(timeout=120)
        assert output == "equal\n", error
