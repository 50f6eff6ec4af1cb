// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: exact lines, and a file that a killed run left torn.
#include "runtime/log/metrics_jsonl.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "comm/error.hpp"
#include "tests/support/temporary_folder.hpp"

namespace vsr::runtime {
namespace {

using test::TemporaryFolder;

std::chrono::system_clock::time_point half_past_epoch() {
  return std::chrono::system_clock::time_point(std::chrono::milliseconds(1500));
}

MetricsRecord iteration(std::int64_t iter) {
  MetricsRecord record;
  record.iter = iter;
  return record;
}

TEST(MetricsJson, EveryKeyInItsPlace) {
  MetricsRecord r;
  r.type = RecordType::iter;
  r.iter = 120;
  r.applied = 119;
  r.loss = 0.25;
  r.lr = 2e-4;
  r.loss_scale = 65536;
  r.skipped = 1;
  r.grad_norm = 1.5;
  r.psnr_y = 33.1;
  r.bicubic_psnr_y = 32.23;
  r.ssim_y = 0.875;
  r.data_ms = 1;
  r.compute_ms = 52;
  r.comm_ms = 8.5;
  r.exposed_ms = 2.5;
  r.wire_bytes = 1 << 20;
  r.masters = "00112233445566778899aabbccddeeff";
  r.extra = {{"name", std::string("a \"b\"")},
             {"ranks", std::int64_t{2}},
             {"best", true},
             {"seconds", 0.5}};
  EXPECT_EQ(to_json(r, 1.5),
            "{\"type\":\"iter\",\"time_s\":1.5,\"iter\":120,\"applied\":119,\"loss\":0.25,"
            "\"lr\":0.0002,\"loss_scale\":65536.0,\"skipped\":1,\"grad_norm\":1.5,\"psnr_y\":33.1,"
            "\"bicubic_psnr_y\":32.23,\"ssim_y\":0.875,\"data_ms\":1.0,\"compute_ms\":52.0,"
            "\"comm_ms\":8.5,\"exposed_ms\":2.5,\"wire_bytes\":1048576,"
            "\"masters\":\"00112233445566778899aabbccddeeff\",\"name\":\"a \\\"b\\\"\",\"ranks\":2,"
            "\"best\":true,\"seconds\":0.5}");
}

TEST(MetricsJson, TypesAndNumbersWithoutAValue) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const auto& [type, name] : {std::pair(RecordType::start, "start"),
                                   {RecordType::iter, "iter"},
                                   {RecordType::val, "val"},
                                   {RecordType::ckpt, "ckpt"},
                                   {RecordType::end, "end"}}) {
    MetricsRecord r;
    r.type = type;
    EXPECT_EQ(to_json(r, 0), "{\"type\":\"" + std::string(name) + "\",\"time_s\":0.0}");
  }
  MetricsRecord r;
  r.loss = inf;
  r.lr = -inf;
  r.grad_norm = std::numeric_limits<double>::quiet_NaN();
  r.extra = {{"x", inf}};
  EXPECT_EQ(to_json(r, 0),
            "{\"type\":\"iter\",\"time_s\":0.0,\"loss\":\"inf\",\"lr\":\"-inf\","
            "\"grad_norm\":\"nan\",\"x\":\"inf\"}");
}

TEST(MetricsJsonl, AppendsWholeLines) {
  TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  for (int run = 0; run < 2; ++run) {
    MetricsJsonl metrics(path, half_past_epoch);
    EXPECT_EQ(metrics.repaired_bytes(), 0);
    metrics.append(iteration(run));
  }
  EXPECT_EQ(test::read_bytes(path),
            "{\"type\":\"iter\",\"time_s\":1.5,\"iter\":0}\n"
            "{\"type\":\"iter\",\"time_s\":1.5,\"iter\":1}\n");
}

TEST(MetricsJsonl, CutsATornLine) {
  TemporaryFolder folder;
  const std::string whole = "{\"type\":\"start\"}\n";
  const std::string torn_ones[] = {"{\"type\":\"it", std::string(10000, 'x')};
  for (const auto& torn : torn_ones) {
    const auto path = folder.write("metrics.jsonl", whole + torn);
    MetricsJsonl metrics(path, half_past_epoch);
    EXPECT_EQ(metrics.repaired_bytes(), static_cast<std::int64_t>(torn.size()));
    EXPECT_EQ(test::read_bytes(path), whole);
    metrics.append(iteration(7));
    EXPECT_EQ(test::read_bytes(path), whole + "{\"type\":\"iter\",\"time_s\":1.5,\"iter\":7}\n");
  }
}

TEST(MetricsJsonl, CutsAFileThatIsOneTornLine) {
  TemporaryFolder folder;
  const auto path = folder.write("metrics.jsonl", "{\"type\"");
  EXPECT_EQ(MetricsJsonl(path, half_past_epoch).repaired_bytes(), 7);
  EXPECT_EQ(test::read_bytes(path), "");
}

TEST(MetricsJsonl, MovesItsFile) {
  TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  MetricsJsonl first(path, half_past_epoch);
  MetricsJsonl second(std::move(first));
  second.append(iteration(1));
  EXPECT_EQ(test::read_bytes(path), "{\"type\":\"iter\",\"time_s\":1.5,\"iter\":1}\n");
}

TEST(MetricsJsonl, NamesTheFileItCannotOpen) {
  TemporaryFolder folder;
  const auto path = (folder / "none/metrics.jsonl").string();
  try {
    MetricsJsonl metrics(path);
    FAIL();
  } catch (const IoError& e) {
    EXPECT_EQ(std::string(e.what()), "cannot open " + path + ": No such file or directory");
  }
}

TEST(MetricsJsonl, TellsOfAFullDisk) {
  MetricsJsonl metrics("/dev/full");
  EXPECT_THROW(metrics.append(iteration(1)), IoError);
}

}  // namespace
}  // namespace vsr::runtime
