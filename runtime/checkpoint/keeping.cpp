// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/keeping.hpp"

#include <algorithm>
#include <limits>

#include "comm/error.hpp"
#include "runtime/checkpoint/checkpoint_writer.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/inspect.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

struct Judged {
  std::int64_t iteration = 0;
  double psnr_y = -std::numeric_limits<double>::infinity();
  std::string damage;  ///< empty for a valid one
};

/// With every byte of its values where it is one that all may come to rest on.
Judged judge(const fs::path& folder, bool with_values) {
  Judged judged;
  try {
    const CheckpointHeader header = choose_checkpoint(folder).header;
    if (with_values) verify_checkpoint(folder);
    judged.iteration = header.snapshot.iteration;
    const nlohmann::json& state = header.snapshot.state;
    if (state.is_object() && state.contains("validation"))
      judged.psnr_y = state.at("validation").value("psnr_y", judged.psnr_y);
  } catch (const Error& error) {
    judged.damage = error.what();
  } catch (const nlohmann::json::exception&) {
    // A validation of another form is none; the checkpoint is no worse for it.
  }
  return judged;
}

}  // namespace

std::vector<KeptOrNot> decide_keeping(const fs::path& run_folder, const KeepingRules& rules) {
  VSR_CHECK(rules.keep_last >= 1 && rules.keep_every >= 0,
            "keep at least one checkpoint, got " + std::to_string(rules.keep_last) + " and every " +
                std::to_string(rules.keep_every));
  const fs::path named_best = pointed_at(run_folder, "best");
  std::vector<KeptOrNot> all;
  std::vector<Judged> judged;
  std::size_t best = 0;
  int valid = 0;
  for (const fs::path& folder : list_checkpoints(run_folder)) {
    all.push_back({folder, false, "not needed"});
    judged.push_back(judge(folder, valid < rules.keep_last));
    if (!judged.back().damage.empty()) continue;
    ++valid;
    if (folder == named_best) judged.back().psnr_y = std::numeric_limits<double>::infinity();
    if (judged.back().psnr_y > judged[best].psnr_y) best = judged.size() - 1;
  }
  int newest = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto keep = [&](const std::string& reason) { all[i] = {all[i].folder, true, reason}; };
    if (!judged[i].damage.empty())
      all[i].reason = "damaged: " + judged[i].damage;
    else if (newest++ < rules.keep_last)
      keep("newest");
    else if (rules.keep_every > 0 && judged[i].iteration % rules.keep_every == 0)
      keep("every " + std::to_string(rules.keep_every));
    else if (rules.keep_best && i == best)
      keep("best");
  }
  // Where none is valid, a person may still want to look at what is left.
  if (valid == 0)
    for (KeptOrNot& entry : all) entry.is_kept = true;
  return all;
}

void delete_unkept(const fs::path& run_folder, const std::vector<KeptOrNot>& entries) {
  const auto first = std::ranges::find_if(entries, &KeptOrNot::is_kept);
  if (first != entries.begin() && first != entries.end()) write_pointer(first->folder, "LATEST");
  const fs::path best = pointed_at(run_folder, "best");
  for (const KeptOrNot& entry : entries) {
    if (entry.is_kept) continue;
    if (entry.folder == best) remove_file(run_folder / "ckpt" / "best");
    delete_checkpoint(entry.folder);
  }
}

}  // namespace vsr::runtime
