// Activities put together.
#include "collective/activity.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace ringtune::testing_support {
namespace {

/// Is done after so many steps, and writes down each.
class Steps final : public Activity {
 public:
  Steps(std::string name, int steps, std::vector<std::string>& log) : name_(std::move(name)), left_(steps), log_(log) {}
  bool advance() override {
    if (blocked || done()) return false;
    --left_;
    log_.push_back(name_);
    return true;
  }
  [[nodiscard]] bool done() const override { return left_ == 0; }
  [[nodiscard]] std::string complaint() const override { return name_ + " waits"; }
  bool blocked = false;

 private:
  std::string name_;
  int left_;
  std::vector<std::string>& log_;
};

using Log = std::vector<std::string>;

TEST(Lanes, GoSideBySideAndAfterOneAnother) {
  Log log;
  auto first = std::make_unique<Steps>("a", 2, log);
  auto second = std::make_unique<Steps>("b", 1, log);
  const Activity* const a = first.get();
  const Activity* const b = second.get();
  std::vector<std::vector<Lanes::Part>> parts(2);
  parts[0].push_back({std::move(first)});
  parts[1].push_back({std::move(second), a});
  parts[0].push_back({std::make_unique<Steps>("c", 1, log)});
  parts[0].push_back({std::make_unique<Steps>("d", 1, log), b});
  Lanes lanes(std::move(parts));
  for (int turn = 0; turn < 3; ++turn) EXPECT_TRUE(lanes.advance());
  EXPECT_EQ(log, (Log{"a", "a", "b", "c"}));
  EXPECT_FALSE(lanes.done());
  EXPECT_TRUE(lanes.advance());
  EXPECT_TRUE(lanes.done());
  EXPECT_FALSE(lanes.advance());
  EXPECT_EQ(log.back(), "d");
}

TEST(Lanes, OneThatStandsStillHoldsOnlyItsOwnLane) {
  Log log;
  auto held = std::make_unique<Steps>("held", 1, log);
  Steps& still = *held;
  still.blocked = true;
  std::vector<std::vector<Lanes::Part>> parts(2);
  parts[0].push_back({std::move(held)});
  parts[0].push_back({std::make_unique<Steps>("behind", 1, log)});
  parts[1].push_back({std::make_unique<Steps>("beside", 1, log)});
  Lanes lanes(std::move(parts));
  EXPECT_TRUE(lanes.advance());
  EXPECT_FALSE(lanes.advance());
  EXPECT_EQ(log, Log{"beside"});
  EXPECT_EQ(lanes.complaint(), "held waits");
  still.blocked = false;
  while (lanes.advance()) {
  }
  EXPECT_TRUE(lanes.done());
  EXPECT_EQ(log, (Log{"beside", "held", "behind"}));
}

TEST(Lanes, WhatIsDoneAtTheBeginIsPassed) {
  Log log;
  std::vector<std::vector<Lanes::Part>> parts(2);
  auto none = std::make_unique<Steps>("none", 0, log);
  const Activity* const before = none.get();
  parts[1].push_back({std::make_unique<Steps>("nothing", 0, log), before});
  parts[0].push_back({std::move(none)});
  EXPECT_TRUE(Lanes(std::move(parts)).done());
  EXPECT_TRUE(Lanes({}).done());
}

}  // namespace
}  // namespace ringtune::testing_support
