// A span of any rank's part while parts are merged: what waits on the disk between reading and writing.
#pragma once

#include <cstdint>
#include <span>

namespace ringtune {

/// 64 bytes; ringtune/timeline/reading/native_lines.py reads and writes the same layout.
struct SpanRecord {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::int64_t bytes;
  std::int64_t batch;  // 0 = none; of a counter: operations
  std::int64_t step;   // -1 = not known
  std::int32_t rank;
  std::int32_t knobs_version;
  std::uint32_t name;  // this and the next two: codes of the part's texts
  std::uint32_t tensor;
  std::uint32_t facts;
  std::uint32_t stage : 8;
  std::uint32_t row : 24;  // place within the block of records in which it was read
};
static_assert(sizeof(SpanRecord) == 64);

/// Rows that fit into a record.
inline constexpr std::size_t kMostRows = std::size_t{1} << 24;

/// Whether `a` stands before `b` in a merged file: by begin, rank, stage, longest first. Equal ones stand in the order
/// in which they were read, which the caller knows.
[[nodiscard]] inline bool stands_before(const SpanRecord& a, const SpanRecord& b) noexcept {
  if (a.begin_ns != b.begin_ns) return a.begin_ns < b.begin_ns;
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.stage != b.stage) return a.stage < b.stage;
  return a.end_ns > b.end_ns;
}

/// Puts a block into the order of a merged file. Any thread; allocates.
void sort_records(std::span<SpanRecord> block);

}  // namespace ringtune
