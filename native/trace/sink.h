// Where spans go. Called only by the tracer's writer thread (and by start/stop, which synchronise with it).
#pragma once

#include <atomic>
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
  // All throw TraceIo, after having done what could be done; they may be called again.
  virtual void write(std::span<const Span> spans, const NameLookup& name_of) = 0;
  virtual void write(const RareEvent& event) = 0;
  virtual void flush() = 0;                       // what was written can be read from the file afterwards
  virtual void close(std::uint64_t dropped) = 0;  // writes the summary event; idempotent
  /// Spans that were given to write() and could not be written.
  [[nodiscard]] virtual std::uint64_t lost() const noexcept { return 0; }
};

struct PartHeader {
  int rank = 0;
  int size = 1;
  std::string host;
  std::string job;
};

struct PartOptions {
  std::string path;                // ends in ".spans"
  bool gzip = false;               // ".gz" is added to the name
  std::uint64_t rotate_bytes = 0;  // a file that has become so large (before packing) is followed by another; 0 = never
  /// Number of the next file of this rank: "x.spans" for 0, "x.1.spans" for 1 ... Counted on by the sink.
  std::shared_ptr<std::atomic<std::uint32_t>> next_file = std::make_shared<std::atomic<std::uint32_t>>(0);
};

/// One rank's part as records, in one or several files: see trace/part_layout.h. Throws TraceIo with path and reason.
[[nodiscard]] std::unique_ptr<Sink> make_record_sink(PartOptions options, const PartHeader& header);
/// The name of a file of that number.
[[nodiscard]] std::string part_path(const PartOptions& options, std::uint32_t number);
/// A Chrome-trace JSON array, valid at any moment, also after SIGKILL: what users of Horovod look at while a job runs.
/// Throws TraceIo with path and reason.
[[nodiscard]] std::unique_ptr<Sink> make_chrome_sink(const std::string& path, const PartHeader& header);
/// Gives everything to both. Errors and losses are those of the first; the second is given up at its first error.
[[nodiscard]] std::unique_ptr<Sink> make_tee_sink(std::unique_ptr<Sink> first, std::unique_ptr<Sink> second);
/// Keeps spans in memory (tests, in-process statistics); `out` must outlive the sink.
[[nodiscard]] std::unique_ptr<Sink> make_memory_sink(std::vector<Span>* out);
[[nodiscard]] std::unique_ptr<Sink> make_null_sink();

/// JSON string literal with quotes: escapes control characters, quotes, backslashes; invalid UTF-8 becomes U+FFFD.
[[nodiscard]] std::string json_quote(std::string_view text);

}  // namespace ringtune
