// SPDX-License-Identifier: Apache-2.0
#include "comm/unique_handle.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace vsr::comm {
namespace {

std::vector<int> closed;

struct NumberTraits {
  using Type = int;
  static int null() noexcept { return -1; }
  static void close(int handle) noexcept { closed.push_back(handle); }
};
using Number = UniqueHandle<NumberTraits>;

class UniqueHandleTest : public testing::Test {
 protected:
  void SetUp() override { closed.clear(); }
};

TEST_F(UniqueHandleTest, ClosesOnceAtTheEnd) {
  {
    const Number number(7);
    EXPECT_TRUE(number);
    EXPECT_EQ(number.get(), 7);
  }
  EXPECT_EQ(closed, std::vector<int>({7}));
}

TEST_F(UniqueHandleTest, NullIsNeverClosed) {
  {
    const Number none;
    const Number also_none(-1);
    EXPECT_FALSE(none);
    EXPECT_FALSE(also_none);
  }
  EXPECT_TRUE(closed.empty());
}

TEST_F(UniqueHandleTest, ZeroIsAHandleWhereNullIsAnother) {
  { const Number zero(0); }
  EXPECT_EQ(closed, std::vector<int>({0}));
}

TEST_F(UniqueHandleTest, MoveLeavesNothingBehind) {
  {
    Number first(1);
    const Number second(std::move(first));
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is what is tested
    EXPECT_EQ(second.get(), 1);
  }
  EXPECT_EQ(closed, std::vector<int>({1}));
}

TEST_F(UniqueHandleTest, MoveAssignmentClosesBothInTheEnd) {
  {
    Number first(1);
    Number second(2);
    second = std::move(first);
    EXPECT_EQ(second.get(), 1);
  }
  EXPECT_EQ(closed.size(), 2u);
}

TEST_F(UniqueHandleTest, AssigningAFreshOneClosesTheOld) {
  Number number(3);
  number = Number(4);
  EXPECT_EQ(closed, std::vector<int>({3}));
  number = Number();
  EXPECT_EQ(closed, std::vector<int>({3, 4}));
}

TEST_F(UniqueHandleTest, SelfMoveKeepsTheHandle) {
  {
    Number number(5);
    Number& same = number;
    number = std::move(same);
    EXPECT_EQ(number.get(), 5);
    EXPECT_TRUE(closed.empty());
  }
  EXPECT_EQ(closed, std::vector<int>({5}));
}

TEST_F(UniqueHandleTest, ReleaseGivesUpOwnership) {
  {
    Number number(6);
    EXPECT_EQ(number.release(), 6);
    EXPECT_FALSE(number);
    EXPECT_EQ(number.release(), -1);
  }
  EXPECT_TRUE(closed.empty());
}

}  // namespace
}  // namespace vsr::comm
