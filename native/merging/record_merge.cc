#include "merging/record_merge.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace ringtune {

/// Reads one run, some records at a time.
class RecordMerge::Cursor {
 public:
  Cursor(int fd, const RecordRun& run, std::uint32_t parts) : fd_(fd), run_(run), parts_(parts) { fill(); }

  [[nodiscard]] const SpanRecord& record() const noexcept { return buffer_[at_]; }
  [[nodiscard]] std::int64_t place() const noexcept { return (run_.first_row + record().row) * parts_ + run_.part + 1; }
  [[nodiscard]] std::uint32_t part() const noexcept { return run_.part; }
  [[nodiscard]] bool before(const Cursor& other) const noexcept {
    if (stands_before(record(), other.record())) return true;
    return !stands_before(other.record(), record()) && place() < other.place();
  }
  /// False at the run's end.
  [[nodiscard]] bool advance() {
    if (++at_ < buffer_.size()) return true;
    give_back();
    if (run_.count == 0) return false;
    fill();
    return true;
  }

 private:
  static constexpr std::int64_t kRecords = 4096;

  void fill() {
    buffer_.resize(static_cast<std::size_t>(std::min(kRecords, run_.count)));
    at_ = 0;
    auto* bytes = reinterpret_cast<char*>(buffer_.data());
    std::size_t left = buffer_.size() * sizeof(SpanRecord);
    auto offset = run_.offset * static_cast<std::int64_t>(sizeof(SpanRecord));
    while (left > 0) {
      const ssize_t got = ::pread(fd_, bytes, left, offset);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw std::system_error(got == 0 ? EIO : errno, std::generic_category());
      bytes += got;
      offset += got;
      left -= static_cast<std::size_t>(got);
    }
    for (SpanRecord& record : buffer_) {
      record.begin_ns += run_.shift_ns;
      record.end_ns += run_.shift_ns;
    }
    run_.offset += static_cast<std::int64_t>(buffer_.size());
    run_.count -= static_cast<std::int64_t>(buffer_.size());
  }

  /// What was read is read no more: its room is free for the output, and need not be written to the disk. Where a file
  /// system cannot do that, it stays until the file is closed.
  void give_back() noexcept {
    const auto size = static_cast<std::int64_t>(buffer_.size() * sizeof(SpanRecord));
    const auto end = run_.offset * static_cast<std::int64_t>(sizeof(SpanRecord));
    (void)!::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, end - size, size);
  }

  int fd_;
  RecordRun run_;  // what is left of it
  std::uint32_t parts_;
  std::vector<SpanRecord> buffer_;
  std::size_t at_ = 0;
};

RecordMerge::RecordMerge(int records_fd, std::vector<RecordRun> runs, std::uint32_t parts, std::uint32_t always_paired)
    : records_fd_(records_fd), runs_(std::move(runs)), parts_(parts), always_paired_(always_paired) {
  std::erase_if(runs_, [](const RecordRun& run) { return run.count == 0; });
  std::ranges::sort(runs_, std::ranges::greater{}, &RecordRun::first_ns);
}

RecordMerge::~RecordMerge() = default;

std::size_t RecordMerge::next(std::span<PlacedRecord> out) {
  for (std::size_t count = 0; count < out.size(); ++count) {
    open_runs();
    if (heap_.empty()) return count;
    Cursor& first = *heap_.front();
    const SpanRecord& record = first.record();
    const bool always = (always_paired_ >> record.stage & 1) != 0;
    out[count] = {record, first.place(), first.part(), always || badly_nested(record)};
    if (!first.advance()) {
      std::swap(heap_.front(), heap_.back());
      heap_.pop_back();
    }
    sink(0);
  }
  return out.size();
}

/// Opens the runs that begin before the next record; few are open at a time where parts were written in order of time.
void RecordMerge::open_runs() {
  while (!runs_.empty() && (heap_.empty() || runs_.back().first_ns <= heap_.front()->record().begin_ns)) {
    heap_.insert(heap_.begin(), std::make_unique<Cursor>(records_fd_, runs_.back(), parts_));
    runs_.pop_back();
    for (std::size_t at = heap_.size() / 2; at-- > 0;) sink(at);
  }
}

/// Restores the heap's order below one place.
void RecordMerge::sink(std::size_t at) {
  for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size() && heap_[child + 1]->before(*heap_[child])) ++child;
    if (!heap_[child]->before(*heap_[at])) return;
    std::swap(heap_[at], heap_[child]);
    at = child;
  }
}

/// As `badly_nested` of ringtune/timeline/merging/merged_file.py, span by span.
bool RecordMerge::badly_nested(const SpanRecord& record) {
  Track& enclosing = tracks_[std::int64_t{record.rank} << 8 | record.stage];
  while (!enclosing.empty() && enclosing.back() <= record.begin_ns) enclosing.pop_back();
  if (!enclosing.empty() && record.end_ns > enclosing.back()) return true;
  enclosing.push_back(record.end_ns);
  return false;
}

}  // namespace ringtune
