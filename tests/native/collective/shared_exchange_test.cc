// What each of the three rounds delivers, through slots that hold a message in one piece, in some and in very many.
#include "collective/shared_exchange.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <ostream>
#include <random>
#include <tuple>
#include <vector>

#include "shared_exchanges.h"
#include "shm_groups.h"

namespace ringtune {
namespace {

using testing_support::Buffer;
using testing_support::expect_exchanged;
using testing_support::expect_gathered;
using testing_support::expect_scattered;
using testing_support::options_of;
using testing_support::run_shm_group;
using testing_support::Sizes;
using testing_support::split;
using testing_support::sum_of;
using testing_support::Table;

constexpr std::array<std::size_t, 9> kBytes = {0, 1, 64, 191, 1000, 1024, 1025, 3 * 1024, 100'001};

struct Slots {
  std::size_t bytes = ShmGroupOptions{}.slot_bytes;
  std::size_t count = ShmGroupOptions{}.slots;
  friend void PrintTo(const Slots& slots, std::ostream* out) { *out << slots.count << " of " << slots.bytes; }
};

class SharedExchanges : public ::testing::TestWithParam<std::tuple<int, Slots>> {
 protected:
  static int members() { return std::get<0>(GetParam()); }
  static std::size_t count() { return static_cast<std::size_t>(members()); }
  static bool has_default_slots() { return std::get<1>(GetParam()).bytes == Slots{}.bytes; }

  static void run(const std::function<void(ShmGroup&)>& body) {
    const Slots slots = std::get<1>(GetParam());
    run_shm_group(members(), options_of(slots.bytes, slots.count),
                  [&](ShmGroup& shm_group, Fabric&) { body(shm_group); });
  }
  static void expect_all_gathered(const std::vector<Sizes>& all) {
    run([&](ShmGroup& shm_group) {
      std::uint64_t token = 0;
      for (const Sizes& blocks : all) {
        for (const bool in_place : {false, true}) expect_gathered(shm_group, {++token}, blocks, in_place);
      }
    });
  }
  static void expect_all_exchanged(const std::vector<Table>& all) {
    run([&](ShmGroup& shm_group) {
      std::uint64_t token = 0;
      for (const Table& table : all) expect_exchanged(shm_group, {++token}, table);
    });
  }
  static Table nothing() { return Table(count(), Sizes(count(), 0)); }
};
INSTANTIATE_TEST_SUITE_P(All, SharedExchanges,
                         ::testing::Combine(::testing::Values(2, 3, 5),
                                            ::testing::Values(Slots{1024, 2}, Slots{1024, 4}, Slots{})));

TEST_P(SharedExchanges, GatherEqualBlocks) {
  std::vector<Sizes> all;
  for (const std::size_t bytes : kBytes) all.emplace_back(count(), bytes);
  if (has_default_slots()) all.emplace_back(count(), 700'001);  // around the slots
  expect_all_gathered(all);
}

TEST_P(SharedExchanges, GatherUnevenBlocks) {
  std::vector<Sizes> all(7, Sizes(count(), 0));
  std::mt19937 random(3);
  for (std::size_t member = 0; member < count(); ++member) {
    all[0][member] = member;
    all[1][member] = 20'000 * member;
    all[2][member] = 20'000 * (count() - 1 - member);
    all[3][member] = member % 2 == 0 ? 2'500 : 0;
    all[4][member] = member == 1 ? 100'003 : 5;
    all[5][member] = random() % 5'000;
    all[6][member] = random() % 2 == 0 ? random() % 200'000 : 0;
  }
  expect_all_gathered(all);
}

TEST_P(SharedExchanges, BroadcastABlockFromEachRoot) {
  std::vector<Sizes> all;
  for (std::size_t root = 0; root < count(); ++root) {
    for (const std::size_t bytes : kBytes) {
      all.emplace_back(count(), 0);
      all.back()[root] = bytes;
    }
  }
  expect_all_gathered(all);
}

TEST_P(SharedExchanges, ExchangeEqualShares) {
  std::vector<Table> all;
  for (const std::size_t bytes : kBytes) all.emplace_back(count(), Sizes(count(), bytes));
  if (has_default_slots()) all.emplace_back(count(), Sizes(count(), 200'001));
  expect_all_exchanged(all);
}

TEST_P(SharedExchanges, ExchangeUnevenShares) {
  std::vector<Table> all(5, nothing());
  std::mt19937 random(5);
  for (std::size_t from = 0; from < count(); ++from) {
    for (std::size_t to = 0; to < count(); ++to) {
      all[0][from][to] = from * count() + to;
      all[1][from][to] = 700 * (to + 1) * (from + 1);
      all[2][from][to] = (from + to) % 2 == 0 ? 0 : 3'000;
      all[3][from][to] = random() % 3 == 0 ? 0 : random() % 2'000;
      all[4][from][to] = random() % 2 == 0 ? random() % 60'000 : random() % 60;
    }
  }
  expect_all_exchanged(all);
}

TEST_P(SharedExchanges, ExchangeWithMembersThatGetOrGiveNothing) {
  std::vector<Table> all;
  for (std::size_t one = 0; one < count(); ++one) {
    Table it_gets_all = nothing();
    Table it_gets_nothing(count(), Sizes(count(), 2'100));
    Table it_gives_all = nothing();
    Table it_gives_nothing(count(), Sizes(count(), 2'100));
    for (std::size_t other = 0; other < count(); ++other) {
      it_gets_all[other][one] = 30'000 + other;
      it_gets_nothing[other][one] = 0;
      it_gives_all[one][other] = 102'400;
    }
    it_gives_nothing[one] = Sizes(count(), 0);
    for (Table& table : std::array{it_gets_all, it_gets_nothing, it_gives_all, it_gives_nothing}) all.push_back(table);
  }
  expect_all_exchanged(all);
}

TEST_P(SharedExchanges, ExchangeLittleBesidesALargeOwnShare) {
  std::vector<Table> all;
  for (const std::size_t others : {0, 1, 2'000}) {
    all.emplace_back(count(), Sizes(count(), others));
    for (std::size_t member = 0; member < count(); ++member) all.back()[member][member] = 300'000 + member;
    all.push_back(all.back());
    for (std::size_t member = 1; member < count(); ++member) all.back()[member][member] = 0;
  }
  expect_all_exchanged(all);
}

TEST_P(SharedExchanges, ScatterEvenAndUnevenParts) {
  run([](ShmGroup& shm_group) {
    std::uint64_t token = 0;
    const int members = shm_group.size();
    const auto count = static_cast<std::size_t>(members);
    std::vector<Sizes> all;
    for (const std::size_t rows :
         {std::size_t{0}, std::size_t{1}, count - 1, count, std::size_t{257}, std::size_t{1003}, std::size_t{40'009}}) {
      all.push_back(split(rows, members));
    }
    for (std::size_t one = 0; one < count; ++one) {
      all.emplace_back(count, 0);
      all.back()[one] = 5'003;  // one gets everything
      all.emplace_back(count, 1'500);
      all.back()[one] = 0;
      all.emplace_back(count, one);
      all.back()[one] = 9'001;
    }
    for (const Sizes& parts : all) {
      for (const bool in_place : {false, true}) {
        expect_scattered(shm_group, {++token}, parts, {.dtype = DType::kInt32}, in_place);
        expect_scattered(shm_group, {++token}, parts, {.dtype = DType::kFloat32, .prescale = 2.0}, in_place);
      }
    }
  });
}

// Rounded sums differ with their order.
TEST_P(SharedExchanges, ScatterSumsInTheOrderOfTheMembers) {
  run([](ShmGroup& shm_group) {
    const auto numbers_of = [](int member, std::size_t elements) {
      std::mt19937 random(static_cast<unsigned>(member));
      std::uniform_real_distribution<float> numbers(-1e3F, 1e3F);
      std::vector<float> data(elements);
      for (float& number : data) number = numbers(random);
      return data;
    };
    const Sizes parts = split(20'011, shm_group.size());
    const std::size_t own = parts[static_cast<std::size_t>(shm_group.position())];
    const auto begin = std::accumulate(parts.begin(), parts.begin() + shm_group.position(), std::size_t{0});
    std::vector<float> sum = numbers_of(0, sum_of(parts));
    for (int member = 1; member < shm_group.size(); ++member) {
      const std::vector<float> more = numbers_of(member, sum.size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
    }
    const std::vector<float> input = numbers_of(shm_group.position(), sum.size());
    std::vector<float> output(own);
    SharedReducescatter scatter(shm_group, 1, {parts}, reinterpret_cast<const std::byte*>(input.data()));
    scatter.deliver_to(reinterpret_cast<std::byte*>(output.data()));
    ASSERT_TRUE(await_agreement(scatter));
    scatter.finish();
    EXPECT_EQ(std::memcmp(output.data(), sum.data() + begin, own * sizeof(float)), 0);
  });
}

constexpr std::array kNumbers = {DType::kUint8,   DType::kInt8,     DType::kInt16,   DType::kInt32,  DType::kInt64,
                                 DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64};

class SharedScatterTypes : public ::testing::TestWithParam<std::tuple<int, DType>> {};
TEST_P(SharedScatterTypes, AreExact) {
  const auto [members, dtype] = GetParam();
  run_shm_group(members, options_of(1024, 2), [dtype = dtype](ShmGroup& shm_group, Fabric&) {
    std::uint64_t token = 0;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (const std::size_t rows : {1, 1003, 9'001}) {
        expect_scattered(shm_group, {++token}, split(rows, shm_group.size()), {.dtype = dtype, .op = op});
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Numbers, SharedScatterTypes,
                         ::testing::Combine(::testing::Values(2, 3, 5), ::testing::ValuesIn(kNumbers)));
INSTANTIATE_TEST_SUITE_P(Bool, SharedScatterTypes,
                         ::testing::Combine(::testing::Values(2, 3, 5), ::testing::Values(DType::kBool)));

class SharedScatterFactors : public ::testing::TestWithParam<std::tuple<int, DType>> {};
INSTANTIATE_TEST_SUITE_P(All, SharedScatterFactors,
                         ::testing::Combine(::testing::Values(2, 3, 5), ::testing::ValuesIn(kNumbers)));
TEST_P(SharedScatterFactors, ScaleBeforeAndAfter) {
  const auto [members, dtype] = GetParam();
  run_shm_group(members, options_of(1024, 2), [dtype = dtype](ShmGroup& shm_group, Fabric&) {
    std::uint64_t token = 0;
    for (const auto& [prescale, postscale] : {std::pair{2.0, 1.0}, {1.0, 2.0}, {2.0, 0.5}}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
        for (const bool in_place : {false, true}) {
          expect_scattered(shm_group, {++token}, split(3'001, shm_group.size()), {dtype, op, prescale, postscale},
                           in_place);
        }
      }
    }
  });
}

class SharedScatterAverages : public ::testing::TestWithParam<std::tuple<int, DType>> {};
TEST_P(SharedScatterAverages, AreExact) {
  const auto [members, dtype] = GetParam();
  run_shm_group(members, options_of(1024, 2), [dtype = dtype](ShmGroup& shm_group, Fabric&) {
    // Of halves and quarters too, and 4 times as much so that an integer comes out.
    expect_scattered(shm_group, {1}, split(3'001, shm_group.size()),
                     {dtype, ReduceOp::kSum, 4.0, 1.0 / shm_group.size()});
    expect_scattered(shm_group, {2}, split(3'001, shm_group.size()), {dtype, ReduceOp::kSum, 0.25, 8.0});
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedScatterAverages,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values(DType::kFloat16, DType::kBfloat16, DType::kFloat32,
                                                              DType::kFloat64)));

}  // namespace
}  // namespace ringtune
