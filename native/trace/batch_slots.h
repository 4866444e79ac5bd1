// The tensors of a batch: how they lie in a ring, and as one event in a file. Internal to trace/ but for BatchRecorder.
//
// A fused batch of a thousand tensors would be two thousand spans, which say the same but for name, size and the moment
// of submission. Names and sizes repeat from step to step: they are a list, which has a number. So a batch is a head
// and four bytes a tensor; that keeps the ring in the cache, and the writer's work to a number a tensor. The copies of
// its tensors into and out of the fusion buffer are a head and four bytes each as well.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace/event_text.h"
#include "trace/span.h"

namespace ringtune {

class Tracer;

/// Names and sizes of the tensors of a batch, in its order.
struct TensorList {
  std::uint32_t number = 0;  // from 0 on
  std::vector<std::uint32_t> names;
  std::vector<std::uint64_t> bytes;
};

/// Thread-safe. Lists are never removed, so that slots in a ring may point to them.
class TensorLists {
 public:
  /// The list of these tensors; null when there are too many lists already: memory stays bounded.
  [[nodiscard]] const TensorList* find_or_add(std::span<const std::uint32_t> names,
                                              std::span<const std::uint64_t> bytes);

  static constexpr std::size_t kMostLists = 1024;

 private:
  std::shared_mutex mutex_;
  std::deque<TensorList> lists_;
  std::unordered_map<std::uint64_t, std::vector<const TensorList*>> by_hash_;
};

/// In the place of a span: numbers that belong to the head before it, whose `bytes` is the list's address. After one of
/// stage kBatch the first two are the time from the batch's agreement to its start (low and high half), the others when
/// each tensor was submitted, after the head's begin. After kCopiesIn and kCopiesOut: how long each copy took.
struct BatchWords {
  static constexpr std::size_t kMost = 9;
  std::array<std::uint32_t, kMost> words;
  std::uint16_t count;
  Stage stage;  // kWords
  std::array<std::uint8_t, 9> unused;
};
static_assert(sizeof(BatchWords) == sizeof(Span) && offsetof(BatchWords, stage) == offsetof(Span, stage));

/// Whether numbers follow this slot.
[[nodiscard]] bool is_head(const Span& slot) noexcept;
[[nodiscard]] const TensorList& list_of(const Span& head) noexcept;
/// Spans that a reader makes of a head: of a batch, its negotiation and its time in the queue, tensor by tensor.
[[nodiscard]] std::uint64_t count_spans(const Span& head) noexcept;
/// Spans that a reader makes of these.
[[nodiscard]] std::uint64_t count_spans(std::span<const Span> slots) noexcept;

/// Collects the tensors of one batch after another and records them. One thread; borrows the tracer.
class BatchRecorder {
 public:
  explicit BatchRecorder(Tracer& tracer) : tracer_(tracer) {}
  /// `about`: everything that all tensors share. Of stage kNegotiate: its end is when they were agreed on, `start_ns`
  /// when the batch began. Of stage kCopyIn or kCopyOut: the first copy began at `start_ns`, each other one when the
  /// one before it was done.
  void begin(const Span& about, std::int64_t start_ns);
  /// `at_ns`: when it was submitted, or its copy was done.
  void add(std::uint32_t name_id, std::uint64_t bytes, std::int64_t at_ns);
  /// Its copy is done now. Looks at the clock every kTimedBytes: what lies between is shared out by bytes.
  void copied(std::uint32_t name_id, std::uint64_t bytes) {
    take(name_id, bytes);
    untimed_bytes_ += bytes;
    if (untimed_bytes_ >= kTimedBytes || count_ == kMostTensors) [[unlikely]]
      share_out();
  }
  void finish();

  /// A look at the clock takes as long as copying 1 KiB does: one a tensor would be seen in the time of small ones.
  static constexpr std::uint64_t kTimedBytes = 32 << 10;
  static constexpr std::size_t kMostTensors = 4096;  // of one event: it stays well below a block that fits in memory

 private:
  [[nodiscard]] bool copies() const noexcept { return about_.stage != Stage::kNegotiate; }
  /// The next tensor. Where the batch is one that was there before, only looks that it is.
  void take(std::uint32_t name_id, std::uint64_t bytes) {
    const std::size_t at = count_++;
    if (at == 0) known_ = batch_that_begins(name_id);
    if (known_ != nullptr) {
      if (at < known_->names.size() && known_->names[at] == name_id && known_->bytes[at] == bytes) return;
      write_out(at);
    }
    names_.push_back(name_id);
    bytes_.push_back(bytes);
  }
  [[nodiscard]] const TensorList* batch_that_begins(std::uint32_t name_id) const;
  void write_out(std::size_t count);
  [[nodiscard]] const TensorList* whole_list();
  void share_out();
  void record();
  [[nodiscard]] bool pack();
  [[nodiscard]] bool pack_batch(const TensorList& list);
  [[nodiscard]] bool pack_copies(const TensorList& list);
  void begin_slots(const Span& head, const TensorList& list);
  void push(std::uint32_t word);
  void record_singly();

  Tracer& tracer_;
  Span about_{};
  std::int64_t start_ns_ = 0;
  // The tensors so far: the first `count_` of `known_`, or where that is null names_ and bytes_.
  std::size_t count_ = 0;
  const TensorList* known_ = nullptr;
  std::vector<std::uint32_t> names_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::int64_t> at_ns_;                                // of copies: up to the last look at the clock
  std::uint64_t untimed_bytes_ = 0;                                // since that look
  std::int64_t timed_ns_ = 0;                                      // that look
  std::unordered_map<std::uint32_t, const TensorList*> by_first_;  // the last batch that began with that tensor
  std::vector<Span> slots_;
  BatchWords words_{};
};

/// What a sink has read of a batch; its slots come in order, if not in one piece.
class BatchReader {
 public:
  void begin(const Span& head);
  void add(const Span& words);
  [[nodiscard]] bool complete() const noexcept { return list_ != nullptr && words_.size() == expected_; }
  [[nodiscard]] const TensorList& list() const noexcept { return *list_; }
  [[nodiscard]] std::uint64_t spans() const noexcept { return count_spans(head_); }
  /// Appends the event, which names a list by a number of the file.
  void append(std::string& out, int rank, std::uint32_t list) const;
  void clear() noexcept { list_ = nullptr; }

 private:
  void append_submitted(std::string& out) const;
  void append_copied(std::string& out) const;

  Span head_{};
  const TensorList* list_ = nullptr;
  std::size_t expected_ = 0;  // words
  std::vector<std::uint32_t> words_;
};

/// Appends the event that gives a list its number in a file.
void append_list(std::string& out, int rank, std::uint32_t number, std::span<const std::string> names,
                 std::span<const std::uint64_t> bytes);

}  // namespace ringtune
