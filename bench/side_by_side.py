# SPDX-License-Identifier: Apache-2.0
"""The form that all comparisons of bench/ share: contenders run one after the other, round after
round, so that whatever the machine does meanwhile falls on all of them; a ratio is taken within a
round and the rounds' median is reported. Standard library only.
"""
import json
import math
import os
import shlex
import statistics
import subprocess
from dataclasses import dataclass, field

OURS = "ours"


@dataclass
class Contender:
    """One side of a comparison: a command that prints a line "JSON {...}" with `times_ms`."""
    name: str
    label: str
    command: list
    environment: dict = None
    missing: str = ""  # why it cannot run; such a contender stays in the report
    required: bool = False  # without it there is nothing to compare


@dataclass
class Result:
    """What a contender gave: one record per round, in order."""
    contender: Contender
    records: list = field(default_factory=list)
    missing: str = ""

    def values(self, key="times_ms"):
        return [value for record in self.records for value in record[key]]


def run_rounds(contenders, rounds, say, timeout_s=900, run=None):
    """Run all contenders in turn, `rounds` times. A peer that fails is left out from then on, and its
    result says why: a ratio over fewer rounds than its rival's would not be side by side. When a
    required one fails, RuntimeError says so at once."""
    run = run or run_once
    results = {c.name: Result(c, missing=c.missing) for c in contenders}
    for number in range(1, rounds + 1):
        for contender in contenders:
            result = results[contender.name]
            if result.missing:
                continue
            record, reason = run(contender, timeout_s)
            if record is None and contender.required:
                raise RuntimeError(f"{contender.name} did not run: {reason}")
            if record is None:
                result.missing, result.records = reason, []
                say(f"round {number}/{rounds}  {contender.name:<16} failed: {reason}")
                continue
            result.records.append(record)
            say(f"round {number}/{rounds}  {contender.name:<16} median "
                f"{statistics.median(record['times_ms']):9.2f} ms of {len(record['times_ms'])}")
    return results


def run_once(contender, timeout_s):
    """The record that a contender printed, or None and the reason."""
    try:
        done = subprocess.run(contender.command, env=contender.environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout_s,
                              stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return None, f"not finished after {timeout_s} s"
    except OSError as error:
        return None, str(error)
    for line in done.stdout.splitlines():
        if line.startswith("JSON "):
            record = json.loads(line[len("JSON "):])
            if not record.get("checked"):
                return None, "its result was not checked"
            return record, ""
    return None, last_words(done.stderr) or f"ended with code {done.returncode} and no result"


def last_words(text):
    """The last line that names an error, else the last one that is no frame of a banner."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and set(line) - set("-=~^ ")]
    errors = [line for line in lines if "rror: " in line]
    return (errors or lines or [""])[-1][:300]


def percentile(values, share):
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(values):
    return dict(median_ms=statistics.median(values), min_ms=min(values),
                p99_ms=percentile(values, 0.99), count=len(values))


def round_medians(result, key="times_ms"):
    return [statistics.median(record[key]) for record in result.records]


def spread(medians):
    """How far the rounds lie apart: (largest - smallest) / median."""
    return (max(medians) - min(medians)) / statistics.median(medians)


def median_ratio(theirs, ours):
    """Their time over ours, round by round; above 1 we are ahead."""
    if len(theirs) != len(ours) or not ours:
        raise ValueError(f"{len(theirs)} rounds of theirs beside {len(ours)} of ours")
    return statistics.median(their / our for their, our in zip(theirs, ours))


def report(results):
    """The keys `ours`, `peers` and `ratio` of the JSON file, and `missing` with the reasons."""
    ours = results[OURS]
    peers, ratio, missing = {}, {}, {}
    for name, result in results.items():
        if name == OURS:
            continue
        if result.missing:
            missing[name] = result.missing
            continue
        peers[name] = described(result)
        ratio[name] = median_ratio(round_medians(result), round_medians(ours))
    return dict(ours=described(ours), peers=peers, ratio=ratio, missing=missing)


def described(result):
    first = result.records[0]
    entry = dict(what=result.contender.label, **summary(result.values()),
                 round_medians_ms=round_medians(result),
                 spread_of_rounds=spread(round_medians(result)), times_ms=result.values())
    for key in ("ranks", "threads", "pinned", "parameters", "warmup", "checked", "check_error",
                "reduction"):
        if key in first:
            entry[key] = first[key]
    return entry


def table(data):
    """The comparison for a person."""
    rows = [("", "median ms", "min ms", "p99 ms", "rounds ±", "its time / ours")]
    for name, entry in [(OURS, data["ours"])] + sorted(data["peers"].items()):
        ratio = "" if name == OURS else f"{data['ratio'][name]:.2f}"
        rows.append((name, f"{entry['median_ms']:.2f}", f"{entry['min_ms']:.2f}",
                     f"{entry['p99_ms']:.2f}", f"{50 * entry['spread_of_rounds']:.0f} %", ratio))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in
                                                    zip(row[1:], widths[1:])]) for row in rows]
    for name, reason in sorted(data["missing"].items()):
        lines.append(f"{name}: missing, {reason}")
    return "\n".join(lines)


def write_json(path, data):
    """All or nothing: a reader never sees half a file."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
    os.replace(temporary, path)


def mpirun(ranks):
    """The start of a command that runs a program of ours on `ranks` ranks."""
    return shlex.split(os.environ.get("VSR_MPIRUN", "mpirun")) + ["-np", str(ranks)]


def shared_arguments(options, size):
    """What every side of a comparison is given: the size of the network and how to measure."""
    arguments = [f"--{key}={value}" for key, value in size.items()]
    arguments += [f"--threads={options.threads}", f"--warmup={options.warmup}",
                  f"--iterations={options.iterations}"]
    return arguments + ["--pin"] if options.pin else arguments
