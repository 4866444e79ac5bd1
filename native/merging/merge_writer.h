// The spans of a merged file: sorted blocks of records become lines, on all cores.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "merging/merged_text.h"
#include "merging/record_merge.h"

namespace ringtune {

/// Where a MergeWriter reads and writes.
struct MergeFiles {
  int records = -1;             // holds the runs
  int target = -1;              // the merged file
  std::int64_t target_end = 0;  // what is written goes on from here
};

/// Borrows the files. One caller at a time, which is blocked while there is work. Throws std::system_error when a file
/// cannot be read or written; then it is of no further use.
class MergeWriter {
 public:
  /// `always_paired`: bits of the stages whose spans overlap by nature.
  MergeWriter(MergeFiles files, std::vector<RecordRun> runs, MergedText text, std::uint32_t parts,
              std::uint32_t always_paired);

  /// Writes some millions of spans with so many threads; false when there are no more.
  [[nodiscard]] bool write_some(unsigned threads);
  /// Writes the arrows that join a batch over the ranks; their numbers go on from `base`. After the spans.
  void write_arrows(std::int64_t base);
  /// Where the next byte goes.
  [[nodiscard]] std::int64_t target_end() const noexcept { return files_.target_end; }

 private:
  void work();
  void write_batches();
  [[nodiscard]] std::size_t next_batch(std::vector<PlacedRecord>& batch, std::uint64_t& number);
  [[nodiscard]] std::int64_t reserve(std::uint64_t number, std::size_t size);
  void write_at(std::int64_t offset, std::string_view text) const;

  MergeFiles files_;
  RecordMerge merge_;
  MergedText text_;
  std::vector<BatchBegin> begins_;

  // Guards merge_, begins_, and which batch is the next to be taken.
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
