#include "runtime/wait_queries.h"

#include <gtest/gtest.h>

#include <thread>

namespace ringtune {
namespace {

using Missing = std::vector<int>;

Request request_named(const std::string& name) {
  Request request;
  request.name = name;
  request.process_set = 3;
  return request;
}

TEST(WaitQueries, AnAnswerGoesToItsQuestion) {
  WaitQueries queries(1);
  const std::uint32_t first = queries.ask(request_named("a"), Deadline::at(0));
  const std::uint32_t second = queries.ask(request_named("b"), Deadline::at(0));
  const std::vector<WaitQuery> asked = queries.take();
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[0].number, first);
  EXPECT_EQ(asked[0].name, "a");
  EXPECT_EQ(asked[0].process_set, 3U);
  EXPECT_EQ(asked[0].rank, 1);
  EXPECT_EQ(asked[1].number, second);
  EXPECT_TRUE(queries.take().empty()) << "each is given once";
  queries.answered(second, {2});
  queries.answered(first, {0, 5});
  EXPECT_EQ(queries.answer_to(first, Deadline::never()), (Missing{0, 5}));
  EXPECT_EQ(queries.answer_to(second, Deadline::never()), Missing{2});
}

TEST(WaitQueries, AtTheDeadlineWhatThisRankHasSeenStands) {
  WaitQueries queries(0);
  const std::uint32_t number = queries.ask(request_named("a"), Deadline::at(0));
  queries.note_seen(number, {4});
  EXPECT_EQ(queries.answer_to(number, Deadline::at(0)), Missing{4});
  queries.answered(number, {1});  // too late: nobody waits for it
  const std::uint32_t unseen = queries.ask(request_named("b"), Deadline::at(0));
  EXPECT_EQ(queries.answer_to(unseen, Deadline::at(0)), Missing{});
}

TEST(WaitQueries, WhatIsKnownIsNotReplacedByWhatWasSeen) {
  WaitQueries queries(0);
  const std::uint32_t number = queries.ask(request_named("a"), Deadline::at(0));
  queries.answered(number, {1});
  queries.note_seen(number, {4});
  EXPECT_EQ(queries.answer_to(number, Deadline::never()), Missing{1});
}

TEST(WaitQueries, ACallerThatSleepsIsWokenByTheAnswer) {
  WaitQueries queries(0);
  const std::uint32_t number = queries.ask(request_named("a"), Deadline::at(0));
  std::thread driver([&] { queries.answered(number, {7}); });
  EXPECT_EQ(queries.answer_to(number, Deadline::after(60'000'000'000)), Missing{7});
  driver.join();
}

}  // namespace
}  // namespace ringtune
