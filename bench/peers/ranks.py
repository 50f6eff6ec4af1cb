# SPDX-License-Identifier: Apache-2.0
"""How every peer starts its ranks over gloo, reads the options that all comparisons share, and takes
the time of the slowest rank.
"""
import argparse
import os
import socket
import time

import torch
import torch.distributed as dist


def options(description, layers, last, warmup, iterations):
    """A parser with what compare.sh gives to every peer; the numbers are defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank")
    parser.add_argument("--layers", type=int, default=layers)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--last", type=int, default=last, help="outputs of the last layer")
    parser.add_argument("--warmup", type=int, default=warmup, help="iterations that are not timed")
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument("--pin", action="store_true", help="rank r on the r-th core alone")
    return parser


def start(worker, arguments):
    """Run worker(rank, arguments, port) on all ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(worker, (arguments, port), nprocs=arguments.ranks)


def join(rank, arguments, port):
    """The first thing a worker does: its core, its threads, its place among the ranks."""
    if arguments.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    world = str(arguments.ranks)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_SIZE=world)
    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo", rank=rank, world_size=arguments.ranks)


def leave():
    dist.barrier()
    dist.destroy_process_group()


def max_over_ranks(values):
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def timed_ms(action):
    """Milliseconds of the slowest rank."""
    dist.barrier()
    start_s = time.perf_counter()
    action()
    return max_over_ranks([1e3 * (time.perf_counter() - start_s)])[0]
