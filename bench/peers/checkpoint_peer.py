# SPDX-License-Identifier: Apache-2.0
"""The peer of the checkpoint comparison: torch.distributed.checkpoint saves and loads three flat FP32
tensors of each rank (masters and two moments), in the form that costs it least: nothing is resharded.
Files are synced, which is its default. Rank 0 prints one line of JSON.
"""
import json
import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import ranks


def parameters_of(arguments):
    inner = (arguments.layers - 1) * (arguments.width + 1) * arguments.width
    return inner + (arguments.width + 1) * arguments.last


def saved_and_loaded(state, folder):
    """Times of both, after what came back was compared with what went out."""
    save_ms = ranks.timed_ms(lambda: dcp.save(state, checkpoint_id=folder))
    back = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load_ms = ranks.timed_ms(lambda: dcp.load(back, checkpoint_id=folder))
    if not all(torch.equal(back[name], state[name]) for name in state):
        raise SystemExit("what was loaded is not what was saved")
    return save_ms, load_ms


def worker(rank, arguments, port):
    ranks.join(rank, arguments, port)
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
    ranks.leave()


def main():
    parser = ranks.options(__doc__.splitlines()[0], layers=48, last=896, warmup=1, iterations=3)
    parser.add_argument("--folder", required=True, help="where it writes")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    ranks.start(worker, arguments)


if __name__ == "__main__":
    main()
