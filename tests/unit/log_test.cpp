// SPDX-License-Identifier: Apache-2.0
// Lines of the log, exact, with a clock of the test's own.
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "comm/error.hpp"
#include "runtime/log/console.hpp"
#include "runtime/log/format.hpp"
#include "tests/support/temporary_folder.hpp"

namespace vsr::runtime {
namespace {

const IterationLine kLine{120, 0.0231, 1.95e-4, 65536, 0, {1.1, 52.0, 8.1}};
const ValidationScore kScore{32.91, 32.23};

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0), "0:00:00");
  EXPECT_EQ(format_duration(53.9), "0:00:54");
  EXPECT_EQ(format_duration(3599.5), "1:00:00");
  EXPECT_EQ(format_duration(43387), "12:03:07");
  EXPECT_EQ(format_duration(3 * 86400 + 4 * 3600), "3 d 04:00:00");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(98356429), "93.8 MiB");
  EXPECT_EQ(format_bytes((1LL << 30) - 1), "1.0 GiB");
  EXPECT_EQ(format_bytes(3LL << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::int64_t>::max()), "8.0 EiB");
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1 000");
  EXPECT_EQ(format_count(-123456), "-123 456");
  EXPECT_EQ(format_count(12345678), "12 345 678");
}

TEST(IntervalTimes, MeanAndMedian) {
  IntervalTimes times;
  EXPECT_EQ(times.mean().total_ms(), 0);
  EXPECT_EQ(times.median_total_ms(), 0);
  times.add({1, 2, 3});
  times.add({3, 4, 5});
  times.add({5, 6, 85, 30});
  EXPECT_EQ(times.mean().data_ms, 3);
  EXPECT_EQ(times.mean().compute_ms, 4);
  EXPECT_EQ(times.mean().comm_ms, 31);
  EXPECT_EQ(times.mean().exposed_ms, 10);  // a part of comm_ms, not one more
  EXPECT_EQ(times.median_total_ms(), 12);
  times.add({0, 0, 0});
  EXPECT_EQ(times.median_total_ms(), 9);
  times.clear();
  EXPECT_TRUE(times.empty());
}

TEST(IterationText, Exact) {
  EXPECT_EQ(iteration_text(kLine, 1000, kScore),
            "iter 120/1000  loss 0.02310  psnr-y 32.91 (bicubic 32.23)  lr 1.95e-04  scale 65536  "
            "skipped 0  step 61.2 ms (data 1.1 compute 52.0 comm 8.1)  eta 0:00:54");
  EXPECT_EQ(iteration_text(kLine, 120, std::nullopt),
            "iter 120/120  loss 0.02310  lr 1.95e-04  scale 65536  skipped 0  step 61.2 ms (data "
            "1.1 compute 52.0 comm 8.1)  eta 0:00:00");
}

TEST(IterationText, LargeScalesAndBrokenLosses) {
  auto line = kLine;
  line.loss = std::numeric_limits<double>::infinity();
  line.loss_scale = 16777216;
  const auto text = iteration_text(line, 1000, std::nullopt);
  EXPECT_NE(text.find("loss inf"), std::string::npos) << text;
  EXPECT_NE(text.find("scale 16777216 "), std::string::npos) << text;
}

TEST(ProgressText, FitsTheWidth) {
  const auto whole = progress_text(kLine, 1000, kScore, 200);
  EXPECT_EQ(whole,
            "[##..................]  120/1000  loss 0.02310  psnr-y 32.91 (bicubic 32.23)  lr "
            "1.95e-04  scale 65536  skipped 0  step 61.2 ms (data 1.1 compute 52.0 comm 8.1)  eta "
            "0:00:54");
  EXPECT_EQ(progress_text(kLine, 1000, kScore, 99),
            "[##..................]  120/1000  loss 0.02310  psnr-y 32.91 (bicubic 32.23)  eta "
            "0:00:54");
  // The bar itself shows on the 80 columns that terminals begin with.
  EXPECT_EQ(progress_text(kLine, 1000, kScore, 79),
            "[##..................]  120/1000  loss 0.02310  eta 0:00:54");
  EXPECT_EQ(progress_text(kLine, 1000, kScore, 40), "120/1000  loss 0.02310  eta 0:00:54");
  for (int width = 1; width < 210; ++width)
    EXPECT_LE(progress_text(kLine, 1000, kScore, width).size(), static_cast<std::size_t>(width));
}

class TrainLogTest : public ::testing::Test {
 protected:
  TrainLogOptions options(bool terminal) {
    TrainLogOptions o;
    o.total_iter = 25;
    o.print_freq = 10;
    o.terminal = &screen_;
    o.is_terminal = terminal;
    o.width = [] { return 80; };
    o.clock = [this] { return now_; };
    return o;
  }
  std::string file() const { return (folder_ / "train.log").string(); }
  static IterationLine line(std::int64_t iter, double compute_ms) {
    return {iter, 0.5, 1e-4, 1024, 0, {0, compute_ms, 0}};
  }

  test::TemporaryFolder folder_;
  std::ostringstream screen_;
  std::chrono::system_clock::time_point now_{std::chrono::seconds(1700000000)};
};

TEST_F(TrainLogTest, ALinePerPrintIntervalWithAveragedTimes) {
  {
    TrainLog log(file(), options(false));
    log.message("start");
    for (int i = 1; i <= 25; ++i) {
      if (i == 21) log.validation("clip", {33.0, 32.25});
      log.iteration(line(i, i));
    }
    log.warning("careful");
  }
  const std::string expected[] = {
      "start",
      "iter 10/25  loss 0.50000  lr 1.00e-04  scale 1024  skipped 0  step 5.5 ms (data 0.0 compute "
      "5.5 comm 0.0)  eta 0:00:00",
      "iter 20/25  loss 0.50000  lr 1.00e-04  scale 1024  skipped 0  step 15.5 ms (data 0.0 "
      "compute 15.5 comm 0.0)  eta 0:00:00",
      "val clip  psnr-y 33.00 (bicubic 32.25, gain +0.75)",
      "iter 25/25  loss 0.50000  psnr-y 33.00 (bicubic 32.25)  lr 1.00e-04  scale 1024  skipped 0  "
      "step 23.0 ms (data 0.0 compute 23.0 comm 0.0)  eta 0:00:00",
      "warning: careful"};
  std::string screen, log;
  for (const auto& text : expected) {
    screen += text + "\n";
    log += "2023-11-14 22:13:20 " + text + "\n";
  }
  EXPECT_EQ(screen_.str(), screen);
  EXPECT_EQ(test::read_bytes(file()), log);
}

TEST_F(TrainLogTest, AppendsToTheLogOfAnEarlierRun) {
  { TrainLog(file(), options(false)).message("one"); }
  { TrainLog(file(), options(false)).message("two"); }
  EXPECT_EQ(test::read_bytes(file()), "2023-11-14 22:13:20 one\n2023-11-14 22:13:20 two\n");
}

TEST_F(TrainLogTest, BarIsRedrawnTenTimesASecondAndGivesWayToLines) {
  {
    TrainLog log(file(), options(true));
    log.set_last_score({33, 32});
    log.iteration(line(1, 10));  // drawn
    log.iteration(line(2, 10));  // too early
    now_ += std::chrono::milliseconds(100);
    log.iteration(line(3, 30));  // drawn
    log.message("note");
  }
  const std::string one = "\r[....................]  1/25  loss 0.50000  eta 0:00:00\033[K";
  const std::string three = "\r[##..................]  3/25  loss 0.50000  eta 0:00:00\033[K";
  const std::string gone = "\r\033[K";
  EXPECT_EQ(screen_.str(), one + three + gone + "note\n" + three + gone);
  EXPECT_EQ(test::read_bytes(file()), "2023-11-14 22:13:20 note\n");
}

TEST_F(TrainLogTest, RefusesAFileItCannotOpen) {
  const auto path = folder_.write("blocked", "") + "/train.log";
  try {
    TrainLog log(path, options(false));
    FAIL();
  } catch (const IoError& e) {
    EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
  }
}

TEST_F(TrainLogTest, AFullDiskIsToldOnceAndEndsNothing) {
  TrainLog log("/dev/full", options(false));
  log.message("one");
  log.message("two");
  EXPECT_EQ(screen_.str().find("one\n") == std::string::npos, false);
  const auto first = screen_.str().find("warning: train.log: ");
  ASSERT_NE(first, std::string::npos) << screen_.str();
  EXPECT_EQ(screen_.str().find("warning: train.log: ", first + 1), std::string::npos);
}

}  // namespace
}  // namespace vsr::runtime
