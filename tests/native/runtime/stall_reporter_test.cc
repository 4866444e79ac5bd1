// Reporters of a job's ranks, which ask one another over real liveness connections.
#include "runtime/stall_reporter.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "transport/fabrics.h"

namespace ringtune {
namespace {

using testing_support::join_processes;
using testing_support::Joined;

constexpr std::int64_t kMinuteNs = 60'000'000'000;

/// What a rank's engine would say.
struct Progress {
  std::atomic<std::uint64_t> round{0};
  std::atomic<bool> waiting{false};
  std::atomic<std::uint64_t> tensors{0};  // digest of what it waits in; 0: of nothing
};

class ReportingJob {
 public:
  explicit ReportingJob(int size)
      : progress(static_cast<std::size_t>(size)),
        joined_(join_processes(size, [](FabricOptions& options) { options.transport = TransportChoice::kTcp; })) {
    set_log_level(LogLevel::kWarning);  // which is the process's: other tests are quieter
    for (std::size_t rank = 0; rank < progress.size(); ++rank) {
      reporters_.push_back(
          std::make_unique<StallReporter>(joined_[rank], tracer_, kMinuteNs, [this, rank] { return state(rank); }));
      StallReporter* const reporter = reporters_.back().get();
      joined_[rank].on_inquiry([reporter](int from, std::uint32_t number, const Bytes& question) {
        reporter->asked(from, number, question);
      });
      joined_[rank].start_monitor([](int, const std::string&) {});
    }
  }
  ~ReportingJob() {
    for (const auto& reporter : reporters_) reporter->stop();
  }
  ReportingJob(const ReportingJob&) = delete;
  ReportingJob& operator=(const ReportingJob&) = delete;

  [[nodiscard]] StallReporter& operator[](std::size_t rank) { return *reporters_[rank]; }
  /// All ranks have done what they were asked to before.
  void settle(const Stall& stall) {
    for (const auto& reporter : reporters_) (void)reporter->who_is_missing(stall);
  }

  std::vector<Progress> progress;

 private:
  RankState state(std::size_t rank) const {
    RankState found;
    found.round = progress[rank].round;
    found.waiting = progress[rank].waiting;
    found.open_digest = progress[rank].tensors;
    found.open = found.open_digest == 0 ? 0 : 1;
    return found;
  }

  Tracer tracer_;
  std::vector<std::unique_ptr<StallReporter>> reporters_;  // outlive the fabrics, whose monitors call them
  Joined joined_;
};

Stall stall_in_round(std::uint64_t round, std::vector<int> seen_missing) {
  Stall stall;
  stall.round = round;
  stall.members = {0, 1, 2};
  stall.tensors = {{"'a' (allreduce)", "a", 1'000'000'000, std::move(seen_missing)}};
  return stall;
}

std::size_t count_of(const std::string& words, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

TEST(StallReporter, EveryRankLearnsWhoIsMissingWhateverItHasSeenItself) {
  ReportingJob job(3);
  for (const int late : {0, 1, 2}) {
    const auto round = static_cast<std::uint64_t>(10 + late);
    for (int rank = 0; rank < 3; ++rank) job.progress[static_cast<std::size_t>(rank)].round = round - (rank == late);
    std::array<std::vector<int>, 3> found;
    std::vector<std::thread> ranks;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] { found[rank] = job[rank].who_is_missing(stall_in_round(round, {1, 2})); });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const std::vector<int>& missing : found) EXPECT_EQ(missing, std::vector{late});
  }
}

TEST(StallReporter, ARoundIsReportedOnceForTheWholeJob) {
  ReportingJob job(3);
  job.progress[0].round = job.progress[1].round = 5;
  const std::int64_t begun_ns = now_ns();
  EXPECT_FALSE(job[0].newest().has_value());
  testing::internal::CaptureStderr();
  for (const std::size_t rank : {1, 0, 1}) job[rank].report(stall_in_round(5, {2}));
  job.settle(stall_in_round(5, {2}));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of("stalled: ", said), 1U) << said;
  EXPECT_NE(said.find("waits for rank 2 on host test-host\n    rank 2 on host test-host: where it stands in Python is "
                      "not known; it has submitted nothing that is not done\n"),
            std::string::npos)
      << said;
  const std::optional<ReportedStall> told = job[0].newest();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->stall.tensors, stall_in_round(5, {2}).tensors);
  EXPECT_GE(told->at_ns, begun_ns);
  EXPECT_LE(told->at_ns, now_ns());
  for (const std::size_t rank : {1, 2}) EXPECT_FALSE(job[rank].newest().has_value());
}

TEST(StallReporter, WithoutRankZeroOneRankReportsUnlessTheOthersWaitOn) {
  ReportingJob job(4);
  job[0].stop();
  for (const std::size_t reports : {1, 3}) {
    testing::internal::CaptureStderr();
    for (const std::size_t rank : {1, 2, 3}) {
      Stall stall = stall_in_round(5, {0});
      stall.members = {0, 1, 2, 3};
      job[rank].report(std::move(stall));
    }
    std::vector<std::thread> asking;
    for (const std::size_t rank : {1, 2, 3}) {
      asking.emplace_back([&job, rank] { (void)job[rank].who_is_missing(stall_in_round(5, {0})); });
    }
    for (std::thread& one : asking) one.join();
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(count_of("stalled: ", said), reports) << said;
  }
}

TEST(StallReporter, RanksThatWaitForOneAnotherAreReportedOnceIfAllAreBlocked) {
  ReportingJob job(3);
  Stall knot;
  knot.entangled = true;
  knot.tensors = {{"'a' (allreduce)", "a", 1'000'000'000, {1, 2}}, {"'b' (allreduce)", "b", 1'000'000'000, {0}}};
  for (Progress& progress : job.progress) {
    progress.tensors = 7;
    progress.waiting = true;
  }
  job.progress[2].waiting = false;  // computes
  testing::internal::CaptureStderr();
  job[0].report(knot);
  job.settle(stall_in_round(1, {}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  job.progress[2].waiting = true;
  testing::internal::CaptureStderr();
  job[0].report(knot);
  job[0].report(knot);
  job.settle(stall_in_round(1, {}));
  EXPECT_EQ(count_of("so none can go on", testing::internal::GetCapturedStderr()), 1U);
}

}  // namespace
}  // namespace ringtune
