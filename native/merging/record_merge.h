// Sorted blocks of records on the disk, merged into one order. Internal to merging/.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "merging/span_record.h"

namespace ringtune {

/// A block of records in the order of a merged file.
struct RecordRun {
  std::int64_t offset = 0;  // of its first record within the file, in records
  std::int64_t count = 0;
  std::int64_t first_row = 0;  // of the block within its part
  std::int64_t first_ns = 0;   // begin of its first record, moved
  std::int64_t shift_ns = 0;   // by which its times are moved
  std::uint32_t part = 0;
};

/// A record at its place in the merged file.
struct PlacedRecord {
  SpanRecord record;
  std::int64_t place;  // unlike any other's; among equal records the smaller one stands first
  std::uint32_t part;
  bool paired;  // must be a pair of async events: complete events of a track must nest
};

/// Borrows the file of records, and leaves holes where it has read. Reads blocking; one thread at a time. Throws
/// std::system_error when the file cannot be read.
class RecordMerge {
 public:
  /// `parts`: how many there are. `always_paired`: bits of the stages whose spans overlap by nature.
  RecordMerge(int records_fd, std::vector<RecordRun> runs, std::uint32_t parts, std::uint32_t always_paired);
  ~RecordMerge();
  RecordMerge(const RecordMerge&) = delete;
  RecordMerge& operator=(const RecordMerge&) = delete;

  /// The next records, as many as there is room for; fewer at the end.
  [[nodiscard]] std::size_t next(std::span<PlacedRecord> out);

 private:
  class Cursor;
  using Track = std::vector<std::int64_t>;  // ends of the spans that enclose the next one, the innermost last

  void open_runs();
  void sink(std::size_t at);
  [[nodiscard]] bool badly_nested(const SpanRecord& record);

  int records_fd_;
  std::vector<RecordRun> runs_;  // the one that begins last first: what is done with is taken off the end
  std::vector<std::unique_ptr<Cursor>> heap_;
  std::uint32_t parts_;
  std::uint32_t always_paired_;
  std::unordered_map<std::int64_t, Track> tracks_;  // by rank and stage
};

}  // namespace ringtune
