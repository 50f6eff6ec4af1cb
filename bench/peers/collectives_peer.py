# SPDX-License-Identifier: Apache-2.0
"""The peer of the collectives comparison: torch.distributed over gloo, in FP32 and FP16 where gloo adds
up FP16. Every result is compared with a closed form before it is timed. Rank 0 prints one line of JSON.
"""
import json
import statistics

import torch
import torch.distributed as dist

import ranks


def given(rank, elements, dtype):
    """Whole numbers, so that no type rounds a sum of them."""
    return ((torch.arange(elements) * 7 + rank * 13) % 31 - 15).to(dtype)


def total(world, elements, dtype):
    return sum(given(rank, elements, torch.float32) for rank in range(world)).to(dtype)


def cases(rank, world, size, dtype):
    """Name, operation, what is run, and whether its result is right."""
    elements = size // torch.empty((), dtype=dtype).element_size()
    part = elements // world
    word = {torch.float32: "fp32", torch.float16: "fp16"}[dtype]
    reduced = torch.empty(elements, dtype=dtype)
    gathered = torch.empty(part * world, dtype=dtype)
    spread = given(rank, elements, dtype)

    def fill():
        reduced.copy_(given(rank, elements, dtype))

    yield ("all_reduce", word, fill, lambda: dist.all_reduce(reduced),
           lambda: torch.equal(reduced, total(world, elements, dtype)))
    mine = given(rank, part, dtype)
    yield ("all_gather", word, None, lambda: dist.all_gather_into_tensor(gathered, mine),
           lambda: torch.equal(gathered, torch.cat([given(r, part, dtype) for r in range(world)])))
    yield ("broadcast", word, None, lambda: dist.broadcast(spread, 0),
           lambda: torch.equal(spread, given(0, elements, dtype)))


def timed(case, arguments):
    operation, dtype, prepare, run, is_right = case
    times = []
    for number in range(-1, arguments.warmup + arguments.iterations):
        if prepare:
            prepare()
        dist.barrier()
        ms = ranks.timed_ms(run)
        if number < 0 and not is_right():
            raise SystemExit(f"{operation} gave a wrong result")
        if number >= arguments.warmup:
            times.append(ms)
    return dict(name=f"gloo {operation}", operation=operation, type=dtype, times_ms=times)


def worker(rank, arguments, port):
    ranks.join(rank, arguments, port)
    rows = []
    for size in arguments.bytes:
        for dtype in (torch.float32, torch.float16):
            for case in cases(rank, arguments.ranks, size, dtype):
                rows.append(dict(bytes=size, **timed(case, arguments)))
    if rank == 0:
        print("JSON " + json.dumps(dict(
            name="gloo", checked=True, ranks=arguments.ranks, threads=torch.get_num_threads(),
            pinned=arguments.pin, warmup=arguments.warmup, rows=rows,
            times_ms=[statistics.median(row["times_ms"]) for row in rows],
            versions=dict(pytorch=torch.__version__))), flush=True)
    ranks.leave()


def main():
    parser = ranks.options(__doc__.splitlines()[0], layers=1, last=1, warmup=2, iterations=10)
    parser.add_argument("--bytes", type=int, action="append", required=True)
    arguments = parser.parse_args()
    ranks.start(worker, arguments)


if __name__ == "__main__":
    main()
