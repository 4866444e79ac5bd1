#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "base/check.h"
#include "base/sleep.h"

namespace ringtune {
namespace {

int operation(int op, FutexScope scope) noexcept {
  return scope == FutexScope::kPrivate ? op | FUTEX_PRIVATE_FLAG : op;
}

}  // namespace

bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline deadline, FutexScope scope) {
  about_to_sleep();
  timespec until{};
  const timespec* timeout = nullptr;
  if (!deadline.is_never()) {
    // The bitset form takes an absolute CLOCK_MONOTONIC time: no drift when the wait is restarted.
    const std::int64_t when = deadline.when_ns() > 0 ? deadline.when_ns() : 0;
    until.tv_sec = static_cast<time_t>(when / 1'000'000'000);
    until.tv_nsec = static_cast<long>(when % 1'000'000'000);
    timeout = &until;
  }
  const long result = ::syscall(SYS_futex, &word, operation(FUTEX_WAIT_BITSET, scope), expected, timeout, nullptr,
                                FUTEX_BITSET_MATCH_ANY);
  if (result == 0 || errno == EAGAIN || errno == EINTR) return true;
  RINGTUNE_CHECK_EQ(errno, ETIMEDOUT, "futex wait");
  return false;
}

void futex_wake(const std::atomic<std::uint32_t>& word, int count, FutexScope scope) noexcept {
  ::syscall(SYS_futex, &word, operation(FUTEX_WAKE, scope), count, nullptr, nullptr, 0);
}

}  // namespace ringtune
