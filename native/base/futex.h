// Sleeping on a 32-bit word, within a process or across processes that map the same memory.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace ringtune {

enum class FutexScope : std::uint8_t {
  kPrivate,  // all waiters live in this process (cheaper: no page look-up)
  kShared,   // the word lies in memory shared with other processes
};

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Sleeps while `word == expected`, at most until the deadline. Returns false only when the deadline passed; true after
/// a wake, a change of the word, a signal or for no reason: the caller looks at the word again. The kernel compares
/// under its own lock, so a waker that stores first and wakes afterwards is never missed. Any thread; blocks; throws
/// InvariantError when the kernel refuses (never in practice).
bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline deadline, FutexScope scope);

/// Wakes up to `count` sleepers. Any thread; does not block; costs a system call, so callers track whether one sleeps.
void futex_wake(const std::atomic<std::uint32_t>& word, int count, FutexScope scope) noexcept;

inline constexpr int kFutexWakeAll = 0x7fffffff;

}  // namespace ringtune
