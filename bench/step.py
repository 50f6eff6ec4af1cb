# SPDX-License-Identifier: Apache-2.0
"""`compare.sh step`: from "the gradients are there" to "every rank has the new weights", clip and
Adam on: ours, what PyTorch users run today, and what memory alone would take.
"""
import os
import statistics

import side_by_side
from peers import environment
from side_by_side import OURS, Contender

FULL = dict(rounds=5, warmup=5, iterations=20)
QUICK = dict(rounds=2, warmup=2, iterations=5)
BANDWIDTH = "bandwidth"
FLOW = ["reduce", "agree", "update", "publish", "rest"]  # rest: between the others
PEERS = {
    "ddp_fp32": ("PyTorch DDP in FP32, clip, fused Adam", "torch"),
    "ddp_zero": ("DDP with FP16 hook, GradScaler, clip, ZeroRedundancyOptimizer", "torch"),
    "deepspeed_zero1": ("DeepSpeed ZeRO-1 in BF16, clip, fused Adam", "deepspeed"),
    "full_masters": ("FP16 replicas, all FP32 masters on every rank, clip, fused Adam", "torch"),
}
FULL_SIZE = dict(layers=24, width=1024, last=448)   # 24.6 M parameters
QUICK_SIZE = dict(layers=4, width=512, last=512)


def contenders(options, programs, say):
    shared = side_by_side.shared_arguments(options, QUICK_SIZE if options.quick else FULL_SIZE)
    start = side_by_side.mpirun(options.ranks)
    ours = [os.path.join(programs, "step_bench"), f"--reduction={options.reduction}"]
    chosen = [
        Contender(OURS, f"vsr_dist, FP16 replica, sharded FP32 masters, {options.reduction} "
                        "reduction, clip, Adam", start + ours + shared, required=True),
        Contender(BANDWIDTH, "the same bytes, next to no arithmetic",
                  start + [os.path.join(programs, BANDWIDTH)] + shared, required=True)]
    where = environment.prepare(say, may_download=not options.no_download)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "step_peer.py")
    for name, (label, package) in PEERS.items():
        command = [str(where.python), "-B", script, name, f"--ranks={options.ranks}"] + shared
        chosen.append(Contender(name, label, command, where.variables,
                                where.missing.get(package, "")))
    return chosen


def limit_of(ours, bandwidth):
    """Our time over what the bytes of a step take at the measured bandwidth, round by round."""
    ratios = []
    for our, their in zip(ours.records, bandwidth.records):
        bytes_of_step = their["bytes_per_parameter"] * our["parameters"]
        rate = bytes_per_ms(their)
        ratios.append(statistics.median(our["times_ms"]) / (bytes_of_step / rate))
    return statistics.median(ratios)


def bytes_per_ms(record):
    """Of one rank; all ranks move as much at the same time."""
    moved = record["bytes_per_parameter"] * record["measured_parameters"]
    return moved / statistics.median(record["times_ms"])


def breakdown_of(ours):
    """The parts of the one iteration whose whole is the median: they add up to it exactly."""
    whole = ours.values()
    ordered = sorted(range(len(whole)), key=lambda i: whole[i])
    middle = ordered[(len(ordered) - 1) // 2]
    parts = {}
    for word in sorted(ours.records[0]["breakdown_ms"], key=FLOW.index):
        column = [v for record in ours.records for v in record["breakdown_ms"][word]]
        parts[word] = column[middle]
    return dict(step=whole[middle], **parts)


def compare(options, programs, say):
    """Run the comparison; the data of the JSON file."""
    results = side_by_side.run_rounds(contenders(options, programs, say), options.rounds, say)
    bandwidth = results.pop(BANDWIDTH)
    data = side_by_side.report(results)
    data["ours"]["breakdown_ms"] = breakdown_of(results[OURS])
    for name, result in results.items():  # what stands behind a difference of two times
        for key in ("full_ms", "bare_ms", "step_only_ms"):
            if result.records and key in result.records[0]:
                data["peers"][name][f"median_{key}"] = statistics.median(result.values(key))
    data["limit"] = limit_of(results[OURS], bandwidth)
    rates = [bytes_per_ms(record) / 1e6 for record in bandwidth.records]
    data["bandwidth"] = dict(gb_per_s_per_rank=statistics.median(rates),
                             gb_per_s=statistics.median(rates) * options.ranks,
                             bytes_per_rank_and_parameter=
                             bandwidth.records[0]["bytes_per_parameter"],
                             spread_of_rounds=side_by_side.spread(rates),
                             **side_by_side.summary(bandwidth.values()))
    return data, [record for result in results.values() for record in result.records[:1]]


def closing_lines(data):
    parts = data["ours"]["breakdown_ms"]
    words = " + ".join(f"{word} {parts[word]:.2f}" for word in parts if word != "step")
    bandwidth = data["bandwidth"]
    return [f"ours, median step: {parts['step']:.2f} ms = {words}",
            f"memory: {bandwidth['gb_per_s']:.1f} GB/s over all ranks, "
            f"{bandwidth['bytes_per_rank_and_parameter']:.1f} bytes per rank and parameter; "
            f"ours takes {data['limit']:.2f} times that"]
