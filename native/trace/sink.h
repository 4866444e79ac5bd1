// Where spans go. Called only by the tracer's writer thread (and by start/stop, which synchronise with it).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/span.h"

namespace ringtune {

using NameLookup = std::function<std::string_view(std::uint32_t name_id)>;

struct RareEvent {
  std::string name;
  std::string category;
  std::int64_t at_ns;
  std::string args_json;  // a JSON object
};

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(std::span<const Span> spans, const NameLookup& name_of) = 0;  // throws TraceIo
  virtual void write(const RareEvent& event) = 0;                                  // throws TraceIo
  virtual void flush() = 0;                                                        // the file is valid JSON afterwards
  virtual void close(std::uint64_t dropped) = 0;  // writes the summary event; idempotent
};

struct PartHeader {
  int rank = 0;
  int size = 1;
  std::string host;
  std::string job;
};

/// One rank's part as a Chrome-trace JSON array. The file is valid JSON after every flush, also after SIGKILL.
/// Throws TraceIo with path and reason.
[[nodiscard]] std::unique_ptr<Sink> make_chrome_sink(const std::string& path, const PartHeader& header);
/// Keeps spans in memory (tests, in-process statistics); `out` must outlive the sink.
[[nodiscard]] std::unique_ptr<Sink> make_memory_sink(std::vector<Span>* out);
[[nodiscard]] std::unique_ptr<Sink> make_null_sink();

/// JSON string literal with quotes: escapes control characters, quotes, backslashes; invalid UTF-8 becomes U+FFFD.
[[nodiscard]] std::string json_quote(std::string_view text);

}  // namespace ringtune
