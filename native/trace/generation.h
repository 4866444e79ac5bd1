// One set of ranks of an elastic job, and where it goes on in the timeline that the sets before it have begun.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtune {

struct Generation {
  std::uint32_t number = 0;  // from 1; 0: a job with fixed ranks, of which all else here says nothing
  std::string job = {};      // the name that all generations share
  /// The number under which each rank stands in the timeline: its process keeps it, whatever its rank becomes.
  std::vector<int> tracks = {};
  std::uint32_t first_step = 0;
  std::uint32_t first_batch = 0;  // is added to the numbers of batches
  /// The clock of the job's timeline minus rank 0's, right within the error; an error below 0: not known.
  std::int64_t clock_offset_ns = 0;
  std::int64_t clock_error_ns = 0;

  [[nodiscard]] int track(int rank) const noexcept {
    const auto index = static_cast<std::size_t>(rank);
    return rank >= 0 && index < tracks.size() ? tracks[index] : rank;
  }
};

/// How far a runtime has come in its job's timeline, for the generation that follows.
struct GenerationProgress {
  std::uint32_t step = 0;   // that is under way
  std::uint32_t batch = 0;  // the last one, by its number in the timeline
  /// The clock of the job's timeline minus this host's when it was last looked at; an error below 0: it was not.
  std::int64_t clock_offset_ns = 0;
  std::int64_t clock_error_ns = -1;
};

}  // namespace ringtune
