// Spans as Chrome-trace events; timeline/README.md describes the part format field by field.
#include <array>
#include <charconv>

#include "base/clock.h"
#include "trace/array_file.h"
#include "trace/sink.h"

namespace ringtune {
namespace {

template <typename Integer>
void append_integer(std::string& out, Integer value) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

/// Microseconds with three decimals. Integers only: a double cannot hold nanoseconds since boot exactly for long.
void append_microseconds(std::string& out, std::int64_t ns) {
  if (ns < 0) out += '-';
  const std::uint64_t magnitude = ns < 0 ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  append_integer(out, magnitude / 1000);
  const auto rest = static_cast<unsigned>(magnitude % 1000);
  const std::array<char, 4> tail{'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                                 static_cast<char>('0' + rest % 10)};
  out.append(tail.data(), tail.size());
}

constexpr std::string_view event_name(Stage stage) {
  switch (stage) {
    case Stage::kNegotiate:
      return "NEGOTIATE_";
    case Stage::kQueue:
      return "QUEUE";
    case Stage::kCopyIn:
      return "MEMCPY_IN_FUSION_BUFFER";
    case Stage::kCommunicate:
      return "RING_";
    case Stage::kCopyOut:
      return "MEMCPY_OUT_FUSION_BUFFER";
    case Stage::kWait:
      return "WAIT";
    case Stage::kStep:
      return "STEP";
    case Stage::kRange:
      return "";  // the user's name
    case Stage::kCycle:
      return "CYCLE_START";
  }
  return "UNKNOWN";
}

class ChromeSink : public Sink {
 public:
  ChromeSink(const std::string& path, const PartHeader& header) : file_(path), rank_(header.rank) {
    write_header(header);
    file_.flush();
  }

  void write(std::span<const Span> spans, const NameLookup& name_of) override {
    for (const Span& span : spans) write_span(span, name_of);
  }

  void write(const RareEvent& event) override {
    std::string& out = file_.begin_element();
    out += "{\"name\":" + json_quote(event.name) + ",\"cat\":" + json_quote(event.category);
    out += ",\"ph\":\"i\",\"s\":\"p\",\"pid\":";
    append_integer(out, rank_);
    out += ",\"tid\":8,\"ts\":";
    append_microseconds(out, event.at_ns);
    out += ",\"args\":" + event.args_json + "}";
    file_.end_element();
  }

  void flush() override { file_.flush(); }

  void close(std::uint64_t dropped) override {
    if (closed_) return;
    closed_ = true;
    write_metadata("ringtune_end", 0,
                   "{\"recorded\":" + std::to_string(recorded_) + ",\"dropped\":" + std::to_string(dropped) + "}");
    file_.flush();
  }

 private:
  void write_metadata(std::string_view name, int tid, const std::string& args) {
    std::string& out = file_.begin_element();
    out += "{\"name\":" + json_quote(name) + ",\"ph\":\"M\",\"pid\":" + std::to_string(rank_) +
           ",\"tid\":" + std::to_string(tid) + ",\"args\":" + args + "}";
    file_.end_element();
  }

  void write_header(const PartHeader& header) {
    const std::string rank = std::to_string(header.rank);
    write_metadata("process_name", 0, "{\"name\":\"rank " + rank + "\"}");
    write_metadata("process_sort_index", 0, "{\"sort_index\":" + rank + "}");
    for (int stage = 0; stage < kStageCount; ++stage) {
      write_metadata("thread_name", stage, "{\"name\":" + json_quote(name_of(static_cast<Stage>(stage))) + "}");
      write_metadata("thread_sort_index", stage, "{\"sort_index\":" + std::to_string(stage) + "}");
    }
    const std::int64_t unix_ns = unix_now_ns();  // both clocks read one after the other: they belong together
    const std::int64_t monotonic_ns = now_ns();
    write_metadata("ringtune_part", 0,
                   "{\"format\":1,\"rank\":" + rank + ",\"size\":" + std::to_string(header.size) +
                       ",\"host\":" + json_quote(header.host) + ",\"job\":" + json_quote(header.job) + ",\"unix_ns\":" +
                       std::to_string(unix_ns) + ",\"monotonic_ns\":" + std::to_string(monotonic_ns) + "}");
  }

  void write_span(const Span& span, const NameLookup& name_of) {
    const bool instant = span.stage == Stage::kCycle;
    const std::string& quoted = quoted_name(span.name_id, name_of);
    std::string& out = file_.begin_element();
    append_name(out, span, quoted);
    out += ",\"cat\":\"";
    out += ringtune::name_of(span.stage);
    out += instant ? "\",\"ph\":\"i\",\"s\":\"p\",\"pid\":" : "\",\"ph\":\"X\",\"pid\":";
    append_integer(out, rank_);
    out += ",\"tid\":";
    append_integer(out, static_cast<int>(span.stage));
    out += ",\"ts\":";
    append_microseconds(out, span.begin_ns);
    if (!instant) {
      out += ",\"dur\":";
      append_microseconds(out, span.end_ns > span.begin_ns ? span.end_ns - span.begin_ns : 0);
    }
    append_args(out, span, quoted);
    out += '}';
    ++recorded_;
    file_.end_element();
  }

  static void append_name(std::string& out, const Span& span, const std::string& quoted) {
    out += "{\"name\":";
    if (span.stage == Stage::kRange) {
      out += quoted;
      return;
    }
    out += '"';
    out += event_name(span.stage);
    if (span.stage == Stage::kNegotiate || span.stage == Stage::kCommunicate) {
      const std::string_view operation = operation_name(span.kind);
      out += operation.empty() ? "UNKNOWN" : operation;
    }
    out += '"';
  }

  static void append_args(std::string& out, const Span& span, const std::string& quoted) {
    out += ",\"args\":{";
    if (span.stage != Stage::kRange && quoted.size() > 2) {  // longer than its two quotes
      out += "\"tensor\":";
      out += quoted;
      out += ',';
    }
    if (span.stage <= Stage::kWait || span.bytes != 0) {
      out += "\"bytes\":";
      append_integer(out, span.bytes);
      out += ',';
    }
    const std::uint8_t algorithm = span.kind >> 4;
    if (span.stage == Stage::kCommunicate && algorithm != 0 && !algorithm_name(algorithm).empty()) {
      out += "\"algorithm\":\"";
      out += algorithm_name(algorithm);
      out += "\",";
    }
    if (span.batch_id != 0) {
      out += "\"batch\":";
      append_integer(out, span.batch_id);
      out += ',';
    }
    out += "\"step\":";
    append_integer(out, span.step);
    out += ",\"epoch\":";
    append_integer(out, span.epoch);
    out += '}';
  }

  /// Names are few and repeat: each is looked up and escaped once.
  const std::string& quoted_name(std::uint32_t id, const NameLookup& name_of) {
    if (id >= quoted_.size()) quoted_.resize(id + 1);
    if (quoted_[id].empty()) quoted_[id] = json_quote(name_of(id));
    return quoted_[id];
  }

  ArrayFile file_;
  int rank_;
  std::vector<std::string> quoted_;
  std::uint64_t recorded_ = 0;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<Sink> make_chrome_sink(const std::string& path, const PartHeader& header) {
  return std::make_unique<ChromeSink>(path, header);
}

}  // namespace ringtune
