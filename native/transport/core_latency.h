// Core-to-core latency. A line of memory that another core has read must come back before it can be written again. That
// takes nothing between the two threads of one core, some nanoseconds within one cache, and tens of nanoseconds between
// caches (dies, sockets). A process changes cores while it runs, so the time of writing lines that the other core has
// just read is measured again and again.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringtune {

enum class CoreLatency : std::uint8_t {
  kSameCore,     // first and second-level caches are shared: memory in use stays there
  kSharedCache,  // some cache is shared: it holds the lines that the other core's own caches have evicted
  kApart,        // no cache is shared: only lines that were written past the caches are read without their writer
};
[[nodiscard]] std::string_view name_of(CoreLatency distance) noexcept;

/// The latency, in nanoseconds, from which on two cores of this processor count as sharing no cache.
[[nodiscard]] double least_ns_apart() noexcept;
/// The distance at which writing a line that the other core has read takes so many nanoseconds.
[[nodiscard]] CoreLatency distance_of(double ns_per_line, double least_ns_apart) noexcept;

/// Lines in memory of all members, which one member writes and the others read.
struct DistanceLines {
  static constexpr std::size_t kLines = 64;
  struct alignas(64) Line {
    std::atomic<std::uint64_t> value{0};
  };
  std::array<Line, kLines> lines;
};

/// Reads them, so that the writer's next time() measures lines which this core has.
void read_lines(const DistanceLines& lines) noexcept;

/// One member's estimate of the distance: the majority of the last measurements, so that an interrupt in one of them
/// does not decide. One thread at a time.
class DistanceMeter {
 public:
  /// Writes the own lines, which the others have read since the last call, and takes the time. Does not block.
  void time(DistanceLines& own) noexcept;
  /// A measurement: nanoseconds to write one line.
  void add(double ns_per_line) noexcept;
  [[nodiscard]] CoreLatency distance() const noexcept { return distance_; }

 private:
  static constexpr std::size_t kKept = 3;
  std::array<double, kKept> last_{};
  std::size_t measured_ = 0;
  CoreLatency distance_ = CoreLatency::kSameCore;
};

}  // namespace ringtune
