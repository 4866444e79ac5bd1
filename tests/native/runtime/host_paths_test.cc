// The paths of tensors in host memory by themselves: batches that are run, and posted, agreed on and finished or
// declined.
#include "runtime/host_paths.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "../collective/ranks.h"
#include "base/clock.h"

namespace ringtune {
namespace {

using testing_support::kIdle;
using testing_support::on_threads;

constexpr int kRanks = 3;

/// A rank with a batch of two tensors.
class PathRank {
 public:
  PathRank(Fabric& fabric, Algorithm algorithm)
      : fabric_(fabric),
        communicator_(fabric, all_ranks(fabric.size()), {.idle_timeout_ns = kIdle}),
        log_(counters_, tracer_),
        paths_(log_) {
    Knobs knobs;
    knobs.algorithm = static_cast<std::uint32_t>(algorithm);
    paths_.set_knobs(knobs);
  }

  void make_batch(DataPath data_path = DataPath::kStaged) {
    for (std::size_t i = 0; i < 2; ++i) {
      Request request;
      request.name = "t" + std::to_string(i);
      request.dtype = DType::kInt32;
      request.shape = {static_cast<std::int64_t>(kCounts[i])};
      request.data_path = data_path;
      tensors_[i].assign(kCounts[i], own_value(i));
      operations_[i].prepared = std::make_shared<const Prepared>(std::move(request));
      operations_[i].input = operations_[i].output = reinterpret_cast<std::byte*>(tensors_[i].data());
    }
  }
  [[nodiscard]] std::span<const OperationPtr> batch() const { return batch_; }
  [[nodiscard]] std::vector<SharedRequest> requests() const {
    std::vector<SharedRequest> requests;
    for (const OperationPtr one : batch_) requests.emplace_back(one->prepared, &one->prepared->request);
    return requests;
  }
  [[nodiscard]] BatchContext context(bool schedule) {
    return {.communicator = communicator_, .batch_id = ++batches_, .rows = {}, .schedule = schedule};
  }
  [[nodiscard]] HostPath& path() { return paths_.of(communicator_); }
  [[nodiscard]] HostPaths& paths() { return paths_; }
  [[nodiscard]] Communicator& communicator() { return communicator_; }

  /// Waits for the others' votes as the driver does.
  bool agree() {
    while (true) {
      const std::uint32_t ticket = fabric_.waker().prepare();
      if (const auto agreed = path().agreed(Deadline::after(1'000'000))) return *agreed;
      fabric_.waker().wait(ticket, Deadline::after(100'000'000));
    }
  }
  void drain() {
    while (!paths_.links().drained()) {
      const std::uint32_t ticket = fabric_.waker().prepare();
      if (!paths_.links().advance_declined()) fabric_.waker().wait(ticket, Deadline::after(100'000'000));
    }
  }
  void expect_own() const {
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(tensors_[i], std::vector<std::int32_t>(kCounts[i], own_value(i))) << "rank " << communicator_.rank();
    }
  }
  void expect_sums() const {
    for (std::size_t i = 0; i < 2; ++i) {
      const auto sum = static_cast<std::int32_t>(i + 1) * 6;
      EXPECT_EQ(tensors_[i], std::vector<std::int32_t>(kCounts[i], sum)) << "rank " << communicator_.rank();
    }
  }

 private:
  static constexpr std::size_t kCounts[] = {5, 70'000};
  [[nodiscard]] std::int32_t own_value(std::size_t i) const {
    return static_cast<std::int32_t>(i + 1) * (communicator_.rank() + 1);
  }

  Fabric& fabric_;
  Communicator communicator_;
  Counters counters_;
  Tracer tracer_;
  BatchLog log_;
  HostPaths paths_;
  std::uint32_t batches_ = 0;
  std::vector<std::int32_t> tensors_[2];
  Operation operations_[2];
  std::vector<OperationPtr> batch_{&operations_[0], &operations_[1]};
};

/// Algorithm::kTable: in shared memory; others: over links.
class HostPathsOf : public testing::TestWithParam<Algorithm> {
 protected:
  void on_ranks(const std::function<void(PathRank&, int)>& body) {
    const std::vector<std::unique_ptr<Fabric>> fabrics = make_inproc_fabrics(kRanks);
    on_threads(kRanks, [&](int rank) {
      PathRank one(*fabrics[static_cast<std::size_t>(rank)], GetParam());
      one.make_batch();
      one.path().prepare(one.requests(), one.communicator());
      body(one, rank);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Algorithms, HostPathsOf,
                         testing::Values(Algorithm::kTable, Algorithm::kRing, Algorithm::kRecursiveDoubling,
                                         Algorithm::kFlat),
                         [](const auto& path) {
                           std::string name(path.param == Algorithm::kTable ? "memory" : name_of(path.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(HostPathsOf, ANegotiatedBatchIsRun) {
  on_ranks([](PathRank& rank, int) {
    rank.path().run(rank.batch(), rank.context(false));
    rank.expect_sums();
  });
}

TEST_P(HostPathsOf, ARoundThatAllHavePostedIsAgreedOnAndFinished) {
  on_ranks([](PathRank& rank, int) {
    for (std::uint64_t token = 1; token <= 5; ++token) {
      rank.make_batch();
      rank.path().post(rank.batch(), rank.context(true), token);
      ASSERT_TRUE(rank.agree());
      const std::int64_t agreed_ns = now_ns();
      EXPECT_GE(rank.path().finish(rank.batch(), rank.context(true), agreed_ns), agreed_ns);
      rank.expect_sums();
    }
  });
}

TEST_P(HostPathsOf, ARoundThatOneDeclinesRunsOnNobodyAndTheNextOneRuns) {
  on_ranks([](PathRank& rank, int number) {
    for (std::uint64_t token = 1; token <= 6; token += 2) {
      rank.make_batch();
      if (number == static_cast<int>(token / 2)) {
        rank.path().decline({token, rank.requests()}, rank.communicator());
        rank.drain();
      } else {
        rank.path().post(rank.batch(), rank.context(true), token);
        ASSERT_FALSE(rank.agree());
      }
      rank.expect_own();
      rank.path().post(rank.batch(), rank.context(true), token + 1);
      ASSERT_TRUE(rank.agree());
      (void)rank.path().finish(rank.batch(), rank.context(true), now_ns());
      rank.expect_sums();
    }
  });
}

TEST_P(HostPathsOf, ARoundWaitsForRanksThatItNames) {
  std::latch looked(1);
  on_ranks([&](PathRank& rank, int number) {
    if (number != 1) looked.wait();
    rank.path().post(rank.batch(), rank.context(true), 1);
    if (number == 1) {
      EXPECT_EQ(rank.path().agreed(Deadline::at(0)), std::nullopt);
      EXPECT_EQ(rank.path().absent(rank.communicator()), (std::vector<int>{0, 2}));
      looked.count_down();
    }
    ASSERT_TRUE(rank.agree());
    (void)rank.path().finish(rank.batch(), rank.context(true), now_ns());
    rank.expect_sums();
  });
}

TEST_P(HostPathsOf, TheVotesOnABatchThatTravelsOtherwiseMoveNothingOfIt) {
  on_ranks([](PathRank& rank, int) {
    for (std::uint64_t token = 1; token <= 3; ++token) {
      rank.make_batch(DataPath::kNccl);
      rank.path().post(rank.batch(), rank.context(true), token);
      ASSERT_TRUE(rank.agree());
      const std::int64_t agreed_ns = rank.path().take_votes(rank.batch(), rank.context(true), now_ns());
      EXPECT_LE(agreed_ns, now_ns());
      for (const OperationPtr operation : rank.batch()) EXPECT_EQ(operation->agreed_ns, agreed_ns);
      rank.expect_own();
    }
  });
}

}  // namespace
}  // namespace ringtune
