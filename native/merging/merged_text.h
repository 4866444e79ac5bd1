// Spans and arrows as lines of a merged file. Internal to merging/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "merging/span_order.h"

namespace ringtune {

/// What codes stand for, as JSON: strings with their quotes, facts as the inside of an object.
struct SpanTexts {
  std::vector<std::string> names;
  std::vector<std::string> tensors;
  std::vector<std::string> facts;
};

/// A rank's first span of a batch.
struct BatchBegin {
  std::int64_t batch;
  std::int64_t begin_ns;
  std::int32_t rank;
};

/// Owns the texts. Any number of threads.
class MergedText {
 public:
  MergedText(SpanTexts texts, const std::vector<std::string>& stages);

  /// A span's line, or the two of a pair, with comma and newline.
  void append(std::string& out, const SpanRow& row) const;
  /// One point of the arrow of a batch; `phase` as `s","id":` begins with its letter.
  static void append_arrow(std::string& out, std::string_view phase, std::int64_t identity, const BatchBegin& at);

 private:
  void append_head(std::string& out, const SpanRow& row, char phase, std::int64_t at_ns) const;
  void append_arguments(std::string& out, const SpanRow& row) const;
  [[nodiscard]] const std::string& name(const SpanRow& row) const {
    return texts_.names[static_cast<std::size_t>(row.name)];
  }
  void append_name(std::string& out, const SpanRow& row) const;

  SpanTexts texts_;
  std::vector<std::string> tracks_;  // `,"cat":"copy_in","ph":"`, by stage
};

}  // namespace ringtune
