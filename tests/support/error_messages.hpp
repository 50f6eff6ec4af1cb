// SPDX-License-Identifier: Apache-2.0
// Looks at the messages of errors: that a failure is refused is half of a test, that a person can
// act on what it says is the other half.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace vsr::test {

/// What `action` throws as `Expected`; a failed test and an empty text when it does not.
template <typename Expected, typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw another type: " << error.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

inline void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

}  // namespace vsr::test
