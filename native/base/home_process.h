// Which process owns a thing: fork() copies memory, but neither threads nor the right to speak for the parent.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringtune {

/// Remembers the process that made it. Any thread; costs a load and a comparison.
class HomeProcess {
 public:
  HomeProcess();
  /// False in a child that was forked since.
  [[nodiscard]] bool here() const noexcept {
    // Relaxed: written in a child before its only thread goes on.
    return made_in_ == forks_.load(std::memory_order_relaxed);
  }

 private:
  static std::atomic<std::uint32_t> forks_;  // between the first process and this one
  std::uint32_t made_in_;
};

}  // namespace ringtune
