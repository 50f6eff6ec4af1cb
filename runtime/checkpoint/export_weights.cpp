// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/export_weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

#include "comm/error.hpp"
#include "comm/half_sum.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/hdf5_images.hpp"
#include "runtime/checkpoint/inspect.hpp"
#include "runtime/checkpoint/safetensors.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

/// A tensor to write and where it comes from: one of the two is set.
struct Source {
  TensorEntry entry;
  const ParameterRecord* parameter = nullptr;
  const BufferRecord* buffer = nullptr;
};

std::vector<Source> sources_of(const CheckpointHeader& header, const std::string& dtype) {
  std::vector<Source> sources;
  for (const ParameterRecord& parameter : header.snapshot.parameters)
    sources.push_back(
        {{parameter.name, parameter.shape, dtype, parameter.numel}, &parameter, nullptr});
  for (const BufferRecord& buffer : header.snapshot.buffers)
    sources.push_back({{buffer.name, buffer.shape, buffer.dtype, elements_of_shape(buffer.shape)},
                       nullptr,
                       &buffer});
  // The widest first, so that every value stands at a multiple of its size.
  std::stable_sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
    return element_bytes(a.entry.dtype) > element_bytes(b.entry.dtype);
  });
  for (std::size_t i = 0; i < sources.size(); ++i)
    for (const BufferRecord& buffer : header.snapshot.buffers)
      if (sources[i].parameter != nullptr && sources[i].entry.name == buffer.name)
        throw ConfigurationError("'" + buffer.name + "' names a parameter and a buffer");
  return sources;
}

std::vector<std::byte> bytes_of(const CheckpointHeader& header, const Source& source,
                                const std::string& array, std::int64_t& overflows) {
  if (source.buffer != nullptr) return source.buffer->bytes;
  const std::vector<float> values = read_parameter(header, array, *source.parameter);
  const auto element = static_cast<std::size_t>(element_bytes(source.entry.dtype));
  std::vector<std::byte> bytes(values.size() * element);
  if (element == sizeof(float)) {
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = comm::float_to_fp16(values[i]);
    if (std::isfinite(values[i]) && !std::isfinite(comm::fp16_to_float(half))) ++overflows;
    std::memcpy(bytes.data() + i * element, &half, element);
  }
  return bytes;
}

/// Places of the tensors in a file, and everything else in it.
struct Layout {
  std::vector<FilePart> frame;
  std::vector<std::int64_t> offsets_bytes;
  std::int64_t size_bytes = 0;
};

Layout safetensors_layout(const std::vector<TensorEntry>& entries,
                          const std::map<std::string, std::string>& facts) {
  const std::string text = safetensors_header(entries, facts);
  const auto bytes = std::as_bytes(std::span<const char>(text));
  Layout layout;
  layout.frame.push_back({0, {bytes.begin(), bytes.end()}});
  layout.size_bytes = static_cast<std::int64_t>(text.size());
  for (const TensorEntry& entry : entries) {
    layout.offsets_bytes.push_back(layout.size_bytes);
    layout.size_bytes += entry.numel * element_bytes(entry.dtype);
  }
  return layout;
}

Layout hdf5_layout(const std::vector<TensorEntry>& entries,
                   const std::map<std::string, std::string>& facts) {
  ShardImage image = weights_image(entries, facts);
  Layout layout{std::move(image.frame), {}, image.size_bytes};
  for (const TensorEntry& entry : entries)
    layout.offsets_bytes.push_back(entry.numel == 0 ? 0 : image.array_offsets_bytes.at(entry.name));
  return layout;
}

void check_options(const fs::path& target, const ExportOptions& options) {
  const std::string extension = target.extension().string();
  if (extension != ".safetensors" && extension != ".h5")
    throw UsageError("'" + target.string() + "': got the extension \"" + extension +
                     "\", expected .safetensors or .h5");
  if (options.dtype != "fp32" && options.dtype != "fp16")
    throw UsageError("--dtype: got \"" + options.dtype + "\", expected fp32 or fp16");
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(target, ignored)))
    throw ConfigurationError("'" + target.string() +
                             "' exists already; remove it or choose another name");
}

}  // namespace

ExportResult export_weights(const CheckpointHeader& header, const fs::path& target,
                            const ExportOptions& options) {
  check_options(target, options);
  const CheckpointHeader one_array = with_array_only(header, options.array);
  const std::vector<Source> sources = sources_of(one_array, options.dtype);
  std::vector<TensorEntry> entries;
  for (const Source& source : sources) entries.push_back(source.entry);
  // "format" is what PyTorch's own loaders ask for.
  const std::map<std::string, std::string> facts = {
      {"format", "pt"},
      {"iteration", std::to_string(header.snapshot.iteration)},
      {"weights", options.array}};
  const Layout layout = target.extension() == ".h5" ? hdf5_layout(entries, facts)
                                                    : safetensors_layout(entries, facts);
  ExportResult result{static_cast<std::int64_t>(entries.size()), layout.size_bytes, 0};
  write_file_atomically(target, [&](OutputFile& file) {
    file.allocate(layout.size_bytes);
    for (const FilePart& part : layout.frame) file.write_at(part.bytes, part.offset_bytes);
    for (std::size_t i = 0; i < sources.size(); ++i)
      file.write_at(bytes_of(one_array, sources[i], options.array, result.overflows),
                    layout.offsets_bytes[i]);
  });
  return result;
}

}  // namespace vsr::runtime
