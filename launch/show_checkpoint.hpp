// SPDX-License-Identifier: Apache-2.0
// The facts of a checkpoint as a person reads them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace vsr::launch {

/// Lines for what runtime::describe() found.
std::string show_text(const nlohmann::json& facts);

}  // namespace vsr::launch
