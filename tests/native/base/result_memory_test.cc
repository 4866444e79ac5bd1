#include "base/result_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace ringtune {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class ResultMemoryTest : public testing::Test {
 protected:
  void SetUp() override { ResultMemory::trim(); }
  void TearDown() override { ResultMemory::trim(); }
};

TEST_F(ResultMemoryTest, HoldsAllItsBytes) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{100}, (kMiB / 16) - 1, kMiB / 16, kMiB + 1, 2 * kMiB, 5 * kMiB + 3, 200 * kMiB}) {
    const ResultMemory memory(bytes);
    EXPECT_EQ(memory.size(), bytes);
    EXPECT_FALSE(memory.empty());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 64, 0u);
    EXPECT_EQ(memory.end() - memory.begin(), static_cast<std::ptrdiff_t>(bytes));
    std::memset(memory.data(), 7, bytes);
    EXPECT_EQ(memory.data()[bytes - 1], std::byte{7});
  }
}

TEST_F(ResultMemoryTest, NothingIsEmpty) {
  const ResultMemory none(0);
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(ResultMemory().empty());
  EXPECT_EQ(ResultMemory::kept(), 0u);
}

TEST_F(ResultMemoryTest, TheNextOfItsSizeGetsTheSame) {
  std::byte* first = nullptr;
  {
    const ResultMemory memory(3 * kMiB);
    first = memory.data();
  }
  EXPECT_GE(ResultMemory::kept(), 3 * kMiB);
  const ResultMemory smaller(3 * kMiB - 5);
  EXPECT_EQ(smaller.data(), first);
  EXPECT_EQ(ResultMemory::kept(), 0u);
}

TEST_F(ResultMemoryTest, ASmallOneDoesNotTakeALargeOne) {
  {
    const ResultMemory large(64 * kMiB);
  }
  const std::size_t kept = ResultMemory::kept();
  const ResultMemory small(kMiB);
  EXPECT_EQ(ResultMemory::kept(), kept);
}

TEST_F(ResultMemoryTest, TwoAtATimeAreApart) {
  ResultMemory a(kMiB);
  ResultMemory b(kMiB);
  std::memset(a.data(), 1, a.size());
  std::memset(b.data(), 2, b.size());
  EXPECT_EQ(a.data()[kMiB - 1], std::byte{1});
  EXPECT_EQ(b.data()[0], std::byte{2});
}

TEST_F(ResultMemoryTest, KeepsNoMoreThanItSays) {
  {
    std::vector<ResultMemory> many;
    for (int i = 0; i < 20; ++i) many.emplace_back(16 * kMiB);
  }
  EXPECT_GT(ResultMemory::kept(), 0u);
  EXPECT_LE(ResultMemory::kept(), ResultMemory::kMostKept);
  {
    const ResultMemory larger(ResultMemory::kMostKept + 1);
  }
  EXPECT_LE(ResultMemory::kept(), ResultMemory::kMostKept);
  ResultMemory::trim();
  EXPECT_EQ(ResultMemory::kept(), 0u);
}

TEST_F(ResultMemoryTest, MovesLeaveNothingBehind) {
  ResultMemory memory(kMiB);
  std::byte* const data = memory.data();
  ResultMemory taken(std::move(memory));
  EXPECT_TRUE(memory.empty());  // NOLINT(bugprone-use-after-move): what is left is what is tested
  EXPECT_EQ(taken.data(), data);
  taken = {};
  EXPECT_TRUE(taken.empty());
  EXPECT_GE(ResultMemory::kept(), kMiB);
}

TEST_F(ResultMemoryTest, ThreadsShareIt) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      for (int round = 0; round < 200; ++round) {
        const ResultMemory memory(128 * 1024 + static_cast<std::size_t>(round));
        std::memset(memory.data(), thread, memory.size());
        ASSERT_EQ(memory.data()[memory.size() / 2], static_cast<std::byte>(thread));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ResultMemoryTest, AForkedChildMayFreeWhatItInherited) {
  auto* memory = new ResultMemory(kMiB);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    delete memory;
    const ResultMemory another(kMiB);
    another.data()[0] = std::byte{1};
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  delete memory;
}

}  // namespace
}  // namespace ringtune
