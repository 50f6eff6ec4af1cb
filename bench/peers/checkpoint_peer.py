# SPDX-License-Identifier: Apache-2.0
"""The peer of the checkpoint comparison: torch.distributed.checkpoint saves and loads three flat FP32
tensors of each rank (masters and two moments), in the form that costs it least: nothing is resharded.
Files are synced, which is its default. Rank 0 prints one line of JSON.
"""
import argparse
import json
import os
import shutil
import socket
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def timed_ms(action):
    """Milliseconds of the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    action()
    longest = torch.tensor([1e3 * (time.perf_counter() - start)], dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.item()


def parameters_of(arguments):
    inner = (arguments.layers - 1) * (arguments.width + 1) * arguments.width
    return inner + (arguments.width + 1) * arguments.last


def saved_and_loaded(state, folder):
    """Times of both, after what came back was compared with what went out."""
    save_ms = timed_ms(lambda: dcp.save(state, checkpoint_id=folder))
    back = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load_ms = timed_ms(lambda: dcp.load(back, checkpoint_id=folder))
    if not all(torch.equal(back[name], state[name]) for name in state):
        raise SystemExit("what was loaded is not what was saved")
    return save_ms, load_ms


def worker(rank, arguments, port):
    if arguments.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(arguments.ranks))
    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo", rank=rank, world_size=arguments.ranks)
    elements = parameters_of(arguments) // arguments.ranks
    generator = torch.Generator().manual_seed(rank)
    state = {f"{name}.{rank}": torch.rand(elements, generator=generator)
             for name in ("master", "exp_avg", "exp_avg_sq")}
    rows = []
    for number in range(arguments.warmup + arguments.iterations):
        folder = os.path.join(arguments.folder, str(number))
        rows.append(saved_and_loaded(state, folder))
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
    if rank == 0:
        rows = rows[arguments.warmup:]
        print("JSON " + json.dumps(dict(
            name="torch_dcp", checked=True, ranks=arguments.ranks,
            threads=torch.get_num_threads(), pinned=arguments.pin,
            parameters=parameters_of(arguments), warmup=arguments.warmup,
            bytes=12 * elements * arguments.ranks, times_ms=[row[0] for row in rows],
            load_ms=[row[1] for row in rows], versions=dict(pytorch=torch.__version__))),
            flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--last", type=int, default=896)
    parser.add_argument("--warmup", type=int, default=1, help="saves that are not timed")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--folder", required=True, help="where it writes")
    parser.add_argument("--pin", action="store_true", help="rank r on the r-th core alone")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(worker, (arguments, port), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
