// Votes that travel with an allreduce: every algorithm tells every rank the same, at any pace of the ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "../transport/fabrics.h"
#include "base/error.h"
#include "collective/allreducer.h"
#include "numbers.h"
#include "ranks.h"

namespace ringtune::testing_support {
namespace {

using enum Algorithm;
using Hosts = std::vector<std::string>;

/// A rank's tensor beside the buffer of the collective; counts what becomes of every byte.
class Tensor final : public PackPipeline {
 public:
  Tensor(Buffer input, std::span<std::byte> buffer)
      : input_(std::move(input)), buffer_(buffer), brought_(input_.size()), taken_(input_.size()) {
    std::fill(buffer_.begin(), buffer_.end(), std::byte{0xa5});
  }
  void stage_in(ChunkRange range) override { copy(range, input_.data(), buffer_.data(), brought_); }
  void stage_out(ChunkRange range) override {
    output_.resize(input_.size());
    copy(range, buffer_.data(), output_.data(), taken_);
  }
  void stage_out_rest() {
    for (std::size_t at = 0; at < taken_.size(); at += 4) {
      if (taken_[at] == 0) stage_out({at, 4});
    }
  }
  [[nodiscard]] bool is_brought() const { return all(brought_, 1); }
  [[nodiscard]] bool is_untouched() const { return all(taken_, 0); }
  [[nodiscard]] std::size_t taken() const {
    return static_cast<std::size_t>(std::count(taken_.begin(), taken_.end(), 1));
  }
  [[nodiscard]] const Buffer& output() const { return output_; }

 private:
  static bool all(const std::vector<int>& counts, int value) {
    return std::all_of(counts.begin(), counts.end(), [&](int count) { return count == value; });
  }
  static void copy(ChunkRange range, const std::byte* from, std::byte* to, std::vector<int>& counts) {
    ASSERT_EQ(range.begin % 4, 0U);
    ASSERT_EQ(range.size % 4, 0U);
    ASSERT_LE(range.begin + range.size, counts.size());
    for (std::size_t at = range.begin; at < range.begin + range.size; ++at) {
      ASSERT_EQ(counts[at]++, 0) << "byte " << at << " twice";
      to[at] = from[at];
    }
  }

  Buffer input_;
  std::span<std::byte> buffer_;
  Buffer output_;
  std::vector<int> brought_;
  std::vector<int> taken_;
};

/// The allreducers of all ranks, driven by one thread.
class VotedRounds {
 public:
  /// `slices`: all hosts have equally many ranks.
  explicit VotedRounds(Joined world, bool slices = false)
      : world_(std::move(world)), slices_(slices), allreducers_(world_.fabrics.size()), rings_(size()) {
    on_threads(static_cast<int>(size()), [&](int rank) {
      const auto own = static_cast<std::size_t>(rank);
      std::vector<int> members;
      for (std::size_t member = 0; member < size(); ++member) members.push_back(static_cast<int>(member));
      Mesh mesh(world_[own], members, {.channel = "ring", .connect_timeout_ns = kIdle});
      Group& ring = rings_[own] = {.rank = rank, .size = static_cast<int>(size()), .waker = &world_[own].waker()};
      const int next = (rank + 1) % ring.size;
      const int previous = (rank + ring.size - 1) % ring.size;
      mesh.prepare(std::vector<int>{next, previous});
      ring.next = &mesh.link(next);
      ring.prev = &mesh.link(previous);
      allreducers_[own] = std::make_unique<Allreducer>(
          world_[own], members, ring,
          AllreducerOptions{.mesh = {.connect_timeout_ns = kIdle}, .table = {}, .block_bytes = 1, .message_bytes = 1});
    });
  }
  [[nodiscard]] std::size_t size() const { return world_.fabrics.size(); }

  /// Connects what rounds of that kind need.
  void connect(std::size_t bytes, Algorithm algorithm) {
    on_threads(static_cast<int>(size()), [&](int rank) {
      AgreementHeader agreement(0, rank, static_cast<int>(size()), false);
      (void)allreducers_[static_cast<std::size_t>(rank)]->start({.data = {static_cast<std::byte*>(nullptr), bytes},
                                                                 .options = {.algorithm = algorithm},
                                                                 .agreement = &agreement});
    });
  }

  /// One round at random paces; `against`: who declines. Some ranks bring their bytes as they are asked for.
  void run(std::size_t count, Algorithm algorithm, const std::vector<bool>& against, std::mt19937& random) {
    const std::uint64_t token = ++token_;
    std::vector<Buffer> data;
    std::vector<AgreementHeader> agreement_headers;
    std::vector<ActivityPtr> runs(size());
    std::vector<std::unique_ptr<Tensor>> tensors(size());
    agreement_headers.reserve(size());
    bool declined = false;
    for (std::size_t rank = 0; rank < size(); ++rank) {
      data.push_back(input_of(static_cast<int>(rank), count, DType::kFloat32, ReduceOp::kSum));
      agreement_headers.emplace_back(token, static_cast<int>(rank), static_cast<int>(size()), against[rank]);
      declined = declined || against[rank];
    }
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (count > 0 && random() % 3 != 0) tensors[rank] = std::make_unique<Tensor>(data[rank], data[rank]);
    }
    std::size_t left = size();
    for (int turn = 0; left > 0; ++turn) {
      ASSERT_LT(turn, 50'000'000) << "the round hangs";
      const std::size_t rank = random() % size();
      if (!runs[rank]) {  // it comes late, or at once
        if (random() % 4 != 0) continue;
        runs[rank] = allreducers_[rank]->start({.data = data[rank],
                                                .options = {.algorithm = algorithm, .ring = {.segment_bytes = 1024}},
                                                .agreement = &agreement_headers[rank],
                                                .pipeline = tensors[rank].get()});
      }
      if (runs[rank]->done()) continue;
      (void)runs[rank]->advance();
      if (runs[rank]->done()) --left;
    }
    const Buffer expected = reduced_of(static_cast<int>(size()), count, DType::kFloat32, ReduceOp::kSum);
    for (std::size_t rank = 0; rank < size(); ++rank) {
      ASSERT_EQ(agreement_headers[rank].against(), declined) << "rank " << rank;
      ASSERT_NE(agreement_headers[rank].known_ns(), 0) << "rank " << rank << " has no header of some rank";
      ASSERT_TRUE(agreement_headers[rank].missing().empty());
      ASSERT_TRUE(data[rank] == expected) << "rank " << rank << ", " << count << " elements";
      if (tensors[rank]) check(*tensors[rank], takes(algorithm, count * 4), declined, expected);
    }
  }

  /// Whether results are taken as they come; else they are left to be taken at the end.
  [[nodiscard]] bool takes(Algorithm algorithm, std::size_t bytes) const {
    return algorithm == kRing || (algorithm == kHierarchical && slices_ && bytes > 32 << 10);
  }

  static void check(Tensor& tensor, bool takes, bool declined, const Buffer& expected) {
    ASSERT_TRUE(tensor.is_brought());
    if (declined) {
      ASSERT_TRUE(tensor.is_untouched()) << "a result was taken that not all agreed to";
      return;
    }
    ASSERT_EQ(tensor.taken(), takes ? expected.size() : 0);
    tensor.stage_out_rest();
    ASSERT_TRUE(tensor.output() == expected);
  }

  /// Rounds with every number of ranks against them.
  void run_all(Algorithm algorithm, std::uint32_t seed) {
    std::mt19937 random(seed);
    for (const std::size_t count : {0, 1, 5, 300, 3000, 30'000}) {
      connect(count * 4, algorithm);
      for (int round = 0; round < 8; ++round) {
        std::vector<bool> against(size());
        for (std::size_t rank = 0; rank < size(); ++rank) against[rank] = round % 2 == 1 && random() % size() == 0;
        run(count, algorithm, against, random);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

 private:
  Joined world_;
  bool slices_;
  std::vector<std::unique_ptr<Allreducer>> allreducers_;
  std::vector<Group> rings_;
  std::uint64_t token_ = 0;
};

class VotedAllreduce : public ::testing::TestWithParam<std::tuple<Algorithm, std::string, int>> {};

TEST_P(VotedAllreduce, TellsAllRanksTheSame) {
  const auto [algorithm, kind, size] = GetParam();
  VotedRounds(join(kind, size, 16 << 10)).run_all(algorithm, static_cast<std::uint32_t>(size));
}
INSTANTIATE_TEST_SUITE_P(Memory, VotedAllreduce,
                         ::testing::Combine(::testing::Values(kRing, kFlat, kRecursiveDoubling, kHalvingDoubling,
                                                              kTree),
                                            ::testing::Values("inproc"), ::testing::Values(2, 3, 4, 5, 6, 7, 8)));
INSTANTIATE_TEST_SUITE_P(Tcp, VotedAllreduce,
                         ::testing::Combine(::testing::Values(kRing, kFlat, kHalvingDoubling),
                                            ::testing::Values("tcp", "tcp4"), ::testing::Values(2, 3)));

class VotedOnLevels : public ::testing::TestWithParam<std::tuple<Hosts, bool>> {};
TEST_P(VotedOnLevels, TellsAllRanksTheSame) {
  const auto& [hosts, slices] = GetParam();
  VotedRounds(join_hosts(hosts), slices).run_all(kHierarchical, 1);
}
INSTANTIATE_TEST_SUITE_P(Hosts, VotedOnLevels,
                         ::testing::Values(std::tuple(Hosts{"a", "a", "b", "b"}, true),
                                           std::tuple(Hosts{"a", "b", "b"}, false),
                                           std::tuple(Hosts{"a", "a", "b", "b", "c", "c"}, true),
                                           std::tuple(Hosts{"a", "a", "b", "c", "c", "c"}, false)));

TEST(AgreementHeader, NamesThePeerOfAnotherRound) {
  const AgreementHeader mine(7, 0, 2, false);
  std::vector<std::byte> header(AgreementHeader::kHeaderBytes);
  mine.write(header);
  AgreementHeader other(8, 1, 2, false);
  try {
    other.fold(header, 0);
    FAIL() << "took the vote of another round";
  } catch (const Protocol& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 is in round 7"), std::string::npos) << error.what();
  }
}

TEST(AgreementHeader, KnowsWhoIsMissingAlsoInLargeGroups) {
  AgreementHeader agreement(1, 2, 100, false);
  EXPECT_EQ(agreement.known_ns(), 0);
  std::vector<std::byte> header(AgreementHeader::kHeaderBytes);
  for (int position = 0; position < 99; ++position) {
    AgreementHeader(1, position, 100, position == 70).write(header);
    agreement.fold(header, position);
  }
  EXPECT_TRUE(agreement.against());
  EXPECT_NE(agreement.known_ns(), 0);
}

}  // namespace
}  // namespace ringtune::testing_support
