"""Kernels compile for a GPU that is not there: the interpreter, which other tests run them by, is more lenient."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import scantune.kernels

pytest.importorskip("triton", reason="Triton is not installed")

COMPILED = """
import torch
import triton
from torch import nn
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

torch.set_num_threads(1)
TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.double: "*fp64"}
TYPES[torch.int64] = "*i64"
done = set()


def kind(value):
    return TYPES[value.dtype] if isinstance(value, torch.Tensor) else "fp32" if isinstance(value, float) else "i32"


def compile_only(kernel, *args, grid, warmup, **options):
    options.pop("num_warps", None), options.pop("num_stages", None)
    given = dict(zip(kernel.arg_names, args)) | options
    fixed = {p.num for p in kernel.params if p.is_constexpr}
    signature = {name: "constexpr" if n in fixed else kind(given[name]) for n, name in enumerate(kernel.arg_names)}
    constants = {(n,): given[kernel.arg_names[n]] for n in fixed}
    triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
    done.add(f"{kernel.__module__.split('.')[-1]}.{kernel.__name__}")


JITFunction.run = compile_only

from scantune.kernels.triton import binning
from scantune.kernels.triton import moments
from scantune.kernels.triton.augmentation import changed
from scantune.kernels.triton.bump import bump
from scantune.kernels.triton.dice import softmax_dice_loss
from scantune.kernels.triton import loadings
from scantune.kernels.triton.norm import instance_relu, norm_relu
from scantune.kernels.triton.pooling import halve
from scantune.kernels.triton.upsampling import double, double_beside
import scantune.networks.convolution as convolution

convolution.usable = lambda _: True
x = torch.zeros(2, 16, 8, 8, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last).requires_grad_()
picture = x.detach()[:, :1].clone().requires_grad_()


def backward(result):
    result.float().sum().backward()


for inputs, outputs, size in ((1, 16, 3), (16, 1, 3), (16, 16, 3), (16, 4, 1)):
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2)
    convolution.use_fast_convolutions(layer)
    backward(layer(picture if inputs == 1 else x))
backward(norm_relu(x, nn.BatchNorm2d(16)))
backward(instance_relu(x))
backward(bump(x, torch.ones(16, requires_grad=True)))
backward(double(x))
backward(double_beside(x, torch.zeros(2, 8, 16, 16, dtype=torch.bfloat16, requires_grad=True)))
backward(torch.cat([part.flatten() for part in halve(x)]))
one, weights, table = torch.ones(16), torch.ones(2, 1, 8, 8), x.detach()
units = torch.ones(3, 16, dtype=torch.double)
for weighed in (None, weights):
    moments.measure(table, weighed, one, units)
    moments.slopes(table, weighed, one, units, units)
    moments.activate(table, one, weighed, one, units)
    moments.activation_slopes(table, one, weighed, one, units, units, table)
    binning.counts(table, weighed, one, one, 101)
    binning.slopes(table, weighed, one, one, torch.ones(102, 16))
    binning.activate(table, one, weighed, one, one, 101)
    binning.activation_slopes(table, one, weighed, one, one, torch.ones(102, 16), table)
filters = loadings.filters(torch.zeros(16, 10, 16, 16), table.dtype)
loadings.adjoint(loadings.project(torch.zeros(1, 16, 16, 24, dtype=table.dtype), filters, 10), filters, (16, 24))
labels, two = torch.zeros(2, 8, 8, dtype=torch.int64), torch.ones(2)
backward(softmax_dice_loss(x, labels))
image, field = picture.detach().float(), torch.zeros(2, 2, 8, 8)
changed(image, labels, field, (torch.zeros(2, 2), two, two), (two, two), image)
print(*sorted(done))
"""


def test_every_kernel_compiles_for_a_gpu():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-c", COMPILED]
    done = subprocess.run(
        words, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = done.stdout.split()
    folder = Path(scantune.kernels.__file__).parent / "triton"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "layout"}
    assert {name.split(".")[0] for name in compiled} == modules
    assert len(compiled) > 20
