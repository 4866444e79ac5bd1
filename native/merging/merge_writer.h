// The spans of a merged file: columns become sorted lines, on all cores.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "merging/merged_text.h"
#include "merging/span_order.h"

namespace ringtune {

/// Where a MergeWriter writes.
struct MergeTarget {
  int file = -1;
  std::int64_t end = 0;  // what is written goes on from here
};

/// Borrows file and columns. One caller at a time, which is blocked while there is work. Throws std::system_error when
/// the file cannot be written; then it is of no further use.
class MergeWriter {
 public:
  /// `always_paired`: bits of the stages whose spans overlap by nature.
  MergeWriter(MergeTarget target, const SpanColumns& columns, MergedText text, std::uint32_t always_paired);

  /// Writes some millions of spans with so many threads; false when there are no more.
  [[nodiscard]] bool write_some(unsigned threads);
  /// Writes the arrows that join a batch over the ranks; after the spans.
  void write_arrows();
  /// Where the next byte goes.
  [[nodiscard]] std::int64_t target_end() const noexcept { return target_.end; }

 private:
  void work();
  void write_batches();
  [[nodiscard]] std::size_t next_batch(std::vector<SpanRow>& batch, std::uint64_t& number);
  [[nodiscard]] std::int64_t reserve(std::uint64_t number, std::size_t size);
  void write_at(std::int64_t offset, std::string_view text) const;

  MergeTarget target_;
  SpanOrder order_;
  MergedText text_;
  std::vector<BatchBegin> begins_;

  // Guards order_, begins_, and which batch is the next to be taken.
  std::mutex merging_;
  std::uint64_t taken_ = 0;
  std::uint64_t until_ = 0;
  bool ended_ = false;
  // Guards where batches go: each behind the one before it.
  std::mutex placing_;
  std::condition_variable placed_;
  std::uint64_t placed_count_ = 0;
  std::exception_ptr error_;
};

}  // namespace ringtune
