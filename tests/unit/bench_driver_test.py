# SPDX-License-Identifier: Apache-2.0
"""The arithmetic and the form of the comparisons: medians, ratios within rounds, missing peers, the
limit and the breakdown, from records made by hand.
"""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "bench"))

import checkpoint  # noqa: E402
import collectives  # noqa: E402
import compare  # noqa: E402
import machine  # noqa: E402
import side_by_side  # noqa: E402
import step  # noqa: E402
from peers import environment  # noqa: E402
from side_by_side import Contender, Result  # noqa: E402


def silent(_line):
    pass


def contender(name, **more):
    return Contender(name, f"label of {name}", ["true"], **more)


def printing(text, code=0, stderr=""):
    script = f"import sys; print({text!r}); print({stderr!r}, file=sys.stderr); sys.exit({code})"
    return contender("x", environment=dict(os.environ)), [sys.executable, "-c", script]


def result(name, *rounds, **more):
    return Result(contender(name), [dict(times_ms=list(times), **more) for times in rounds])


class Arithmetic(unittest.TestCase):
    def test_percentile_is_the_smallest_value_that_covers_the_share(self):
        values = list(range(100, 0, -1))
        self.assertEqual(side_by_side.percentile(values, 0.99), 99)
        self.assertEqual(side_by_side.percentile(values, 1.0), 100)
        self.assertEqual(side_by_side.percentile([7.0], 0.99), 7.0)
        self.assertEqual(side_by_side.percentile([1, 2, 3, 4], 0.5), 2)

    def test_summary(self):
        self.assertEqual(side_by_side.summary([4.0, 1.0, 3.0, 2.0]),
                         dict(median_ms=2.5, min_ms=1.0, p99_ms=4.0, count=4))

    def test_ratio_is_the_median_of_the_rounds_ratios(self):
        # The whole machine was three times slower in the second round: ratios 5, 6 and 4 remain.
        self.assertEqual(side_by_side.median_ratio([50.0, 180.0, 40.0], [10.0, 30.0, 10.0]), 5.0)

    def test_ratio_wants_equally_many_rounds(self):
        with self.assertRaisesRegex(ValueError, "1 rounds of theirs beside 2 of ours"):
            side_by_side.median_ratio([1.0], [1.0, 1.0])
        with self.assertRaises(ValueError):
            side_by_side.median_ratio([], [])

    def test_spread(self):
        self.assertEqual(side_by_side.spread([9.0, 10.0, 12.0]), 0.3)
        self.assertEqual(side_by_side.spread([9.0]), 0.0)


class Rounds(unittest.TestCase):
    def test_contenders_take_turns(self):
        turns = []

        def run(c, _timeout):
            turns.append(c.name)
            return dict(times_ms=[1.0], checked=True), ""

        side_by_side.run_rounds([contender("ours"), contender("a"), contender("b")], 2, silent,
                                run=run)
        self.assertEqual(turns, ["ours", "a", "b", "ours", "a", "b"])

    def test_a_failing_peer_is_missing_with_its_reason_and_not_asked_again(self):
        turns = []

        def run(c, _timeout):
            turns.append(c.name)
            if c.name == "a" and len(turns) > 3:
                return None, "out of memory"
            return dict(times_ms=[2.0 if c.name == "ours" else 6.0], checked=True), ""

        results = side_by_side.run_rounds(
            [contender("ours"), contender("a"), contender("b", missing="no wheel")], 3, silent,
            run=run)
        self.assertEqual(turns, ["ours", "a", "ours", "a", "ours"])
        data = side_by_side.report(results)
        self.assertEqual(data["missing"], {"a": "out of memory", "b": "no wheel"})
        self.assertEqual((data["peers"], data["ratio"]), ({}, {}))
        self.assertEqual(data["ours"]["count"], 3)

    def test_without_a_required_side_nothing_else_runs(self):
        turns = []

        def run(c, _timeout):
            turns.append(c.name)
            return None, "segmentation fault"

        with self.assertRaisesRegex(RuntimeError, "ours did not run: segmentation fault"):
            side_by_side.run_rounds([contender("ours", required=True), contender("a")], 2, silent,
                                    run=run)
        self.assertEqual(turns, ["ours"])

    def test_report_and_table(self):
        data = side_by_side.report({"ours": result("ours", [9.0, 10.0, 11.0], [20.0], ranks=2),
                                    "a": result("a", [40.0], [100.0], ranks=2)})
        self.assertEqual(data["ratio"], {"a": 4.5})
        self.assertEqual(data["ours"]["round_medians_ms"], [10.0, 20.0])
        self.assertEqual(data["peers"]["a"]["median_ms"], 70.0)
        self.assertEqual(data["ours"]["ranks"], 2)
        text = side_by_side.table(dict(data, missing={"b": "no wheel"}))
        self.assertIn("4.50", text)
        self.assertIn("b: missing, no wheel", text)


class Records(unittest.TestCase):
    def run_script(self, *arguments, **more):
        c, c.command = printing(*arguments, **more)
        return side_by_side.run_once(c, 30)

    def test_the_marked_line_is_the_record(self):
        record, _ = self.run_script('chatter\nJSON {"checked": true, "times_ms": [1]}\nmore')
        self.assertEqual(record, dict(checked=True, times_ms=[1]))

    def test_an_unchecked_result_does_not_count(self):
        record, reason = self.run_script('JSON {"times_ms": [1]}')
        self.assertIsNone(record)
        self.assertEqual(reason, "its result was not checked")

    def test_the_reason_of_a_failure_is_its_error(self):
        record, reason = self.run_script("", code=3, stderr="a\nValueError: bad\n-----\nbye")
        self.assertIsNone(record)
        self.assertEqual(reason, "ValueError: bad")
        # A launcher that counts messages names no error.
        hint = 'set "help_aggregate" to 0 to see all help / error messages'
        _, reason = self.run_script("", code=3, stderr=f"[rank 1] error: bad\n{hint}")
        self.assertEqual(reason, "[rank 1] error: bad")
        self.assertEqual(self.run_script("", code=3), (None, "ended with code 3 and no result"))

    def test_a_program_that_is_not_there(self):
        c = Contender("x", "x", ["/nowhere/program"])
        record, reason = side_by_side.run_once(c, 30)
        self.assertIsNone(record)
        self.assertIn("/nowhere/program", reason)

    def test_json_is_replaced_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "new", "step.json")
            side_by_side.write_json(path, dict(a=1))
            side_by_side.write_json(path, dict(a=2))
            with open(path, encoding="utf-8") as file:
                self.assertEqual(json.load(file), dict(a=2))
            self.assertEqual(os.listdir(os.path.dirname(path)), ["step.json"])


class Step(unittest.TestCase):
    def test_limit_compares_with_the_bytes_of_all_parameters(self):
        # 19 bytes for each of 1000 parameters in 2 ms: 9500 bytes a millisecond. Ours has 1100
        # parameters, 20900 bytes: 2.2 ms. It takes 3.3.
        ours = result("ours", [3.3, 3.3, 3.3], parameters=1100)
        memory = result("bandwidth", [2.0, 1.0, 9.0], bytes_per_parameter=19.0,
                        measured_parameters=1000)
        self.assertAlmostEqual(step.limit_of(ours, memory), 1.5)

    def test_breakdown_adds_up(self):
        parts = dict(update=[4.0, 5.0, 6.5], reduce=[1.0, 2.0, 3.0])
        ours = Result(contender("ours"), [dict(times_ms=[5.0, 7.0, 9.5], breakdown_ms=parts)])
        self.assertEqual(list(step.breakdown_of(ours).items()),
                         [("step", 7.0), ("reduce", 2.0), ("update", 5.0)])

    def test_full_size_is_that_of_the_design(self):
        size = step.FULL_SIZE
        inner = (size["layers"] - 1) * (size["width"] + 1) * size["width"]
        self.assertEqual(inner + (size["width"] + 1) * size["last"], 24_600_000)


class Collectives(unittest.TestCase):
    def test_bus_factors_are_those_of_nccl_tests(self):
        self.assertAlmostEqual(collectives.bus_factor("all_reduce", 4), 1.5)
        self.assertAlmostEqual(collectives.bus_factor("reduce_scatter", 4), 0.75)
        self.assertAlmostEqual(collectives.bus_factor("all_gather", 2), 0.5)
        self.assertAlmostEqual(collectives.bus_factor("broadcast", 8), 1.0)

    def test_rows_are_medians_over_rounds(self):
        def record(times):
            return dict(rows=[dict(name="exact", operation="reduce_scatter", type="fp16",
                                   bytes=8_000_000, times_ms=times)])
        ours = Result(contender("ours"), [record([1.0, 9.0, 2.0]), record([4.0]), record([8.0])])
        rows = collectives.rows_of({"ours": ours, "gloo": Result(contender("gloo"))}, 4)
        self.assertEqual(len(rows), 1)
        self.assertAlmostEqual(rows[0]["median_ms"], 4.0)
        self.assertAlmostEqual(rows[0]["algorithm_gb_per_s"], 2.0)
        self.assertAlmostEqual(rows[0]["bus_gb_per_s"], 1.5)
        text = collectives.table(dict(rows=rows, missing={"gloo": "no torch"}))
        self.assertIn("reduce_scatter", text)
        self.assertIn("gloo: missing, no torch", text)


class Checkpoint(unittest.TestCase):
    def test_rates_are_medians_over_rounds(self):
        # 600 MB in 500, 1000 and 600 ms.
        ours = result("ours", [500.0], [1000.0], [600.0], bytes=600_000_000)
        self.assertAlmostEqual(checkpoint.rate(ours), 1.0)

    def test_closing_lines_say_what_training_waits_for(self):
        data = dict(ours=dict(median_ms=800.0, median_stall_ms=90.5, median_copy_ms=80.0),
                    save_gb_per_s=dict(ours=0.75, disk=0.9), load_gb_per_s=dict(ours=2.0),
                    of_the_disk=0.83, of_the_disk_early=0.75)
        text = "\n".join(checkpoint.closing_lines(data))
        self.assertIn("ours 0.75, disk 0.90 GB/s; ours reaches 0.83 of one stream", text)
        self.assertIn("training waits 90.5 ms for a save of 800 ms", text)
        data.update(ratio=dict(torch_dcp=1.25), load_ratio=2.5)
        text = "\n".join(checkpoint.closing_lines(data))
        self.assertIn("of one stream to the same disk, 0.75 of one sent there early, 1.25 times "
                      "torch_dcp", text)
        self.assertIn("ours is 2.50 times as fast", text)

    def test_full_size_is_half_a_gigabyte(self):
        size = checkpoint.FULL_SIZE
        parameters = ((size["layers"] - 1) * (size["width"] + 1) * size["width"]
                      + (size["width"] + 1) * size["last"])
        self.assertEqual(round(12 * parameters / 1e6), 603)

    def test_each_comparison_has_its_own_counts(self):
        options = compare.read_options(["checkpoint", "--quick", "--no-pin"])
        self.assertEqual((options.rounds, options.warmup, options.iterations), (2, 0, 1))
        self.assertTrue(options.out.endswith("checkpoint.json"))


class Surroundings(unittest.TestCase):
    def test_options_of_a_quick_run(self):
        options = compare.read_options(["step", "--quick", "--no-pin", "--iterations", "7"])
        self.assertEqual((options.rounds, options.warmup, options.iterations), (2, 2, 7))
        self.assertTrue(options.out.endswith(os.path.join("build", "bench", "step.json")))

    def test_more_threads_than_cores_are_not_pinned(self):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            options = compare.read_options(["step", "--ranks", "4096"])
        self.assertFalse(options.pin)
        self.assertIn("not pinned", text.getvalue())

    def test_bad_options(self):
        for bad in (["walk"], ["step", "--rounds", "0"], ["step", "--ranks", "0"]):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                compare.read_options(bad)

    def test_without_download_a_peer_is_missing_with_the_place(self):
        with tempfile.TemporaryDirectory() as folder:
            before = os.environ.get("VSR_CACHE")
            os.environ["VSR_CACHE"] = folder
            try:
                made = environment.prepare(silent, may_download=False)
            finally:
                del os.environ["VSR_CACHE"]
                if before is not None:
                    os.environ["VSR_CACHE"] = before
            self.assertEqual(sorted(made.missing), ["deepspeed", "torch"])
            self.assertIn(folder, made.missing["torch"])
            self.assertEqual(os.listdir(folder), [])

    def test_machine_and_versions(self):
        facts = machine.machine()
        for key in ("cpu", "cores", "memory_gib", "kernel", "system", "load_before"):
            self.assertIn(key, facts)
        self.assertGreater(facts["memory_gib"], 0)
        found = machine.versions(SOURCE, [dict(versions=dict(pytorch="1")), dict()])
        self.assertEqual(found["pytorch"], "1")
        self.assertIn("commit", found)


if __name__ == "__main__":
    unittest.main()
