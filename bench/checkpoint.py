# SPDX-License-Identifier: Apache-2.0
"""`compare.sh checkpoint`: masters and two moments, sharded, saved so that a power cut loses
nothing, and loaded again: ours, torch.distributed.checkpoint, and one stream of the same bytes to
the same disk, written as `dd conv=fsync` does and as ours is.
"""
import os
import shutil
import statistics

import side_by_side
from peers import environment
from side_by_side import OURS, Contender

FULL = dict(rounds=5, warmup=1, iterations=3)
QUICK = dict(rounds=2, warmup=0, iterations=1)
DISK = "disk"
DISK_EARLY = "disk_early"
DCP = "torch_dcp"
FULL_SIZE = dict(layers=48, width=1024, last=896)   # 50.2 M parameters, 603 MB
QUICK_SIZE = dict(layers=4, width=512, last=512)


def contenders(options, programs, say):
    shared = side_by_side.shared_arguments(options, QUICK_SIZE if options.quick else FULL_SIZE)
    start = side_by_side.mpirun(options.ranks)
    program = os.path.join(programs, "checkpoint_bench")

    def folder(name):
        return "--folder=" + os.path.join(options.folder, name)

    where = environment.prepare(say, may_download=not options.no_download)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "checkpoint_peer.py")
    return [
        Contender(OURS, "vsr_dist, HDF5 shards, background save, durable; load checks every byte",
                  start + [program, folder(OURS)] + shared, required=True),
        Contender(DISK, "one stream of the same bytes, written and then synced",
                  start + [program, "--disk=synced", folder(DISK)] + shared, required=True),
        Contender(DISK_EARLY, "the same stream, sent to the disk while it is written, as ours is",
                  start + [program, "--disk=early", folder(DISK_EARLY)] + shared, required=True),
        Contender(DCP, "torch.distributed.checkpoint, flat tensors of each rank, synced files",
                  [str(where.python), "-B", script, f"--ranks={options.ranks}", folder(DCP)]
                  + shared, where.variables, where.missing.get("torch", ""))]


def rate(result, key="times_ms"):
    """GB/s, the median over the rounds."""
    return statistics.median(record["bytes"] / 1e6 / statistics.median(record[key])
                             for record in result.records)


def compare(options, programs, say):
    """Run the comparison; the data of the JSON file."""
    try:
        results = side_by_side.run_rounds(contenders(options, programs, say), options.rounds, say)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    ours = results[OURS]
    data = side_by_side.report(results)
    data["save_gb_per_s"] = {name: rate(result) for name, result in results.items()
                             if result.records}
    data["load_gb_per_s"] = {name: rate(result, "load_ms") for name, result in results.items()
                             if result.records and "load_ms" in result.records[0]}
    for name in (DISK, DISK_EARLY):
        data["of_the_" + name] = 1.0 / side_by_side.median_ratio(
            side_by_side.round_medians(ours), side_by_side.round_medians(results[name]))
    if DCP in data["ratio"]:
        data["load_ratio"] = side_by_side.median_ratio(
            side_by_side.round_medians(results[DCP], "load_ms"),
            side_by_side.round_medians(ours, "load_ms"))
    for key in ("stall_ms", "copy_ms"):
        data["ours"]["median_" + key] = statistics.median(ours.values(key))
    return data, [record for result in results.values() for record in result.records[:1]]


def closing_lines(data):
    ours = data["ours"]
    lines = [f"save: {words(data['save_gb_per_s'])} GB/s; ours reaches {data['of_the_disk']:.2f} of "
             f"one stream to the same disk, {data['of_the_disk_early']:.2f} of one sent there early",
             f"load: {words(data['load_gb_per_s'])} GB/s"]
    if "load_ratio" in data:
        lines[0] += f", {data['ratio'][DCP]:.2f} times {DCP}"
        lines[1] += f"; ours is {data['load_ratio']:.2f} times as fast"
    lines.append(f"training waits {ours['median_stall_ms']:.1f} ms for a save of "
                 f"{ours['median_ms']:.0f} ms; the copy of the snapshot alone takes "
                 f"{ours['median_copy_ms']:.1f} ms")
    return lines


def words(rates):
    return ", ".join(f"{name} {value:.2f}" for name, value in rates.items())
