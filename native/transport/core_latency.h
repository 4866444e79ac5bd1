// How far apart two cores are, as what one writes for the other feels it. A line of memory that the other core has read
// must come back before it can be written again, and what that takes differs by more than ten times: nothing between
// the two threads of one core, some nanoseconds within one cache, tens of them between caches (dies, sockets). Where a
// process runs changes while it runs, so it is measured again and again: the time of writing lines that the other one
// has just read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringtune {

enum class CoreLatency : std::uint8_t {
  kSameCore,     // first and second-level caches are shared: memory in use stays there
  kSharedCache,  // some cache is shared: lines that the other core has let go of come from there
  kApart,        // none is: only what was written past the caches is read without waiting for its writer
};
[[nodiscard]] std::string_view name_of(CoreLatency distance) noexcept;

/// From how many nanoseconds on two cores of this processor share no cache.
[[nodiscard]] double least_ns_apart() noexcept;
/// The distance at which writing a line that the other core has read takes so many nanoseconds.
[[nodiscard]] CoreLatency distance_of(double ns_per_line, double least_ns_apart) noexcept;

/// Lines of one member that the others read, in memory of all. The writer's.
struct DistanceLines {
  static constexpr std::size_t kLines = 64;
  struct alignas(64) Line {
    std::atomic<std::uint64_t> value{0};
  };
  std::array<Line, kLines> lines;
};

/// Reads them, so that the writer's next time() is that of lines which this core has.
void read_lines(const DistanceLines& lines) noexcept;

/// One member's idea of the distance: what most of the last measurements say, so that none that an interrupt fell into
/// decides. One thread at a time.
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
