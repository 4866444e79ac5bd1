// The tensors of a batch as one event. Internal to trace/.
//
// A fused batch of a thousand tensors would be two thousand events, which say the same but for name, size and the
// moment of submission. Here it is one: names and sizes stand in a list that is written once, the event names the list.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace/event_text.h"
#include "trace/span.h"

namespace ringtune {

/// Collects `negotiate` spans that belong together. One thread.
class TensorGroup {
 public:
  /// A batch begins: until the next mark its tensors were agreed on and started when `mark` says.
  void begin(const Span& mark) { mark_ = mark; }
  [[nodiscard]] bool takes(const Span& span) const noexcept;
  void add(const Span& span) { spans_.push_back(span); }
  [[nodiscard]] bool empty() const noexcept { return spans_.empty(); }
  /// Spans that a reader makes of it: with each tensor's time in the queue.
  [[nodiscard]] std::uint64_t count() const noexcept { return spans_.size() * (started() ? 2 : 1); }
  [[nodiscard]] std::span<const Span> spans() const noexcept { return spans_; }
  void clear() noexcept { spans_.clear(); }

  /// Appends the group's event, which names list `list`.
  void append(std::string& out, int rank, std::uint32_t list) const;
  /// Appends what belongs to each of its spans by itself; with one tensor no list is needed.
  void append_single(std::string& out, int rank, const std::string& quoted_name) const;

  static constexpr std::size_t kMostTensors = 4096;  // of one event: it stays well below a block that fits in memory

 private:
  [[nodiscard]] bool started() const noexcept { return mark_.batch_id != 0 && mark_.batch_id == spans_[0].batch_id; }
  Span mark_{};
  std::vector<Span> spans_;
};

/// Lists of tensors that were written, by what they hold. Bounded: forgets all when there are too many.
class TensorLists {
 public:
  /// The number of the list; `fresh` when it has to be written.
  std::uint32_t number_of(std::span<const Span> spans, bool& fresh);
  void forget() noexcept;
  static void append(std::string& out, int rank, std::uint32_t number, std::span<const Span> spans, QuotedNames& names,
                     const NameLookup& name_of);

 private:
  struct List {
    std::uint32_t number;
    std::vector<std::uint32_t> names;
    std::vector<std::uint64_t> bytes;
  };
  static constexpr std::size_t kMostLists = 1024;
  std::unordered_map<std::uint64_t, List> lists_;
  std::uint32_t next_ = 1;
};

}  // namespace ringtune
