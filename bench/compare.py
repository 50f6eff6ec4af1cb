# SPDX-License-Identifier: Apache-2.0
"""Runs one comparison of ours with its peers, prints a table and writes build/bench/NAME.json.
bench/compare.sh calls it with the programs built.
"""
import argparse
import os
import sys

import checkpoint
import collectives
import machine
import side_by_side
import step

COMPARISONS = {"step": step, "checkpoint": checkpoint, "collectives": collectives}
SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read_options(arguments):
    parser = argparse.ArgumentParser(prog="bench/compare.sh", description=__doc__.splitlines()[0])
    parser.add_argument("comparison", choices=sorted(COMPARISONS))
    parser.add_argument("--quick", action="store_true",
                        help="small sizes and few rounds: shows that it works, no numbers to quote")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warmup", type=int, help="untimed iterations of a round")
    parser.add_argument("--iterations", type=int, help="timed iterations of a round")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank")
    parser.add_argument("--reduction", default="exact", choices=["exact", "allreduce", "fast"],
                        help="of ours, in step")
    parser.add_argument("--folder", help="where checkpoint writes: the disk to measure; "
                                         "build/bench/data")
    parser.add_argument("--no-pin", dest="pin", action="store_false",
                        help="leave the ranks of all contenders to the scheduler")
    parser.add_argument("--no-download", action="store_true",
                        help="report peers as missing that are not installed yet")
    parser.add_argument("--out", metavar="FILE", help="instead of build/bench/NAME.json")
    options = parser.parse_args(arguments)
    comparison = COMPARISONS[options.comparison]
    for name, count in (comparison.QUICK if options.quick else comparison.FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, count)
        if getattr(options, name) < (0 if name == "warmup" else 1):
            parser.error(f"--{name} {getattr(options, name)}: too small")
    if options.ranks < 1 or options.threads < 1:
        parser.error("--ranks and --threads start at 1")
    cores = len(os.sched_getaffinity(0))
    if options.pin and options.ranks * options.threads > cores:
        say(f"{options.ranks} ranks of {options.threads} threads on {cores} cores: not pinned")
        options.pin = False
    options.folder = os.path.abspath(options.folder or
                                     os.path.join(SOURCE, "build", "bench", "data"))
    options.out = options.out or os.path.join(SOURCE, "build", "bench",
                                              options.comparison + ".json")
    return options


def say(line):
    print(line, flush=True)


def main():
    options = read_options(sys.argv[1:])
    comparison = COMPARISONS[options.comparison]
    programs = os.environ.get("VSR_BIN") or os.path.join(SOURCE, "build", "release", "bin")
    facts = machine.machine()
    say(f"{options.comparison}: {options.ranks} ranks, {options.threads} thread each, "
        f"{'pinned' if options.pin else 'not pinned'}, {options.rounds} rounds of "
        f"{options.warmup} + {options.iterations} iterations; {facts['cpu']}, {facts['cores']} "
        f"cores, load {facts['load_before']}")
    try:
        data, records = comparison.compare(options, programs, say)
    except RuntimeError as error:
        sys.exit(f"bench/compare.sh: {error}")
    data.update(machine=facts, versions=machine.versions(SOURCE, records),
                comparison=options.comparison, quick=options.quick, rounds=options.rounds,
                command=["bench/compare.sh"] + sys.argv[1:])
    side_by_side.write_json(options.out, data)
    say("")
    say(getattr(comparison, "table", side_by_side.table)(data))
    for line in comparison.closing_lines(data):
        say(line)
    say(f"written to {options.out}")


if __name__ == "__main__":
    main()
