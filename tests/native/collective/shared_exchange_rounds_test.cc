// Rounds of all kinds one after another: whichever slots they use and whoever writes those, votes against a round, and
// members that never come.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "shared_exchanges.h"
#include "shm_groups.h"

namespace ringtune {
namespace {

using testing_support::Buffer;
using testing_support::expect_exchanged;
using testing_support::expect_gathered;
using testing_support::expect_reduced;
using testing_support::expect_scattered;
using testing_support::options_of;
using testing_support::Output;
using testing_support::random_bytes;
using testing_support::Reduction;
using testing_support::run_shm_group;
using testing_support::Sizes;
using testing_support::split;
using testing_support::Table;
using testing_support::Turn;

constexpr std::array kExchangeDistances = {CoreLatency::kSameCore, CoreLatency::kSharedCache, CoreLatency::kApart};
constexpr std::size_t kLarge = (2 << 20) + 4;  // stays in the set of slots of a large one before

/// Draws the same rounds on all members.
class Script {
 public:
  Script(int members, unsigned seed, std::vector<std::size_t> sizes)
      : members_(members), count_(static_cast<std::size_t>(members)), random_(seed), sizes_(std::move(sizes)) {}

  void play(ShmGroup& shm_group, std::uint64_t token) {
    const bool is_against = draw(6) == 0;
    const bool declines = draw(2) == 0;
    const bool dissents = static_cast<int>(draw(count_)) == shm_group.position();
    const std::size_t kind = draw(6);
    const std::size_t bytes = size();
    const Sizes uneven = sizes();
    Table table;
    for (std::size_t from = 0; from < count_; ++from) table.push_back(sizes());
    const Turn turn{is_against && dissents ? token << 20 : token, !is_against};
    if (is_against && dissents && declines) return shm_group.decline_round();
    const Reduction scaled{.dtype = DType::kBfloat16, .prescale = 2.0};
    switch (kind) {
      case 0:
        return expect_gathered(shm_group, turn, Sizes(count_, bytes), token % 2 == 0);
      case 1:
        return expect_gathered(shm_group, turn, uneven, token % 2 == 0);
      case 2:
        return expect_exchanged(shm_group, turn, table);
      case 3:
        return expect_scattered(shm_group, turn, split(bytes / 4, members_), {.dtype = DType::kInt32}, token % 2 == 0);
      case 4:
        return expect_scattered(shm_group, turn, uneven, scaled, token % 2 == 0);
      default:  // broadcast, or nothing at all
        Sizes blocks(count_, 0);
        blocks[token % count_] = bytes;
        return expect_gathered(shm_group, turn, blocks, true);
    }
  }
  [[nodiscard]] std::size_t draw(std::size_t below) { return random_() % below; }
  [[nodiscard]] std::size_t size() { return sizes_[draw(sizes_.size())]; }

 private:
  [[nodiscard]] Sizes sizes() {
    Sizes all;
    for (std::size_t member = 0; member < count_; ++member) all.push_back(size() / count_);
    return all;
  }

  int members_;
  std::size_t count_;
  std::mt19937 random_;
  std::vector<std::size_t> sizes_;
};

// Members; distance; hands over; spin.
using Waits = std::tuple<int, CoreLatency, bool, std::int64_t>;
class SharedExchangeRounds : public ::testing::TestWithParam<Waits> {
 protected:
  static ShmGroupOptions options(std::size_t slot_bytes, std::size_t slots) {
    ShmGroupOptions options = options_of(slot_bytes, slots);
    options.distance = std::get<1>(GetParam());
    options.changes_owner = std::get<2>(GetParam());
    options.spin_ns = std::get<3>(GetParam());
    return options;
  }
  static void run(const ShmGroupOptions& options, const std::vector<std::size_t>& sizes, std::uint64_t rounds) {
    run_shm_group(std::get<0>(GetParam()), options, [&](ShmGroup& shm_group, Fabric&) {
      Script script(shm_group.size(), 17, sizes);
      std::mt19937 pace(static_cast<unsigned>(shm_group.position()));
      for (std::uint64_t token = 1; token <= rounds && !HasFailure(); ++token) {
        for (std::size_t yields = pace() % 4 == 0 ? pace() % 200 : 0; yields > 0; --yields) std::this_thread::yield();
        // Between those of other kinds, whose slots are written in other ways yet.
        if (script.draw(4) == 0)
          expect_reduced(shm_group, script.size() / 4, DType::kInt32, ReduceOp::kSum, token << 40);
        script.play(shm_group, token);
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Pairs, SharedExchangeRounds,
                         ::testing::Combine(::testing::Values(2), ::testing::ValuesIn(kExchangeDistances),
                                            ::testing::Bool(), ::testing::Values(0, 50'000)));
INSTANTIATE_TEST_SUITE_P(More, SharedExchangeRounds,
                         ::testing::Combine(::testing::Values(3, 5), ::testing::ValuesIn(kExchangeDistances),
                                            ::testing::Values(true), ::testing::Values(0)));

TEST_P(SharedExchangeRounds, HoldInAnyOrderThroughSmallSlots) {
  run(options(1024, 2), {0, 1, 100, 1'023, 4'000, 30'001}, 60);
}
TEST_P(SharedExchangeRounds, HoldInAnyOrderThroughSlotsWithPlacesToTurnAt) {
  run(options(64 << 10, 3), {100, 9'000, 17'000, 33'003, 100'001}, 80);
}
TEST_P(SharedExchangeRounds, HoldInAnyOrderThroughDefaultSlots) {
  run(options(ShmGroupOptions{}.slot_bytes, ShmGroupOptions{}.slots), {0, 9'000, 70'000, 300'001}, 20);
}

// Members; hands over.
class SharedExchangeLarge : public ::testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, SharedExchangeLarge, ::testing::Combine(::testing::Values(2, 3), ::testing::Bool()));
TEST_P(SharedExchangeLarge, OnesMayFollowLargeOnes) {
  const int members = std::get<0>(GetParam());
  const auto count = static_cast<std::size_t>(members);
  ShmGroupOptions options = options_of(128 << 10, 3);
  options.distance = CoreLatency::kSharedCache;
  options.changes_owner = std::get<1>(GetParam());
  run_shm_group(members, options, [&](ShmGroup& shm_group, Fabric&) {
    const auto large_block_of = [&](std::size_t root) {
      Sizes blocks(count, 0);
      blocks[root] = kLarge;
      return blocks;
    };
    const Sizes parts = split(kLarge / sizeof(float), members);
    expect_gathered(shm_group, {1}, large_block_of(0));
    expect_gathered(shm_group, {2}, large_block_of(1), true);
    expect_scattered(shm_group, {3}, parts, {.prescale = 2.0}, true);
    expect_reduced(shm_group, kLarge / sizeof(float), DType::kInt32, ReduceOp::kSum, 4);
    expect_scattered(shm_group, {5}, parts, {});
    expect_exchanged(shm_group, {6}, Table(count, Sizes(count, kLarge / count)));
    if (members == 2) expect_gathered(shm_group, {7}, Sizes(count, kLarge));
    shm_group.position() == 1 ? shm_group.decline_round() : expect_gathered(shm_group, {8, false}, large_block_of(0));
    expect_gathered(shm_group, {9}, large_block_of(0));
    expect_gathered(shm_group, {10}, Sizes(count, 9'000));
  });
}

// What a round puts into a slot stays in there at every place that it may begin at.
class SharedScatterPlaces : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Members, SharedScatterPlaces, ::testing::Values(2, 3, 5));
TEST_P(SharedScatterPlaces, KeepWithinTheirSlot) {
  constexpr std::size_t kSlot = 64 << 10;
  ShmGroupOptions options = options_of(kSlot, 2);
  options.distance = CoreLatency::kSharedCache;
  options.changes_owner = false;
  run_shm_group(GetParam(), options, [](ShmGroup& shm_group, Fabric&) {
    std::vector<std::byte*> second_slots;  // of both sets
    for (const std::uint64_t token : {1, 2}) {
      expect_gathered(shm_group, {token}, Sizes(static_cast<std::size_t>(shm_group.size()), 1));
      second_slots.push_back(shm_group.slot(shm_group.position(), 1));
    }
    for (std::uint64_t token = 3; token <= 30; ++token) {  // one piece each, for the first slot
      expect_scattered(shm_group, {token}, split(9'000 / sizeof(float), shm_group.size()), {.prescale = 2.0});
    }
    for (const std::byte* const slot : second_slots) {
      EXPECT_EQ(std::count(slot, slot + kSlot, std::byte{0}), static_cast<std::ptrdiff_t>(kSlot));
    }
  });
}

// Kind; members. Who comes with another token has no part in the round, nor has anybody else.
class SharedExchangeVotes : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  static void play(ShmGroup& shm_group, Turn turn) {
    const auto count = static_cast<std::size_t>(shm_group.size());
    if (kind() == 0) return expect_gathered(shm_group, turn, Sizes(count, 3'000));
    if (kind() == 1) return expect_exchanged(shm_group, turn, Table(count, Sizes(count, 3'000)));
    expect_scattered(shm_group, turn, Sizes(count, 3'000), {});
  }
  static int kind() { return std::get<0>(GetParam()); }
  static int members() { return std::get<1>(GetParam()); }

  /// That member's round, posted.
  static std::unique_ptr<SharedExchange> round_of(ShmGroup& shm_group, const Buffer& input) {
    const Sizes shares = split(input.size(), shm_group.size());
    if (kind() == 0) {
      return std::make_unique<SharedGather>(shm_group, 7, Sizes(shares.size(), input.size()), input.data());
    }
    if (kind() == 1) return std::make_unique<SharedAlltoall>(shm_group, 7, shares, input.data());
    return std::make_unique<SharedReducescatter>(shm_group, 7, Scatter{.parts = shares, .dtype = DType::kUint8},
                                                 input.data());
  }
};
INSTANTIATE_TEST_SUITE_P(All, SharedExchangeVotes,
                         ::testing::Combine(::testing::Range(0, 3), ::testing::Values(2, 3, 5)));

TEST_P(SharedExchangeVotes, AnotherTokenLeavesAllOutputsAlone) {
  run_shm_group(members(), options_of(1024, 2), [](ShmGroup& shm_group, Fabric&) {
    for (int dissenter = 0; dissenter < members(); ++dissenter) {
      play(shm_group, {shm_group.position() == dissenter ? 8U : 7U, false});
      play(shm_group, {9});
    }
  });
}

TEST_P(SharedExchangeVotes, ADeclineLeavesAllOutputsAlone) {
  run_shm_group(members(), options_of(1024, 2), [](ShmGroup& shm_group, Fabric&) {
    for (int dissenter = 0; dissenter < members(); ++dissenter) {
      shm_group.position() == dissenter ? shm_group.decline_round() : play(shm_group, {7, false});
      play(shm_group, {9});
    }
  });
}

TEST_P(SharedExchangeVotes, ThereIsNoAnswerAtTheDeadlineBeforeAllHaveCome) {
  std::atomic<bool> asked{false};
  run_shm_group(members(), options_of(1024, 2), [&](ShmGroup& shm_group, Fabric&) {
    while (shm_group.position() == 1 && !asked) std::this_thread::yield();
    const Buffer input = random_bytes(10'000, 1);
    Buffer output(input.size() * static_cast<std::size_t>(shm_group.size()));
    const auto round = round_of(shm_group, input);
    round->deliver_to(output.data());
    if (shm_group.position() == 0) {
      EXPECT_EQ(round->agreed(Deadline::at(0)), std::nullopt);
      asked = true;
    }
    ASSERT_TRUE(await_agreement(*round));
    round->finish();
  });
}

TEST_P(SharedExchangeVotes, AnAbortEndsTheWaitForAPiece) {
  std::atomic<int> caught{0};
  run_shm_group(members(), options_of(1024, 2), [&](ShmGroup& shm_group, Fabric& fabric) {
    const Buffer input = random_bytes(30'000, 1);
    Buffer output(input.size() * static_cast<std::size_t>(shm_group.size()));
    const auto round = round_of(shm_group, input);
    round->deliver_to(output.data());
    ASSERT_TRUE(await_agreement(*round));
    if (shm_group.position() == 1) return;  // has posted a piece, and posts no more
    std::thread other([&] { fabric.abort("rank 1 died"); });
    try {
      round->finish();
    } catch (const PeerLost& error) {
      EXPECT_STREQ(error.what(), "rank 1 died");
      ++caught;
    }
    other.join();
  });
  EXPECT_EQ(caught, members() - 1);
}

TEST_P(SharedExchangeVotes, AnAbortEndsTheWaitForAMember) {
  std::atomic<int> caught{0};
  run_shm_group(members(), options_of(1024, 2), [&](ShmGroup& shm_group, Fabric& fabric) {
    play(shm_group, {1});
    if (shm_group.position() == 1) return;  // never comes again
    std::thread other([&] { fabric.abort("rank 1 died"); });
    try {
      play(shm_group, {2});
    } catch (const PeerLost& error) {
      EXPECT_STREQ(error.what(), "rank 1 died");
      ++caught;
    }
    other.join();
  });
  EXPECT_EQ(caught, members() - 1);
}

TEST_P(SharedExchangeVotes, TheIdleTimeoutNamesTheRank) {
  for (const bool comes : {false, true}) {
    std::atomic<int> caught{0};
    ShmGroupOptions options = options_of(1024, 2);
    options.idle_timeout_ns = 50'000'000;
    run_shm_group(members(), options, [&](ShmGroup& shm_group, Fabric&) {
      if (shm_group.position() == 1 && !comes) return;
      const Buffer input = random_bytes(30'000, 1);
      Buffer output(input.size() * static_cast<std::size_t>(shm_group.size()));
      const auto round = round_of(shm_group, input);
      round->deliver_to(output.data());
      try {
        ASSERT_TRUE(await_agreement(*round));
        if (shm_group.position() == 1) return;
        round->finish();
      } catch (const Timeout& error) {
        ++caught;
        // Of those that are left, one may see another one's silence first.
        const bool names_it = std::string(error.what()).find("rank 1") != std::string::npos;
        EXPECT_TRUE(names_it || members() > 2) << error.what();
      }
    });
    EXPECT_EQ(caught, members() - 1) << (comes ? "in the round" : "before it");
  }
}

}  // namespace
}  // namespace ringtune
