#include "control/messages.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringtune {
namespace {

Request full_request() {
  Request request;
  request.name = "allreduce.a \"b\" \xc3\xa9";
  request.kind = CollectiveKind::kBroadcast;
  request.dtype = DType::kBfloat16;
  request.op = ReduceOp::kMax;
  request.root = 3;
  request.process_set = 2;
  request.prescale = 0.5;
  request.postscale = -2.0;
  request.group = "g";
  request.group_size = 4;
  request.shape = {2, 0, 1'000'000'000'000};
  request.members = {1, 7};
  request.subject = 5;
  return request;
}

Variant variant(const Request& request, const RankSet& ranks) {
  return {std::make_shared<const Request>(request), ranks};
}

WorkerNews full_announcement() {
  WorkerNews news;
  news.seen = 7;
  news.acknowledged = 6;
  news.waiting = true;
  news.leaving = RankSet::range(2, 5);
  news.departures = {{3, "rank 3 on host b", "ended its script with ValueError: x", true}, {2, "", "", false}};
  news.cached = {1, 2, 0xffffffff};
  news.partial = {{3, RankSet::of(std::vector<std::int32_t>{1, 2, 9})}, {4, {}}};
  news.requests = {variant(full_request(), RankSet::one(1)), variant({}, RankSet::range(1, 4))};
  news.steps = {{5, 1234, 1}, {6, -1, 3}};
  return news;
}

Decisions full_decisions() {
  return {
      9,
      {BatchDecision{3, {{1, ""}, {0, "x"}}, {4, 0, 2}, 7, RankSet::one(2), {variant({}, RankSet::one(2))}},
       FailureDecision{FailureKind::kShutDown, "t", "why", 3}, FailureDecision{FailureKind::kSomeAbsent, "t", "who", 0},
       FailureDecision{FailureKind::kSomeSparse, "t", "who", 0}, KnobsDecision{2, {1, 2, 3, 4, 5, 2}},
       EvictDecision{{8, 9}}, LeftDecision{{1, "rank 1 on host b", "went", true}}, AbortDecision{"end"},
       StallDecision{"t", 1}, SetDecision{"s", true, 4, RankSet::range(0, 3)}, JoinDecision{2}}};
}

class ControlMessages : public testing::TestWithParam<ControlMessage> {};

TEST_P(ControlMessages, SurviveTheWire) { EXPECT_EQ(decode(encode(GetParam())), GetParam()); }

TEST_P(ControlMessages, EveryTruncationIsAProtocolError) {
  const Bytes bytes = encode(GetParam());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW((void)decode(ByteView(bytes).first(length)), Protocol) << length;
  }
}

TEST_P(ControlMessages, TrailingBytesAreAProtocolError) {
  Bytes bytes = encode(GetParam());
  bytes.push_back(std::byte{0});
  EXPECT_THROW((void)decode(bytes), Protocol);
}

TEST_P(ControlMessages, NoFlippedByteDoesMoreThanFail) {
  const Bytes bytes = encode(GetParam());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes broken = bytes;
    broken[i] ^= std::byte{0xff};
    try {
      (void)decode(broken);
    } catch (const Protocol&) {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ControlMessages,
                         testing::Values(ControlMessage{WorkerNews{}}, ControlMessage{full_announcement()},
                                         ControlMessage{Decisions{}}, ControlMessage{full_decisions()},
                                         ControlMessage{ClockPing{5, 6, 7}},
                                         ControlMessage{WaitQuery{3, 7, "a \"b\"", 2, false, {}}},
                                         ControlMessage{WaitQuery{3, 8, "", 0, true, RankSet::range(1, 4)}}));

TEST(ControlMessages, UnknownTypeIsNamed) {
  const Bytes bytes{std::byte{77}};
  try {
    (void)decode(bytes);
    FAIL();
  } catch (const Protocol& error) {
    EXPECT_STREQ(error.what(), "unknown control message 77");
  }
}

}  // namespace
}  // namespace ringtune
