// In which step a moment was: the end of what another thread watches is seen when the next step may have begun.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace ringtune {

/// The begins of the last steps. One thread begins them, any thread asks.
class StepHistory {
 public:
  static constexpr std::uint32_t kKept = 64;

  /// Before any thread asks.
  void start(std::uint32_t first, std::int64_t at_ns) noexcept {
    first_ = first;
    begin(first, at_ns);
  }

  /// Steps begin one after another, each at the end of the one before it.
  void begin(std::uint32_t step, std::int64_t at_ns) noexcept {
    begins_[step % kKept].store(at_ns, std::memory_order_relaxed);
    now_.store(step, std::memory_order_release);
  }

  /// The step in which this moment was; of a moment before all that are kept, the oldest.
  [[nodiscard]] std::uint32_t at(std::int64_t at_ns) const noexcept {
    std::uint32_t step = now_.load(std::memory_order_acquire);
    const std::uint32_t oldest = step - first_ < kKept ? first_ : step - kKept + 1;
    while (step > oldest && begins_[step % kKept].load(std::memory_order_relaxed) > at_ns) --step;
    return step;
  }

 private:
  std::array<std::atomic<std::int64_t>, kKept> begins_{};
  std::atomic<std::uint32_t> now_{0};
  std::uint32_t first_ = 0;
};

}  // namespace ringtune
