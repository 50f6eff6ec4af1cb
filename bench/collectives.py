# SPDX-License-Identifier: Apache-2.0
"""`compare.sh collectives`: the three reductions, publication and broadcast over sizes and ranks, beside
the calls of Open MPI and of gloo, with algorithm and bus bandwidth as nccl-tests defines them.
"""
import os
import statistics

import side_by_side
from peers import environment
from side_by_side import OURS, Contender

FULL = dict(rounds=3, warmup=2, iterations=10)
QUICK = dict(rounds=2, warmup=0, iterations=2)
MPI = "open_mpi"
GLOO = "gloo"
KIB = 1024
FULL_BYTES = [64 * KIB, 1024 * KIB, 8192 * KIB, 65536 * KIB]
QUICK_BYTES = [64 * KIB, 1024 * KIB]


def bus_factor(operation, ranks):
    """What the bandwidth of the whole buffer is multiplied by to get that of a link."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": share,
            "broadcast": 1.0}[operation]


def contenders(options, ranks, programs, where):
    sizes = [f"--bytes={size}" for size in (QUICK_BYTES if options.quick else FULL_BYTES)]
    shared = sizes + [f"--threads={options.threads}", f"--warmup={options.warmup}",
                      f"--iterations={options.iterations}"]
    if options.pin and ranks <= len(os.sched_getaffinity(0)):
        shared.append("--pin")
    program = side_by_side.mpirun(ranks) + [os.path.join(programs, "collectives_bench")]
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers",
                          "collectives_peer.py")
    return [
        Contender(OURS, "vsr_dist, FP16: exact sums in FP64, fast and allreduce in FP16",
                  program + shared, required=True),
        Contender(MPI, "the same buffers through the calls of Open MPI, FP32",
                  program + ["--mpi"] + shared, required=True),
        Contender(GLOO, "torch.distributed over gloo, FP32 and FP16",
                  [str(where.python), "-B", script, f"--ranks={ranks}"] + shared, where.variables,
                  where.missing.get("torch", ""))]


def rows_of(results, ranks):
    """One row for each call and size; its time is the median over the rounds."""
    rows = []
    for side, result in results.items():
        if not result.records:
            continue
        for index, row in enumerate(result.records[0]["rows"]):
            ms = statistics.median(statistics.median(record["rows"][index]["times_ms"])
                                   for record in result.records)
            algorithm = row["bytes"] / 1e6 / ms
            rows.append(dict(side=side, ranks=ranks, name=row["name"], operation=row["operation"],
                             type=row["type"], bytes=row["bytes"], median_ms=ms,
                             algorithm_gb_per_s=algorithm,
                             bus_gb_per_s=algorithm * bus_factor(row["operation"], ranks)))
    return rows


def compare(options, programs, say):
    """Run the comparison; the data of the JSON file."""
    where = environment.prepare(say, may_download=not options.no_download)
    rows, missing, records = [], {}, []
    for ranks in [options.ranks] if options.quick else sorted({options.ranks, 4}):
        results = side_by_side.run_rounds(contenders(options, ranks, programs, where),
                                          options.rounds, say)
        rows += rows_of(results, ranks)
        missing.update({name: result.missing for name, result in results.items()
                        if result.missing})
        records += [record for result in results.values() for record in result.records[:1]]
    rows.sort(key=lambda row: (row["ranks"], row["operation"], row["bytes"], row["median_ms"]))
    return dict(rows=rows, missing=missing), records


def table(data):
    """The comparison for a person."""
    head = ("ranks", "operation", "bytes", "side", "call", "type", "median ms", "alg GB/s",
            "bus GB/s")
    cells = [head] + [(str(row["ranks"]), row["operation"], str(row["bytes"]), row["side"],
                       row["name"], row["type"], f"{row['median_ms']:.3f}",
                       f"{row['algorithm_gb_per_s']:.2f}", f"{row['bus_gb_per_s']:.2f}")
                      for row in data["rows"]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) if column in (1, 3, 4, 5) else cell.rjust(width)
                       for column, (cell, width) in enumerate(zip(row, widths)))
             for row in cells]
    return "\n".join(lines + [f"{name}: missing, {reason}"
                              for name, reason in sorted(data["missing"].items())])


def closing_lines(_data):
    return ["bytes: of the whole buffer; alg = bytes / time; bus = alg times 2(P-1)/P for "
            "all_reduce, (P-1)/P for reduce_scatter and all_gather, 1 for broadcast"]
