#include "collective/shared_allreduce.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <tuple>

#include "base/error.h"
#include "collective/communicator.h"
#include "collective/shm_bootstrap.h"
#include "numbers.h"
#include "ranks.h"
#include "shm_groups.h"

namespace ringtune {
namespace {

using testing_support::Buffer;
using testing_support::expect_reduced;
using testing_support::input_of;
using testing_support::kWaitNs;
using testing_support::on_threads;
using testing_support::options_of;
using testing_support::reduced_of;
using testing_support::ring_of;
using testing_support::run_shm_group;

class SharedAllreduceTypes : public ::testing::TestWithParam<std::tuple<int, DType, ReduceOp>> {};
TEST_P(SharedAllreduceTypes, IsExact) {
  const auto [members, dtype, op] = GetParam();
  run_shm_group(members, options_of(1024, 2), [dtype = dtype, op = op](ShmGroup& shm_group, Fabric&) {
    expect_reduced(shm_group, 1003, dtype, op, 1);
    expect_reduced(shm_group, 30'001, dtype, op, 2);
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceTypes,
                         ::testing::Combine(::testing::Values(2, 3, 5),
                                            ::testing::Values(DType::kUint8, DType::kInt8, DType::kInt16, DType::kInt32,
                                                              DType::kInt64, DType::kFloat16, DType::kBfloat16,
                                                              DType::kFloat32, DType::kFloat64, DType::kBool),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                                              ReduceOp::kProduct)));

// Members; dtype of the tensors; dtype in the slots.
class SharedAllreduceCasts : public ::testing::TestWithParam<std::tuple<int, DType, DType>> {};
TEST_P(SharedAllreduceCasts, AreExactForSmallIntegers) {
  const auto [members, dtype, wire] = GetParam();
  run_shm_group(members, options_of(1024, 2), [dtype = dtype, wire = wire](ShmGroup& shm_group, Fabric&) {
    std::uint64_t token = 1;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (const std::size_t count : {0, 1, 1003, 30'001}) {
        Buffer data = input_of(shm_group.position(), count, dtype, op);
        const Fragment fragment{data.data(), data.data(), count};
        ASSERT_TRUE(shared_allreduce(shm_group, {&fragment, 1}, {token++, dtype, op, wire}));
        EXPECT_TRUE(data == reduced_of(shm_group.size(), count, dtype, op)) << count << " elements";
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceCasts,
                         ::testing::Combine(::testing::Values(2, 3, 5),
                                            ::testing::Values(DType::kFloat32, DType::kFloat64),
                                            ::testing::Values(DType::kFloat16, DType::kBfloat16)));

// Each contribution is scaled and rounded to 16 bits, then summed in float32; where every member reduces everything,
// nothing else is rounded to 16 bits.
class SharedAllreduceCast : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Elements, SharedAllreduceCast, ::testing::Values(5'000, 200'000));
TEST_P(SharedAllreduceCast, RoundsContributionsAfterPrescaleAndSumsInFloat32) {
  const std::size_t count = GetParam();
  std::vector<std::vector<float>> outputs(2, std::vector<float>(count));
  const auto number = [](int rank, std::size_t i) {
    return 1.0F + static_cast<float>(i) * 1e-4F * static_cast<float>(rank + 1);
  };
  run_shm_group(2, options_of(4096, 3), [&](ShmGroup& shm_group, Fabric&) {
    const auto rank = static_cast<std::size_t>(shm_group.position());
    std::vector<float> input(count);
    for (std::size_t i = 0; i < count; ++i) input[i] = number(shm_group.position(), i);
    const Fragment fragment{reinterpret_cast<const std::byte*>(input.data()),
                            reinterpret_cast<std::byte*>(outputs[rank].data()), count, 0.3, 0.5};
    ASSERT_TRUE(shared_allreduce(shm_group, {&fragment, 1}, {7, DType::kFloat32, ReduceOp::kSum, DType::kFloat16}));
  });
  for (std::size_t i = 0; i < count; ++i) {
    const auto a = static_cast<_Float16>(number(0, i) * 0.3F);
    const auto b = static_cast<_Float16>(number(1, i) * 0.3F);
    ASSERT_EQ(outputs[0][i], (static_cast<float>(a) + static_cast<float>(b)) * 0.5F) << i;
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

// Elements; slot bytes; slots. Slots far smaller than the message wrap around many times.
class SharedAllreduceSizes
    : public ::testing::TestWithParam<std::tuple<int, std::size_t, std::pair<std::size_t, std::size_t>>> {};
TEST_P(SharedAllreduceSizes, IsExactInManyRounds) {
  const auto [members, count, slots] = GetParam();
  run_shm_group(members, options_of(slots.first, slots.second), [count = count](ShmGroup& shm_group, Fabric&) {
    for (std::uint64_t round = 1; round <= 5; ++round) {
      expect_reduced(shm_group, count, DType::kFloat32, ReduceOp::kSum, round);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceSizes,
                         ::testing::Combine(::testing::Values(2, 3, 4, 7),
                                            ::testing::Values(std::size_t{0}, 1, 255, 2048, 2049, 16'384, 262'147),
                                            ::testing::Values(std::pair<std::size_t, std::size_t>{128 << 10, 4},
                                                              std::pair<std::size_t, std::size_t>{4096, 2})));
// A thousand turns around the smallest slots are enough: each costs seven ranks on two cores as many switches.
INSTANTIATE_TEST_SUITE_P(Tiny, SharedAllreduceSizes,
                         ::testing::Combine(::testing::Values(2, 3, 4, 7),
                                            ::testing::Values(std::size_t{0}, 1, 255, 2048, 2049, 16'384),
                                            ::testing::Values(std::pair<std::size_t, std::size_t>{64, 3})));

class SharedAllreduceFragments : public ::testing::TestWithParam<int> {};
TEST_P(SharedAllreduceFragments, KeepTheirOwnFactorsAndPlaces) {
  const std::vector<std::size_t> counts{5, 0, 1000, 1, 17, 0, 4096, 3};
  run_shm_group(GetParam(), options_of(4096, 2), [&](ShmGroup& shm_group, Fabric&) {
    std::vector<std::vector<float>> inputs;
    std::vector<std::vector<float>> outputs;
    std::vector<Fragment> fragments;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      inputs.emplace_back(counts[i] + 1, static_cast<float>(i + 1) * static_cast<float>(shm_group.position() + 1));
      outputs.emplace_back(counts[i] + 2, -1.0F);
      fragments.push_back({reinterpret_cast<const std::byte*>(inputs.back().data()),
                           reinterpret_cast<std::byte*>(outputs.back().data()), counts[i], 2.0,
                           i % 2 == 0 ? 1.0 : 0.5});
    }
    ASSERT_TRUE(shared_allreduce(shm_group, fragments, {9, DType::kFloat32, ReduceOp::kSum}));
    const int n = shm_group.size();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const float sum = static_cast<float>(i + 1) * static_cast<float>(n * (n + 1) / 2) * (i % 2 == 0 ? 2.0F : 1.0F);
      std::vector<float> expected(counts[i], sum);
      expected.insert(expected.end(), {-1.0F, -1.0F});
      EXPECT_EQ(outputs[i], expected) << "fragment " << i;
      EXPECT_EQ(inputs[i].back(), static_cast<float>(i + 1) * static_cast<float>(shm_group.position() + 1));
    }
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceFragments, ::testing::Values(2, 3, 6));

// Members; in place or not; dtype in the slots. Long enough that two members reduce half each, with fragments that end
// within pieces and within halves, and factors that make what is in a slot differ from what is in the tensor.
class SharedAllreduceHalves : public ::testing::TestWithParam<std::tuple<int, bool, DType>> {};
TEST_P(SharedAllreduceHalves, KeepEveryFragmentsFactorsAndPlaces) {
  const auto [members, in_place, wire] = GetParam();
  const std::vector<std::size_t> counts{100'003, 1, 64, 70'001, 0, 255, 90'000};
  run_shm_group(members, options_of(32 << 10, 3), [&, in_place = in_place, wire = wire](ShmGroup& shm_group, Fabric&) {
    std::vector<std::vector<float>> inputs;
    std::vector<std::vector<float>> outputs;
    std::vector<Fragment> fragments;
    const auto value = [](int member, std::size_t i) {
      return static_cast<float>((member + 1) * static_cast<int>(i % 13));
    };
    for (std::size_t k = 0; k < counts.size(); ++k) {
      inputs.emplace_back(counts[k] + 1, -3.0F);
      for (std::size_t i = 0; i < counts[k]; ++i) inputs[k][i] = value(shm_group.position(), i);
      outputs.emplace_back(counts[k] + 1, -1.0F);
    }
    for (std::size_t k = 0; k < counts.size(); ++k) {
      float* const output = in_place ? inputs[k].data() : outputs[k].data();
      fragments.push_back({reinterpret_cast<const std::byte*>(inputs[k].data()), reinterpret_cast<std::byte*>(output),
                           counts[k], k % 3 == 0 ? 1.0 : 2.0, k % 2 == 0 ? 1.0 : 0.5});
    }
    const std::vector<std::vector<float>> before = inputs;
    ASSERT_TRUE(shared_allreduce(shm_group, fragments, {5, DType::kFloat32, ReduceOp::kSum, wire}));
    const int n = shm_group.size();
    for (std::size_t k = 0; k < counts.size(); ++k) {
      const float factor = (k % 3 == 0 ? 1.0F : 2.0F) * (k % 2 == 0 ? 1.0F : 0.5F);
      std::vector<float> expected(counts[k] + 1, in_place ? -3.0F : -1.0F);
      for (std::size_t i = 0; i < counts[k]; ++i) {
        expected[i] = value(0, i) * factor * static_cast<float>(n * (n + 1) / 2);
      }
      EXPECT_TRUE((in_place ? inputs : outputs)[k] == expected) << "fragment " << k;
      EXPECT_TRUE(in_place || inputs[k] == before[k]) << "fragment " << k;
    }
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceHalves,
                         ::testing::Combine(::testing::Values(2, 3), ::testing::Bool(),
                                            ::testing::Values(DType::kFloat32, DType::kFloat16, DType::kBfloat16)));

TEST(SharedAllreduce, IsBitwiseEqualOnAllMembersAndForAllPieces) {
  constexpr std::size_t kCount = 50'000;
  std::vector<std::vector<float>> results;
  for (const auto& [slot, slots] : {std::pair<std::size_t, std::size_t>{256, 2}, {4096, 3}, {128 << 10, 4}}) {
    std::vector<std::vector<float>> found(4);
    run_shm_group(4, options_of(slot, slots), [&](ShmGroup& shm_group, Fabric&) {
      std::mt19937 random(static_cast<unsigned>(shm_group.position()));
      std::uniform_real_distribution<float> numbers(-1e3F, 1e3F);
      std::vector<float> data(kCount);
      for (float& number : data) number = numbers(random);
      auto* bytes = reinterpret_cast<std::byte*>(data.data());
      const Fragment fragment{bytes, bytes, kCount};
      ASSERT_TRUE(shared_allreduce(shm_group, {&fragment, 1}, {1, DType::kFloat32, ReduceOp::kSum}));
      found[static_cast<std::size_t>(shm_group.position())] = data;
    });
    results.insert(results.end(), found.begin(), found.end());
  }
  for (const std::vector<float>& result : results) {
    EXPECT_EQ(std::memcmp(result.data(), results.front().data(), kCount * sizeof(float)), 0);
  }
}

class SharedAllreduceVotes : public ::testing::TestWithParam<std::tuple<int, bool>> {};
TEST_P(SharedAllreduceVotes, OneVoteAgainstLeavesAllOutputsAlone) {
  const auto [members, declines] = GetParam();
  run_shm_group(members, options_of(4096, 2), [members = members, declines = declines](ShmGroup& shm_group, Fabric&) {
    for (int dissenter = 0; dissenter < members; ++dissenter) {
      std::vector<float> data(30'000, 1.0F);
      auto* bytes = reinterpret_cast<std::byte*>(data.data());
      const Fragment fragment{bytes, bytes, data.size()};
      const bool dissents = shm_group.position() == dissenter;
      if (dissents && declines) {
        shm_group.decline_round();
      } else {
        const std::uint64_t token = dissents ? 8 : 7;
        EXPECT_FALSE(shared_allreduce(shm_group, {&fragment, 1}, {token, DType::kFloat32, ReduceOp::kSum}));
      }
      EXPECT_EQ(std::count(data.begin(), data.end(), 1.0F), 30'000);
      // Everyone knows, and the next round is a round like any other.
      expect_reduced(shm_group, 10'000, DType::kFloat32, ReduceOp::kSum, 100);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceVotes, ::testing::Combine(::testing::Values(2, 3, 5), ::testing::Bool()));

// The shm_groups of all members, to be driven step by step from one thread: nothing in these tests may block.
std::vector<std::shared_ptr<ShmGroup>> shm_groups_of(const std::vector<std::unique_ptr<Fabric>>& fabrics,
                                                     const ShmGroupOptions& options) {
  std::vector<std::shared_ptr<ShmGroup>> shm_groups(fabrics.size());
  const int members = static_cast<int>(fabrics.size());
  on_threads(members, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    shm_groups[at] = connect_shm_group(*fabrics[at], ring_of(*fabrics[at]), all_ranks(members), options);
  });
  return shm_groups;
}

TEST(SharedAllreduce, DeclinesAheadLeaveTheVoteOfARoundThatAPeerHasNotYetRead) {
  const auto fabrics = make_inproc_fabrics(2);
  const auto shm_groups = shm_groups_of(fabrics, options_of(4096, 2));
  ShmGroup& early = *shm_groups[0];
  ShmGroup& late = *shm_groups[1];
  for (const auto& shm_group : shm_groups) {
    shm_group->begin_round(7);
    shm_group->publish(ShmCounter::kPosted, 1);
  }
  ASSERT_TRUE(early.agreed(Deadline::never()).value());
  early.decline_round();
  early.decline_round();
  EXPECT_TRUE(late.agreed(Deadline::never()).value())
      << "the early member has found this round agreed and written its outputs";
  for (int round = 0; round < 2; ++round) {
    late.begin_round(7);
    late.publish(ShmCounter::kPosted, 1);
    EXPECT_FALSE(late.agreed(Deadline::never()).value());
  }
}

TEST(SharedAllreduce, AfterADeclineTheSlotsWaitForWhoeverStillReadsThem) {
  std::atomic<bool> early_waits{false};
  ShmGroupOptions options = options_of(4096, 2);
  options.stall_ns = 1'000'000;
  options.on_stall = [&](const std::vector<int>& missing, std::int64_t) {
    if (missing == std::vector<int>{1}) early_waits = true;
  };
  run_shm_group(2, options, [&](ShmGroup& shm_group, Fabric&) {
    shm_group.begin_round(7);
    std::memset(shm_group.slot(shm_group.position(), 0), 1, 4096);
    shm_group.publish(ShmCounter::kPosted, 1);
    ASSERT_TRUE(shm_group.agreed(Deadline::never()).value());
    if (shm_group.position() == 0) {
      shm_group.decline_round();
      expect_reduced(shm_group, 1024, DType::kInt32, ReduceOp::kSum, 9);
      return;
    }
    while (!early_waits) std::this_thread::yield();  // now the other has done all it can do without this member
    const std::vector<std::byte> read(shm_group.slot(0, 0), shm_group.slot(0, 0) + 4096);
    EXPECT_EQ(std::count(read.begin(), read.end(), std::byte{1}), 4096);
    shm_group.begin_round(8);
    shm_group.publish(ShmCounter::kPosted, 1);
    EXPECT_FALSE(shm_group.agreed(Deadline::never()).value());
    expect_reduced(shm_group, 1024, DType::kInt32, ReduceOp::kSum, 9);
  });
}

TEST(SharedAllreduce, EveryoneMayDecline) {
  run_shm_group(3, options_of(4096, 2), [](ShmGroup& shm_group, Fabric&) {
    shm_group.decline_round();
    expect_reduced(shm_group, 10'000, DType::kInt32, ReduceOp::kSum, 1);
  });
}

TEST(SharedAllreduce, AnAbortEndsTheWait) {
  std::atomic<int> caught{0};
  run_shm_group(2, options_of(4096, 2), [&](ShmGroup& shm_group, Fabric& fabric) {
    expect_reduced(shm_group, 10, DType::kInt32, ReduceOp::kSum, 1);
    if (shm_group.position() == 1) return;  // never comes again
    std::thread other([&] { fabric.abort("rank 1 died"); });
    std::vector<float> data(30'000, 1.0F);
    auto* bytes = reinterpret_cast<std::byte*>(data.data());
    const Fragment fragment{bytes, bytes, data.size()};
    try {
      (void)shared_allreduce(shm_group, {&fragment, 1}, {2, DType::kFloat32, ReduceOp::kSum});
    } catch (const PeerLost& error) {
      EXPECT_STREQ(error.what(), "rank 1 died");
      EXPECT_EQ(error.rank(), 1);
      ++caught;
    }
    other.join();
  });
  EXPECT_EQ(caught, 1);
}

TEST(SharedAllreduce, TheIdleTimeoutNamesTheRank) {
  ShmGroupOptions options = options_of(4096, 2);
  options.idle_timeout_ns = 20'000'000;
  run_shm_group(2, options, [&](ShmGroup& shm_group, Fabric&) {
    if (shm_group.position() == 1) return;
    const Fragment nothing{};
    try {
      (void)shared_allreduce(shm_group, {&nothing, 1}, {1, DType::kFloat32, ReduceOp::kSum});
      FAIL() << "no timeout";
    } catch (const Timeout& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
    }
  });
}

TEST(SharedAllreduce, AStallIsReportedWithThoseWhoAreMissing) {
  std::atomic<int> reports{0};
  std::mutex mutex;
  std::vector<int> named;
  std::atomic<bool> come{false};
  ShmGroupOptions options = options_of(4096, 2);
  options.stall_ns = 5'000'000;
  options.on_stall = [&](const std::vector<int>& missing, std::int64_t waited_ns) {
    EXPECT_GE(waited_ns, 5'000'000);
    {
      const std::lock_guard lock(mutex);
      named = missing;
    }
    if (++reports == 2) come = true;
  };
  run_shm_group(3, options, [&](ShmGroup& shm_group, Fabric&) {
    while (shm_group.position() == 2 && !come) std::this_thread::yield();
    expect_reduced(shm_group, 100, DType::kInt32, ReduceOp::kSum, 1);
  });
  EXPECT_GE(reports, 2);
  EXPECT_EQ(named, (std::vector<int>{2}));
}

TEST(SharedAllreduce, AloneThereIsNoShmGroup) {
  const auto fabrics = make_inproc_fabrics(1);
  EXPECT_EQ(connect_shm_group(*fabrics.front(), ring_of(*fabrics.front()), {0}, {}), nullptr);
}

}  // namespace
}  // namespace ringtune
