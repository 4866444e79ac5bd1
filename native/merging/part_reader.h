// Lines of a part or a merged file as records: the quick way for what ringtune itself has written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "merging/event_line.h"
#include "merging/span_record.h"
#include "merging/text_codes.h"

namespace ringtune {

/// Takes a file piece by piece, gives its spans as records. Lines that are not of the expected shape are kept for a
/// reader that understands all of JSON (rest()). Owns what it holds; one thread; blocks nowhere.
class PartReader {
 public:
  /// `stages`: labels by number, empty where there is none (`stage_labels()` of ringtune/timeline/vocabulary.py).
  explicit PartReader(std::vector<std::string> stages);

  /// The next piece of the file; lines may go on from piece to piece.
  void feed(std::string_view text);
  /// The file has ended.
  void finish();

  /// Something of which this reader knows the form and not the meaning (a pair that does not close, a list of tensors
  /// that comes twice): nothing that it gave may be used.
  [[nodiscard]] bool odd() const noexcept { return odd_ || rest_.size() > kMostRest; }
  /// Pairs of async events among the spans.
  [[nodiscard]] std::uint64_t pairs() const noexcept { return pairs_; }
  /// How many spans were read since the last clear().
  [[nodiscard]] std::size_t pending() const noexcept { return records_.size(); }
  /// These spans, in the file's order; valid until the next call. Gives them their rows.
  [[nodiscard]] std::span<SpanRecord> records() noexcept;
  /// Forgets them.
  void clear() noexcept { records_.clear(); }
  /// Lines that are no spans of the expected shape, as they were.
  [[nodiscard]] const std::string& rest() const noexcept { return rest_; }
  /// By their codes, as they stood in the file: strings without their quotes, facts as the inside of an object.
  [[nodiscard]] const TextCodes& names() const noexcept { return names_; }
  [[nodiscard]] const TextCodes& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const TextCodes& facts() const noexcept { return facts_; }

 private:
  static constexpr std::size_t kMostRest = std::size_t{64} << 20;  // another tool's file
  struct TensorSizes {
    std::vector<std::uint32_t> tensors;
    std::vector<std::int64_t> bytes;
  };

  void take_line(std::string_view line);
  [[nodiscard]] bool take_event();
  [[nodiscard]] bool take_span();
  [[nodiscard]] bool take_counter();
  [[nodiscard]] bool take_cycle();
  [[nodiscard]] bool take_begin();
  [[nodiscard]] bool take_end();
  [[nodiscard]] bool is_flow() const noexcept;
  [[nodiscard]] bool take_negotiated(const SpanRecord& shared, const TensorSizes& list);
  [[nodiscard]] bool take_copied(const SpanRecord& shared, const TensorSizes& list);
  [[nodiscard]] const TensorSizes* list_of_event(std::uint32_t stage) const;
  [[nodiscard]] bool learn_list(std::string_view line);
  [[nodiscard]] std::optional<SpanRecord> record_of(std::uint32_t required, std::uint32_t allowed);
  [[nodiscard]] int stage_of_category() const noexcept;
  std::uint32_t facts_of_event();

  std::vector<std::string> stages_;
  std::string unfinished_;  // line that the next piece goes on
  EventLine event_;
  std::vector<SpanRecord> records_;
  std::optional<SpanRecord> open_;  // a pair's begin, whose end is the next line
  std::int64_t open_identity_ = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, TensorSizes> lists_;  // by process and number
  TextCodes names_;
  TextCodes tensors_;
  TextCodes facts_;
  std::string fact_text_;
  std::string rest_;
  std::uint64_t pairs_ = 0;
  bool odd_ = false;
};

}  // namespace ringtune
