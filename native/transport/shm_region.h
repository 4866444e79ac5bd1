// The memory that one member of a shared-memory group owns and all map: a page of words that its peers wait for, a page
// of lines to measure their distance, then the slots.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/fd.h"
#include "transport/core_latency.h"
#include "transport/memory.h"

namespace ringtune {

/// What a member may wait for in another's region. Each has a cache line of its own.
enum class ShmCounter : std::uint8_t {
  kPosted = 0,  // pieces that the member has put into its slots in this round
  kReduced,     // pieces of which the member has reduced its part
  kTaken,       // pieces of which the member needs nothing any more
};
inline constexpr std::size_t kShmCounters = 3;
inline constexpr std::uint64_t kShmTokens = 4;  // votes of as many rounds can be read at a time

/// The first member's notice, posted with a round, about the next one.
struct DistanceNotice {
  CoreLatency distance = CoreLatency::kSameCore;
  bool measured = false;  // the others read its lines before they post that round; when all have, it writes them
};

/// One member's region: made by its owner, mapped by the others. Owns the mapping.
class ShmRegion {
 public:
  /// Throws Error when there is no memory.
  static ShmRegion create(std::size_t slot_bytes, std::size_t slots);
  /// Maps the region that process `pid` has as its descriptor `fd`. Throws Error when it is gone or has another token.
  static ShmRegion attach(int pid, int fd, std::uint64_t token);

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] std::uint64_t token() const noexcept;
  void detach_fd() noexcept { fd_.reset(); }  // the mapping keeps the memory alive

 private:
  friend class ShmGroup;
  struct alignas(64) CounterLine {
    std::atomic<std::uint64_t> value{0};
  };
  struct Header {
    std::uint64_t magic = 0;
    std::uint64_t token = 0;
    std::uint64_t slot_bytes = 0;
    std::uint64_t slots = 0;
    // The first member's count: all must be in the same slots.
    std::uint64_t least_kept = 0;
    std::uint64_t changes_owner_in_one_core = 0;
    // One cache line: token and notice of a round are written before its counter, and read after it.
    struct alignas(64) {
      std::atomic<std::uint64_t> posted{0};
      std::array<std::atomic<std::uint64_t>, kShmTokens> tokens{};
      std::array<std::atomic<DistanceNotice>, kShmTokens> notices{};
    } round;
    std::array<CounterLine, kShmCounters - 1> counters;
    // Only this rank's thread sleeps here. Peers look whether it sleeps, and whether it waits for their last
    // publication.
    struct alignas(64) {
      std::atomic<std::uint32_t> sleeps{0};
      std::atomic<std::uint32_t> bell{0};
      std::atomic<std::uint64_t> value{0};
    } waiter;
    // The core on which the member runs.
    struct alignas(64) {
      std::atomic<std::int32_t> core{-1};
    } place;
  };

  ShmRegion(Fd fd, std::size_t bytes);
  [[nodiscard]] Header& header() const noexcept;
  [[nodiscard]] DistanceLines& distance_lines() const noexcept;
  [[nodiscard]] std::byte* slot(std::size_t index) const noexcept;
  [[nodiscard]] static std::size_t bytes_before_slots() noexcept;

  Fd fd_;
  Mapping memory_;
};

}  // namespace ringtune
