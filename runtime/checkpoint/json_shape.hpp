// SPDX-License-Identifier: Apache-2.0
// A look at JSON text before it is made into values: what is nested too deep would overflow the
// stack of functions that call themselves, and names that occur twice have no one meaning. In a
// pass of its own, since the library's parser with a callback takes quadratic time on long lists.
// Private to this folder.
#pragma once

#include <string>

namespace vsr::runtime {

/// @throws CheckpointError "WHAT is nested too deep", or "WHAT names 'NAME' twice" for the names of
///         the outermost object; text that is no JSON passes, for the parser to say why
void check_json_shape(const std::string& text, int most_levels, const std::string& what);

}  // namespace vsr::runtime
