// Members that take turns on cores, as evenly as these are many. The kernel evens out what wants to run, but it hardly
// moves threads that yield to one another, because none of them waits long: three of four ranks stay on one of two
// cores for as long as a job communicates, and everything takes half as long again. So a member on a core that has two
// more of them than another one goes there.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/cores.h"

namespace ringtune {

/// The core on which the member at `position` should be instead of its own, of those that it may use: none where it
/// would not make things even, or where another one on the same core is to go. `cores`: where each was seen last;
/// below 0: nowhere yet.
[[nodiscard]] std::optional<int> roomier_core(std::span<const int> cores, int position,
                                              const std::function<CoreSet()>& usable);

/// When it does. One thread at a time.
class AffinityBalancer {
 public:
  /// Not more often than it pays.
  [[nodiscard]] bool due(std::int64_t now_ns) const noexcept { return now_ns >= next_look_ns_; }
  /// Where to go now, by what has been seen twice in a row. Moves that the kernel undoes soon, because something else
  /// wants the core, become ever rarer.
  [[nodiscard]] std::optional<int> look(std::int64_t now_ns, std::span<const int> cores, int position,
                                        const std::function<CoreSet()>& usable);

  static constexpr std::int64_t kLookNs = 200'000;
  static constexpr std::int64_t kLeastPauseNs = 2'000'000;
  static constexpr std::int64_t kMostPauseNs = 1'024'000'000;

 private:
  static constexpr int kStays = 4;  // looks for which a move has lasted if it was not undone

  std::int64_t next_look_ns_ = 0;
  std::int64_t moved_ns_ = 0;
  std::int64_t pause_ns_ = 0;  // after the last move
  int stayed_ = 0;             // looks that found nothing to do
  std::optional<int> wanted_;  // at the last look
};

/// Where the calling thread runs; -1 when the kernel does not say.
[[nodiscard]] int current_core() noexcept;
/// Makes the calling thread run there, and leaves it free to be moved on.
void go_to_core(int core) noexcept;

}  // namespace ringtune
