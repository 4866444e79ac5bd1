// What a stall report says, and what it takes for proof that nobody can go on.
#include "runtime/stall_report.h"

#include <gtest/gtest.h>

namespace ringtune {
namespace {

constexpr std::int64_t kTenthOfSecond = 100'000'000;
const std::vector<std::string> kHosts{"a", "a", "b", "b"};

StalledTensor stalled(const std::string& name, std::vector<int> missing, std::int64_t tenths = 601) {
  return {"'" + name + "' (allreduce)", name, tenths * kTenthOfSecond, std::move(missing)};
}

RankState blocked_in(const std::string& name) {
  RankState state;
  state.waiting = true;
  state.open = 1;
  state.open_digest = std::hash<std::string>()(name);
  state.oldest = {{"'" + name + "' (allreduce)", 32 * kTenthOfSecond}};
  return state;
}

TEST(StallReport, GroupsTensorsAndSaysWhereTheMissingRanksStand) {
  Stall stall;
  for (int i = 0; i < 7; ++i) stall.tensors.push_back(stalled("grad." + std::to_string(i), {2, 3}, 600 - i));
  stall.tensors.push_back(stalled("loss", {3}));
  RankState busy;
  busy.has_stack = true;
  busy.stack =
      "Stack (most recent call first):\n  File \"/w/data.py\", line 7 in load\n  File \"/w/a \"b\".py\", line 12 in "
      "<module>\n";
  EXPECT_EQ(report_of(stall, {RankState(), RankState(), busy, std::nullopt}, kHosts),
            "stalled: 7 tensors, 'grad.0' (allreduce), 'grad.1' (allreduce), 'grad.2' (allreduce) and 4 more, were "
            "submitted up to 60.0 s ago and still wait for ranks 2, 3 on host b\n"
            "tensor 'loss' (allreduce) was submitted 60.1 s ago and still waits for rank 3 on host b\n"
            "rank 2 on host b: it stands in /w/data.py:7 in load, called by /w/a \"b\".py:12 in <module>; it has "
            "submitted nothing that is not done\n"
            "rank 3 on host b: it gives no answer: its process is stopped, or its host or the network hangs");
}

TEST(StallReport, ManyTensorsAndRanksTakeFewLines) {
  Stall stall;
  std::vector<std::string> hosts(200, "h");
  std::vector<int> all;
  for (int rank = 1; rank < 200; ++rank) {
    all.push_back(rank);
    stall.tensors.push_back(stalled("t" + std::to_string(rank), {rank}));
  }
  stall.tensors.push_back(stalled("all", all));
  const std::string text = report_of(stall, RankStates(200), hosts);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 16) << text;
  EXPECT_NE(text.find("more tensors for other ranks"), std::string::npos);
  EXPECT_NE(text.find("and 191 more ranks"), std::string::npos) << text;
}

TEST(StallReport, SaysThatNobodyCanGoOn) {
  Stall stall;
  stall.entangled = true;
  stall.tensors = {stalled("a", {1}, 12), stalled("b", {0}, 15)};
  RankState other = blocked_in("b");
  other.has_stack = true;  // that takes no signal
  EXPECT_EQ(report_of(stall, {blocked_in("a"), other}, kHosts),
            "stalled: the ranks wait for different tensors, so none can go on. All ranks must submit the same "
            "collectives:\n"
            "tensor 'b' (allreduce) was submitted 1.5 s ago and still waits for rank 0 on host a\n"
            "tensor 'a' (allreduce) was submitted 1.2 s ago and still waits for rank 1 on host a\n"
            "rank 0 on host a: where it stands in Python is not known; it waits in 'a' (allreduce) since 3.2 s\n"
            "rank 1 on host a: its main thread takes no signal: it is blocked in the kernel; it waits in 'b' "
            "(allreduce) since 3.2 s");
}

TEST(StallReport, AProcessThatANeighbourSeesStoppedIsStopped) {
  Stall stall;
  stall.tensors = {stalled("a", {1})};
  RankState neighbour;
  neighbour.stopped = {1};
  EXPECT_NE(report_of(stall, {neighbour, std::nullopt}, kHosts)
                .find("rank 1 on host a: its process is stopped (SIGSTOP, a debugger, a suspended job)"),
            std::string::npos);
}

TEST(StallReport, AThreadWithoutPythonIsToldFromOneThatTakesNoSignal) {
  Stall stall;
  stall.tensors = {stalled("a", {0})};
  RankState ending;
  ending.has_stack = true;
  ending.stack = "no Python\n";
  EXPECT_NE(report_of(stall, {ending}, kHosts).find("rank 0 on host a: its main thread runs no Python;"),
            std::string::npos);
}

TEST(StallReport, WithoutAnswersItAsksTheReader) {
  Stall stall;
  stall.tensors = {stalled("a", {1, 2})};
  EXPECT_EQ(report_of(stall, {}, {}),
            "stalled: tensor 'a' (allreduce) was submitted 60.1 s ago and still waits for ranks 1, 2. Is it busy, "
            "blocked or gone, or does it run other collectives?");
}

TEST(StallReport, InARoundThoseAreMissingThatHaveNotComeToIt) {
  Stall stall;
  stall.round = 7;
  stall.members = {0, 1, 3};
  stall.tensors = {stalled("a", {1, 3})};  // as one rank sees it
  RankStates states(4, RankState());
  states[0]->round = 7;
  states[1]->round = 8;  // done with it
  states[3]->round = 6;
  name_missing(stall, states);
  EXPECT_EQ(missing_ranks(stall), std::vector{3});
  states[1].reset();
  name_missing(stall, states);
  EXPECT_EQ(missing_ranks(stall), (std::vector{1, 3}));
}

TEST(StallReport, NobodyCanGoOnOnlyIfAllAreBlockedAndNothingMoves) {
  const RankStates both{blocked_in("a"), blocked_in("b")};
  EXPECT_TRUE(all_blocked(both));
  EXPECT_TRUE(nothing_moved(both, both));
  EXPECT_FALSE(all_blocked({}));
  EXPECT_FALSE(all_blocked({blocked_in("a"), std::nullopt}));
  RankStates computes = both;
  computes[1]->waiting = false;
  EXPECT_FALSE(all_blocked(computes));
  RankStates next = both;
  next[1] = blocked_in("c");
  EXPECT_FALSE(nothing_moved(both, next));
  EXPECT_FALSE(nothing_moved(both, {blocked_in("a"), std::nullopt}));
}

TEST(StallReport, WhoLooksForSignalsWhileItWaitsIsStillBlockedInTheSameOperation) {
  RankState awake = blocked_in("a");
  awake.waiting = false;
  EXPECT_TRUE(later_of(blocked_in("a"), awake).waiting);
  EXPECT_FALSE(later_of(blocked_in("b"), awake).waiting);
  EXPECT_FALSE(later_of(std::nullopt, awake).waiting);
  EXPECT_TRUE(later_of(std::nullopt, blocked_in("a")).waiting);
}

TEST(StallReport, SurvivesTheWire) {
  Stall stall;
  stall.entangled = stall.quiet = true;
  stall.round = 1ULL << 40;
  stall.members = {0, 2, 3};
  stall.tensors = {stalled("a", {1, 5}), stalled("b", {})};
  const Bytes bytes = encode(stall);
  ByteReader in(bytes);
  EXPECT_EQ(decode_stall(in), stall);
  RankState state = blocked_in("x");
  state.stack = "frames";
  state.stopped = {4};
  EXPECT_EQ(decode_rank_state(encode(state)), state);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ByteReader cut(ByteView(bytes).first(length));
    EXPECT_ANY_THROW((void)decode_stall(cut)) << length;
  }
}

}  // namespace
}  // namespace ringtune
