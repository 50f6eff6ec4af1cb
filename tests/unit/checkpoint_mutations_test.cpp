// SPDX-License-Identifier: Apache-2.0
// Thousands of damaged manifests, from a seed: each is read or refused as damaged.
#include <gtest/gtest.h>

#include "comm/error.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "tests/support/checkpoint_writing.hpp"
#include "tests/support/mutations.hpp"

namespace vsr::runtime {
namespace {

using test::TemporaryFolder;

TEST(Mutations, OfManifests) {
  const TemporaryFolder folder;
  const auto step = test::write_sample(folder.path(), 5, 3);
  const std::string text = test::read_bytes(step / "MANIFEST.json");
  std::mt19937 random(4);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    SCOPED_TRACE(i);
    try {
      manifest_from_text(test::mutated(text, random));
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace vsr::runtime
