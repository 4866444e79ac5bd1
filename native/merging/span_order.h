// The spans of a job as columns, and their order in a merged file. Internal to merging/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace ringtune {

/// A span, and what it is in the file. Name, tensor and facts are codes of the texts.
struct SpanRow {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::int64_t bytes;
  std::int64_t batch;  // 0 = none; of a counter: operations
  std::int64_t step;   // -1 = not known
  std::int32_t rank;
  std::int32_t knobs_version;
  std::int32_t name;
  std::int32_t tensor;
  std::int32_t facts;
  std::uint8_t stage;
  std::int32_t track;
  std::int64_t pair;  // number of the pair of async events that it must be; 0 = none: complete events of a track nest
};

/// Columns of ringtune/timeline/spans.py, all of one length. Borrows them.
struct SpanColumns {
  std::span<const std::int64_t> begin_ns, end_ns, bytes, batch, step;
  std::span<const std::int32_t> rank, knobs_version, name, tensor, facts;
  std::span<const std::uint8_t> stage;
  std::vector<std::int32_t> thread_tracks;  // by code of the facts: what is added to the stage; empty: nothing

  [[nodiscard]] std::size_t count() const noexcept { return begin_ns.size(); }
  [[nodiscard]] SpanRow row(std::uint32_t at) const;
  /// By begin, rank, stage, longest first; equal ones as they stand.
  [[nodiscard]] bool stands_before(std::uint32_t a, std::uint32_t b) const;
};

/// Sorts blocks of rows, then gives the rows of all of them in order. Four bytes a span. One thread at a time.
class SpanOrder {
 public:
  /// `always_paired`: bits of the stages whose spans overlap by nature. Sorts with so many threads, and blocks
  /// meanwhile.
  SpanOrder(SpanColumns columns, std::uint32_t always_paired, unsigned threads);

  /// The next spans, as many as there is room for; fewer at the end.
  [[nodiscard]] std::size_t next(std::span<SpanRow> out);
  /// How many pairs there were.
  [[nodiscard]] std::int64_t pairs() const noexcept { return pairs_; }

 private:
  using Block = std::span<const std::uint32_t>;  // what is left of it
  using Track = std::vector<std::int64_t>;       // ends of the spans that enclose the next one, the innermost last

  void sort_blocks(unsigned threads);
  void sink(std::size_t at);
  [[nodiscard]] bool badly_nested(const SpanRow& row);

  SpanColumns columns_;
  std::uint32_t always_paired_;
  std::vector<std::uint32_t> rows_;
  std::vector<Block> heap_;
  std::unordered_map<std::int64_t, Track> tracks_;  // by rank and track
  std::int64_t pairs_ = 0;
};

}  // namespace ringtune
