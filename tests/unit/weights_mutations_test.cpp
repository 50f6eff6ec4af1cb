// SPDX-License-Identifier: Apache-2.0
// Thousands of damaged files of weights, from a seed: each is read or refused as damaged, and none
// makes the reader crash, wait or take much memory.
#include <gtest/gtest.h>

#include <random>

#include "comm/error.hpp"
#include "runtime/checkpoint/pickle_reader.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/snapshot.hpp"
#include "tests/support/mutations.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/weights_samples.hpp"

namespace vsr::runtime {
namespace {

using test::mutated;
using test::pickled;
using test::pickled_dict;
using test::sample_archive;
using test::sample_safetensors;
using test::sample_tensors;

constexpr int kFiles = 4000;

/// A new file in place of the one before; its path.
std::string fresh(const test::TemporaryFolder& folder, const std::string& name,
                  const std::string& bytes) {
  test::write_fresh(folder / name, bytes);
  return folder / name;
}

/// Whether all of the file could be read; anything but a CheckpointError fails the test.
bool is_readable(const std::string& path) {
  try {
    const auto file = open_weights(path, "");
    for (std::size_t i = 0; i < file->tensors().size(); ++i) {
      const auto bytes = file->read(i);
      if (bytes.size() > 4096) ADD_FAILURE() << "a tensor of " << bytes.size() << " bytes";
    }
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

void read_mutations_of(const std::string& bytes, const std::string& name, std::uint32_t seed) {
  const test::TemporaryFolder folder;
  ASSERT_TRUE(is_readable(fresh(folder, name, bytes)));
  std::mt19937 random(seed);
  int refused = 0;
  for (int i = 0; i < kFiles; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", file " + std::to_string(i));
    if (!is_readable(fresh(folder, name, mutated(bytes, random)))) ++refused;
  }
  EXPECT_GT(refused, kFiles / 2);
}

TEST(Mutations, OfSafetensors) {
  read_mutations_of(sample_safetensors(), "w.safetensors", 1);
}

TEST(Mutations, OfTorchArchives) {
  read_mutations_of(sample_archive(), "w.pth", 2);
}

TEST(Mutations, OfPickles) {
  // Without the CRC-32 of the archive in the way.
  const std::string pickle =
      test::whole_pickle("}(" + pickled("params") + pickled_dict(sample_tensors()) + "u");
  std::mt19937 random(3);
  int refused = 0;
  for (int i = 0; i < 10 * kFiles; ++i) {
    const std::string bytes = mutated(pickle, random);
    try {
      for (const PickledTensor& tensor :
           tensors_in_pickle(std::as_bytes(std::span<const char>(bytes)), "")) {
        EXPECT_EQ(tensor.shape.size(), tensor.strides.size()) << i;
        EXPECT_LE(elements_of_shape(tensor.shape), tensor.storage_elements) << i;
      }
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 5 * kFiles);
}

TEST(Mutations, EveryCutIsRefused) {
  const test::TemporaryFolder folder;
  const std::string tensors = sample_safetensors();
  for (std::size_t size = 0; size < tensors.size(); ++size)
    EXPECT_FALSE(is_readable(fresh(folder, "w.safetensors", tensors.substr(0, size)))) << size;
  const std::string archive = sample_archive();
  for (std::size_t size = 0; size < archive.size(); ++size)
    EXPECT_FALSE(is_readable(fresh(folder, "w.pth", archive.substr(0, size)))) << size;
}

}  // namespace
}  // namespace vsr::runtime
