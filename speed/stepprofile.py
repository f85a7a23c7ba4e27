"""Where the time of a step goes on one core of a CPU: kinds of operations, and how near convolutions are to the most.

    python speed/stepprofile.py [--slices 4] [--size 256] [--out results/speed-profile.md]

The step is the one that `speed/speed.py` times, of the same scan and network. Multiplications are counted by PyTorch;
the most that a core does is measured by the library's convolution of 64 channels to 64, the best of many.
"""

import argparse
import datetime
import resource
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from setup import Ground
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

KINDS = {
    "convolutions": ("mkldnn_convolution", "convolution", "thnn_conv2d", "slow_conv"),
    "moments, ReLU and their gradient": ("batch_norm", "threshold", "clamp_min", "addcmul", "where", "relu"),
    "matrix products": ("::mm", "::bmm", "addmm", "matmul"),
    "pooling": ("max_pool",),
    "copies and layouts": (
        "copy_",
        "clone",
        "contiguous",
        "constant_pad",
        "replication_pad",
        "::cat",
        "fill_",
        "zero_",
    ),
    "sums, products and exponentials": ("::add", "::sub", "::mul", "::div", "::exp", "::sum", "::square", "::pow"),
}
"""What operations are called that count together; the first that fits."""


def kind(name: str) -> str:
    """What an operation counts to."""
    found = (what for what, parts in KINDS.items() if any(part in name for part in parts))
    return next(found, "everything else")


def most() -> float:
    """Multiplications and additions a second, in a convolution of the library's."""
    features = torch.rand(2, 64, 64, 64).to(memory_format=torch.channels_last)
    weight = torch.rand(64, 64, 3, 3).to(memory_format=torch.channels_last)
    times = []
    for _ in range(30):
        start = time.perf_counter()
        F.conv2d(features, weight, padding=1)
        times.append(time.perf_counter() - start)
    return 2 * features[:, :1].numel() * weight.numel() / min(times)


def table(on: Ground) -> list[str]:
    """A row for each kind, and what the convolutions come to."""
    images, _ = on.scan("spgr-1.5T", on.slices, on.size)
    step = on.step(on.network, on.prior, images)
    step()
    with FlopCounterMode(display=False) as counter:
        step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent: Counter[str] = Counter()
    for event in seen.key_averages():
        spent[kind(event.key)] += event.self_cpu_time_total / 1e6
    whole = sum(spent.values())
    lines = ["| operations | s | share |", "|---|---|---|"]
    lines += [f"| {what} | {seconds:.3f} | {100 * seconds / whole:.0f} % |" for what, seconds in spent.most_common()]
    faults = f"{after.ru_minflt - before.ru_minflt} page faults, {after.ru_stime - before.ru_stime:.3f} s in the system"
    work, best = counter.get_total_flops(), most()
    least = f"{work / best:.3f} s at the {best / 1e9:.0f} GFLOP/s of the library's best"
    told = f"Convolutions and matrix products: {work / 1e9:.1f} GFLOP, {least}."
    return [*lines, f"| all; {faults} | {whole:.3f} | |", "", told]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.device, chosen.clock, chosen.quick = "cpu", "wall", False
    chosen.paper_steps, chosen.centre, chosen.person = 0, "", 0
    lines = [f"By `python speed/stepprofile.py {' '.join(sys.argv[1:])}`:"]
    lines += [f"{datetime.date.today()}, one core of a CPU, torch {torch.__version__}; {chosen.slices} slices", ""]
    lines += table(Ground(chosen))
    print("\n".join(lines))
    if chosen.out:
        chosen.out.write_text("\n".join(["# Speed: a step on a CPU", "", *lines, ""]), encoding="utf-8")
