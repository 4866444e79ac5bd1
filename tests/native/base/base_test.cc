#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/fd.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/spsc_ring.h"

namespace ringtune {
namespace {

TEST(BaseClock, DeadlinesSaturate) {
  EXPECT_TRUE(Deadline::after(std::numeric_limits<std::int64_t>::max()).is_never());
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_TRUE(Deadline::at(now_ns()).expired());
  EXPECT_EQ(Deadline::at(1).remaining_ns(), 0);
  EXPECT_EQ(earlier(Deadline::at(5), Deadline::never()).when_ns(), 5);
}

TEST(BaseDType, TableIsComplete) {
  EXPECT_EQ(name_of(DType::kBfloat16), "bfloat16");
  EXPECT_EQ(size_of(DType::kInt64), 8U);
  EXPECT_TRUE(is_floating(DType::kFloat16));
  EXPECT_FALSE(is_floating(DType::kBool));
  EXPECT_EQ(dtype_from_wire(9), DType::kBool);
  EXPECT_EQ(size_of(dtype_from_wire(14)), 16U);
  EXPECT_FALSE(is_reduced(DType::kUint16));
  EXPECT_TRUE(is_reduced(DType::kBool));
  EXPECT_THROW((void)dtype_from_wire(15), Protocol);
  EXPECT_EQ(name_of(reduce_op_from_wire(5)), "Product");
  EXPECT_THROW((void)reduce_op_from_wire(6), Protocol);
}

TEST(BaseCheck, PrintsBothOperands) {
  try {
    RINGTUNE_CHECK_EQ(1 + 1, 3, "in a test");
    FAIL();
  } catch (const InvariantError& error) {
    EXPECT_NE(std::string(error.what()).find("1 + 1 == 3 (2 against 3): in a test"), std::string::npos) << error.what();
  }
}

TEST(BaseFd, ClosesOnceAndMoves) {
  Fd first(::open("/dev/null", O_RDONLY));
  const int number = first.get();
  Fd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT: the state after the move is part of the contract
  EXPECT_EQ(second.get(), number);
  second.reset();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(BaseFutex, TimesOutAndSeesAChangedWord) {
  std::atomic<std::uint32_t> word{1};
  EXPECT_TRUE(futex_wait(word, 0, Deadline::never(), FutexScope::kPrivate));
  EXPECT_FALSE(futex_wait(word, 1, Deadline::after(1'000'000), FutexScope::kShared));
}

TEST(BaseFutex, AWakeEndsTheWait) {
  std::atomic<std::uint32_t> word{0};
  std::thread waiter([&] {
    while (word.load() == 0) (void)futex_wait(word, 0, Deadline::never(), FutexScope::kPrivate);
  });
  word.store(1);
  futex_wake(word, kFutexWakeAll, FutexScope::kPrivate);
  waiter.join();
}

TEST(BaseLog, OneLineWithLevelAndRank) {
  set_log_level(LogLevel::kWarning);  // whatever other tests left
  set_log_rank(3);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "below the level");
  log(LogLevel::kWarning, "tensor ", 7, "\nsecond line");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "ringtune warning [rank 3]: tensor 7\n    second line\n");
  set_log_rank(-1);
}

TEST(BaseSpscRing, FullAndEmpty) {
  SpscRing<int> ring(4);
  EXPECT_TRUE(ring.empty());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.try_push(i));
  EXPECT_FALSE(ring.try_push(4));
  ring.consume(3);
  EXPECT_TRUE(ring.try_push(5));
  EXPECT_EQ(ring.readable().size(), 1U);  // up to the wrap
  ring.consume(1);
  EXPECT_EQ(ring.readable().front(), 5);
  EXPECT_THROW(SpscRing<int>(3), InvariantError);
}

TEST(BaseSpscRing, KeepsOrderBetweenTwoThreads) {
  SpscRing<int> ring(64);
  constexpr int kCount = 200'000;
  std::thread producer([&] {
    for (int i = 0; i < kCount;) {
      if (ring.try_push(i)) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  int next = 0;
  bool ordered = true;
  while (next < kCount) {
    const std::span<const int> run = ring.readable();
    for (const int value : run) ordered &= value == next++;
    ring.consume(run.size());
    if (run.empty()) std::this_thread::yield();
  }
  producer.join();
  EXPECT_TRUE(ordered);
}

}  // namespace
}  // namespace ringtune
