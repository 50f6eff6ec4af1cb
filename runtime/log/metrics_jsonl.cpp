// SPDX-License-Identifier: Apache-2.0
#include "runtime/log/metrics_jsonl.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::filesystem::path& file, const char* what, int error) {
  throw IoError(fmt::format("cannot {} {}: {}", what, file.string(), std::strerror(error)));
}

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

void put(Json& json, const char* key, const std::optional<double>& value) {
  if (value) json[key] = number(*value);
}

template <class T>
void put(Json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

const char* name_of(RecordType type) {
  switch (type) {
    case RecordType::start:
      return "start";
    case RecordType::iter:
      return "iter";
    case RecordType::val:
      return "val";
    case RecordType::ckpt:
      return "ckpt";
    case RecordType::end:
      return "end";
  }
  return "?";
}

/// Bytes up to and including the last line break, searched from the end.
off_t whole_lines_bytes(const std::filesystem::path& file, int descriptor, off_t size) {
  std::array<char, 4096> block;
  for (off_t end = size; end > 0;) {
    const auto start = std::max<off_t>(0, end - static_cast<off_t>(block.size()));
    const auto length = static_cast<std::size_t>(end - start);
    const auto got = ::pread(descriptor, block.data(), length, start);
    if (got != static_cast<ssize_t>(length)) fail(file, "read", got < 0 ? errno : EIO);
    for (auto i = length; i > 0; --i)
      if (block[i - 1] == '\n') return start + static_cast<off_t>(i);
    end = start;
  }
  return 0;
}

off_t size_of(const std::filesystem::path& file, int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(file, "look at", errno);
  return status.st_size;
}

}  // namespace

std::string to_json(const MetricsRecord& record, double time_s) {
  Json json;
  json["type"] = name_of(record.type);
  json["time_s"] = number(time_s);
  put(json, "iter", record.iter);
  put(json, "applied", record.applied);
  put(json, "loss", record.loss);
  put(json, "lr", record.lr);
  put(json, "loss_scale", record.loss_scale);
  put(json, "skipped", record.skipped);
  put(json, "grad_norm", record.grad_norm);
  put(json, "psnr_y", record.psnr_y);
  put(json, "bicubic_psnr_y", record.bicubic_psnr_y);
  put(json, "ssim_y", record.ssim_y);
  put(json, "data_ms", record.data_ms);
  put(json, "compute_ms", record.compute_ms);
  put(json, "comm_ms", record.comm_ms);
  put(json, "exposed_ms", record.exposed_ms);
  put(json, "wire_bytes", record.wire_bytes);
  put(json, "masters", record.masters);
  for (const auto& [key, value] : record.extra) {
    if (const auto* real = std::get_if<double>(&value))
      json[key] = number(*real);
    else
      std::visit([&json, &name = key](const auto& v) { json[name] = v; }, value);
  }
  // Paths may hold any bytes; those that are no UTF-8 become the replacement character.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

MetricsJsonl::MetricsJsonl(const std::filesystem::path& file,
                           std::function<std::chrono::system_clock::time_point()> clock)
    : file_(file), clock_(std::move(clock)) {
  if (!clock_) clock_ = [] { return std::chrono::system_clock::now(); };
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(file, "open", errno);
  try {
    const auto size = size_of(file, descriptor_);
    const auto whole = whole_lines_bytes(file, descriptor_, size);
    if (whole != size && ::ftruncate(descriptor_, whole) != 0) fail(file, "repair", errno);
    repaired_bytes_ = size - whole;
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

MetricsJsonl::~MetricsJsonl() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

MetricsJsonl::MetricsJsonl(MetricsJsonl&& other) noexcept
    : file_(std::move(other.file_)),
      clock_(std::move(other.clock_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      repaired_bytes_(other.repaired_bytes_) {}

MetricsJsonl& MetricsJsonl::operator=(MetricsJsonl&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(clock_, other.clock_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(repaired_bytes_, other.repaired_bytes_);
  return *this;
}

void MetricsJsonl::append(const MetricsRecord& record) {
  const std::chrono::duration<double> since_epoch = clock_().time_since_epoch();
  const auto line = to_json(record, since_epoch.count()) + '\n';
  const auto before = size_of(file_, descriptor_);
  ssize_t written = 0;
  do {
    written = ::write(descriptor_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return;
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0 && ::ftruncate(descriptor_, before) != 0) fail(file_, "repair", errno);
  fail(file_, "append to", error);
}

}  // namespace vsr::runtime
