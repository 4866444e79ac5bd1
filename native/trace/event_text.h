// Spans as lines of Chrome-trace JSON; timeline/README.md describes the part format field by field. Internal to trace/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trace/sink.h"
#include "trace/span.h"

namespace ringtune {

void append_integer(std::string& out, std::int64_t value);
void append_unsigned(std::string& out, std::uint64_t value);
/// Microseconds with three decimals. Integers only: a double cannot hold nanoseconds since boot exactly for long.
void append_microseconds(std::string& out, std::int64_t ns);

/// Names as JSON: few at a time and often, so each is looked up and escaped once while it is in use.
class QuotedNames {
 public:
  /// Valid until the next call.
  const std::string& of(std::uint32_t id, const NameLookup& name_of);

 private:
  static constexpr std::size_t kPlaces = 1 << 13;  // a power of two
  struct Place {
    std::uint32_t id = 0;
    std::string quoted;
  };
  std::vector<Place> places_;
};

/// An event up to its arguments: name, category, phase, process, track and moment(s).
void append_event_head(std::string& out, const Span& span, int rank, const std::string& quoted_name);
/// `,"algorithm":...` and the other facts that a span carries besides its numbers; each begins with its name and ends
/// with a comma.
void append_facts(std::string& out, const Span& span);
/// `"batch":7,"step":3,"knobs_version":1}}`: how every event ends.
void append_place(std::string& out, const Span& span);
/// A span on a line of its own.
void append_event(std::string& out, const Span& span, int rank, const std::string& quoted_name);

}  // namespace ringtune
