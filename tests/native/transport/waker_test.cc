#include <poll.h>
#include <unistd.h>

#include <atomic>

#include "base/error.h"
#include "fabrics.h"
#include "pipe.h"
#include "transport/shared_waker.h"

namespace ringtune::testing_support {
namespace {

using WakerTest = LeakChecked;

TEST_F(WakerTest, ANotifyAfterTheTicketEndsTheWaitAtOnce) {
  SharedWaker waker(WakerReach::kProcess, 0);
  const std::uint32_t ticket = waker.prepare();
  waker.notify();
  waker.wait(ticket, Deadline::never());
  waker.wait(ticket, Deadline::never());  // an old ticket never blocks
}

TEST_F(WakerTest, AWaitEndsAtItsDeadlineToTheMicrosecond) {
  SharedWaker waker(WakerReach::kHost, 0);
  const Pipe pipe;
  for (const bool sockets : {false, true}) {
    if (sockets) waker.watch(pipe.read.get(), false);
    const std::int64_t begin = now_ns();
    waker.wait(waker.prepare(), Deadline::after(300'000));
    EXPECT_GE(now_ns() - begin, 300'000);
  }
  waker.unwatch(pipe.read.get());
}

/// Two threads hand a number back and forth; each sleeps until it is its turn. One lost wake-up hangs the test.
void hand_over(Waker& a, Waker& b, Bell& bell_of_a, Bell& bell_of_b, int turns) {
  std::atomic<int> turn{0};
  const auto play = [&](int parity, Waker& own, Bell& other) {
    for (int mine = parity; mine < turns; mine += 2) {
      while (true) {
        const std::uint32_t ticket = own.prepare();
        if (turn.load(std::memory_order_relaxed) == mine) break;
        own.wait(ticket, Deadline::never());
      }
      turn.store(mine + 1, std::memory_order_relaxed);
      other.notify();
    }
  };
  std::thread other([&] { play(1, b, bell_of_a); });
  play(0, a, bell_of_b);
  other.join();
  EXPECT_EQ(turn.load(), turns);
}

TEST_F(WakerTest, LosesNoWakeUpOnTheFutexOrWhileSpinning) {
  for (const std::int64_t spin_ns : {0, 2'000, 50'000}) {
    SharedWaker a(WakerReach::kProcess, spin_ns);
    SharedWaker b(WakerReach::kProcess, spin_ns);
    hand_over(a, b, a, b, 20'000);
  }
}

TEST_F(WakerTest, LosesNoWakeUpWhileWatchingSockets) {
  SharedWaker a(WakerReach::kHost, 1'000);
  SharedWaker b(WakerReach::kHost, 0);
  const Pipe pipe;
  a.watch(pipe.read.get(), false);
  b.watch(pipe.read.get(), false);
  hand_over(a, b, a, b, 20'000);
}

TEST_F(WakerTest, IsRungThroughTheMemoryOfAPeer) {
  SharedWaker a(WakerReach::kHost, 1'000);
  SharedWaker b(WakerReach::kHost, 1'000);
  PeerBell bell_of_a(a.address());
  PeerBell bell_of_b(b.address());
  hand_over(a, b, bell_of_a, bell_of_b, 20'000);
  const Pipe pipe;
  a.watch(pipe.read.get(), false);  // one side asleep in epoll, the other on the word
  hand_over(a, b, bell_of_a, bell_of_b, 20'000);
}

TEST_F(WakerTest, ABellOfAnotherWakerIsRefused) {
  SharedWaker waker(WakerReach::kHost, 0);
  WakerAddress address = waker.address();
  address.token ^= 1;
  EXPECT_THROW(PeerBell bell(address), Error);
  address = waker.address();
  address.memory_fd = 99'999;
  EXPECT_THROW(PeerBell bell(address), Error);
}

TEST_F(WakerTest, ABellOutlivesItsWaker) {
  auto waker = std::make_unique<SharedWaker>(WakerReach::kHost, 0);
  PeerBell bell(waker->address());
  waker.reset();
  bell.notify();  // no signal, no error
}

TEST_F(WakerTest, ASocketEndsTheWait) {
  SharedWaker waker(WakerReach::kProcess, 0);
  const Pipe pipe;
  waker.watch(pipe.read.get(), false);
  std::thread writer([&] { ASSERT_EQ(::write(pipe.write.get(), "x", 1), 1); });
  char byte = 0;
  pollfd entry{.fd = pipe.read.get(), .events = POLLIN, .revents = 0};
  while (::poll(&entry, 1, 0) == 0) waker.wait(waker.prepare(), Deadline::never());
  ASSERT_EQ(::read(pipe.read.get(), &byte, 1), 1);
  writer.join();
  waker.unwatch(pipe.read.get());
  waker.wait(waker.prepare(), milliseconds(1));  // futex again
}

TEST_F(WakerTest, SeveralWaitersTakeOverFromOneAnother) {
  SharedWaker waker(WakerReach::kProcess, 0);
  const Pipe pipe;
  waker.watch(pipe.read.get(), false);
  std::atomic<int> woken{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (true) {
        const std::uint32_t ticket = waker.prepare();
        char byte = 0;
        pollfd entry{.fd = pipe.read.get(), .events = POLLIN, .revents = 0};
        static std::mutex reading;
        {
          const std::lock_guard lock(reading);
          if (::poll(&entry, 1, 0) == 1 && ::read(pipe.read.get(), &byte, 1) == 1) woken.fetch_add(1);
        }
        if (done.load()) return;
        waker.wait(ticket, Deadline::never());
      }
    });
  }
  // Each byte must be read by somebody, whoever leads in epoll; the main thread watches from outside.
  for (int sent = 0; sent < 500; ++sent) {
    ASSERT_EQ(::write(pipe.write.get(), "x", 1), 1);
    const std::int64_t begin = now_ns();
    while (woken.load() <= sent) {
      ASSERT_LT(now_ns() - begin, 10'000'000'000) << "byte " << sent << " was never read";
      std::this_thread::yield();
    }
  }
  done.store(true);
  waker.notify();
  for (std::thread& thread : threads) thread.join();
  waker.unwatch(pipe.read.get());
}

TEST_F(WakerTest, AnIdleWaitCostsNoProcessorTime) {
  SharedWaker waker(WakerReach::kProcess, 10'000);
  const std::int64_t before = thread_cpu_ns();
  for (int i = 0; i < 100; ++i) waker.wait(waker.prepare(), milliseconds(2));
  EXPECT_LT(thread_cpu_ns() - before, 10'000'000) << "of 200 ms";
}

}  // namespace
}  // namespace ringtune::testing_support
