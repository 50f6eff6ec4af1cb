// SPDX-License-Identifier: Apache-2.0
// The two texts of an iteration: a whole line, and what fits on one row of a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/log/console.hpp"
#include "runtime/log/format.hpp"

namespace vsr::runtime {
namespace {

constexpr int kBarColumns = 20;

std::string remaining_text(const IterationLine& line, std::int64_t total_iter) {
  const auto left = static_cast<double>(std::max<std::int64_t>(0, total_iter - line.iter));
  return format_duration(left * line.times.total_ms() / 1000);
}

std::string score_text(const ValidationScore& score) {
  return fmt::format("psnr-y {:.2f} (bicubic {:.2f})", score.psnr_y, score.bicubic_psnr_y);
}

std::string times_text(const StepTimes& times) {
  return fmt::format("step {:.1f} ms (data {:.1f} compute {:.1f} comm {:.1f})", times.total_ms(),
                     times.data_ms, times.compute_ms, times.comm_ms);
}

/// Scales are powers of two in the usual case, and people know those by their digits.
std::string scale_text(double scale) {
  const bool whole = scale == std::floor(scale) && scale < 1e15;
  return whole ? fmt::format("scale {:.0f}", scale) : fmt::format("scale {:g}", scale);
}

std::string bar(std::int64_t iter, std::int64_t total) {
  const auto done = total > 0 ? std::clamp<std::int64_t>(iter * kBarColumns / total, 0, kBarColumns)
                              : kBarColumns;
  return fmt::format("[{:.<{}}]", std::string(static_cast<std::size_t>(done), '#'), kBarColumns);
}

}  // namespace

std::string iteration_text(const IterationLine& line, std::int64_t total_iter,
                           const std::optional<ValidationScore>& score) {
  auto text = fmt::format("iter {}/{}  loss {:.5f}", line.iter, total_iter, line.loss);
  if (score) text += "  " + score_text(*score);
  return text + fmt::format("  lr {:.2e}  {}  skipped {}  {}  eta {}", line.lr,
                            scale_text(line.loss_scale), line.skipped, times_text(line.times),
                            remaining_text(line, total_iter));
}

std::string progress_text(const IterationLine& line, std::int64_t total_iter,
                          const std::optional<ValidationScore>& score, int width) {
  struct Field {
    std::string text;
    int importance;  ///< a field that does not fit is left out, the lower ones stay
  };
  std::vector<Field> fields{{bar(line.iter, total_iter), 3},
                            {fmt::format("{}/{}", line.iter, total_iter), 0},
                            {fmt::format("loss {:.5f}", line.loss), 1}};
  if (score) fields.push_back({score_text(*score), 4});
  fields.push_back({fmt::format("lr {:.2e}", line.lr), 6});
  fields.push_back({scale_text(line.loss_scale), 7});
  fields.push_back({fmt::format("skipped {}", line.skipped), 8});
  fields.push_back({times_text(line.times), 5});
  fields.push_back({"eta " + remaining_text(line, total_iter), 2});
  const auto join = [&](int up_to) {
    std::string text;
    for (const auto& field : fields)
      if (field.importance <= up_to) text += (text.empty() ? "" : "  ") + field.text;
    return text;
  };
  const auto columns = static_cast<std::size_t>(std::max(width, 1));
  for (int up_to = 8; up_to > 0; --up_to)
    if (auto text = join(up_to); text.size() <= columns) return text;
  return join(0).substr(0, columns);
}

}  // namespace vsr::runtime
