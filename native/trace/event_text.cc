#include "trace/event_text.h"

#include <array>
#include <charconv>
#include <cstddef>

#include "base/dtype.h"
#include "trace/tracer.h"

namespace ringtune {
namespace {

template <typename Integer>
void append_number(std::string& out, Integer value) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), static_cast<std::size_t>(end - digits.data()));
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
      return "step ";  // and its number
    case Stage::kRange:
    case Stage::kPiece:
    case Stage::kCounter:
      return "";  // named otherwise
    case Stage::kCycle:
      return "CYCLE_START";
    case Stage::kAwait:
      return "AWAIT";
    case Stage::kCallback:
      return "CALLBACK";
    case Stage::kWaitForData:
      return "WAIT_FOR_DATA";
    case Stage::kDeviceQueue:
      return "DEVICE_QUEUE";
    case Stage::kCopyToHost:
      return "MEMCPY_IN_HOST_BUFFER";
    case Stage::kCopyToDevice:
      return "MEMCPY_OUT_HOST_BUFFER";
    case Stage::kDeviceWait:
      return "DEVICE_WAIT";
    case Stage::kCopiesIn:
    case Stage::kCopiesOut:
    case Stage::kBatch:
    case Stage::kWords:
      break;  // no events
  }
  return "UNKNOWN";
}

constexpr std::int64_t signed_number(std::uint32_t batch) {
  return batch >= kMessages ? std::int64_t{static_cast<std::int32_t>(batch)} : std::int64_t{batch};
}

constexpr bool counts_speed(const Span& span) { return span.kind == static_cast<std::uint8_t>(Count::kBusBandwidth); }

void append_name(std::string& out, const Span& span, const std::string& quoted) {
  out += "{\"name\":";
  if (span.stage == Stage::kRange) {
    out += quoted;
    return;
  }
  out += '"';
  if (span.stage == Stage::kCounter) out += counts_speed(span) ? "BUS_BANDWIDTH" : "IN_FLIGHT";
  out += span.stage == Stage::kPiece ? name_of(static_cast<Piece>(span.kind)) : event_name(span.stage);
  if (span.stage == Stage::kNegotiate || span.stage == Stage::kCommunicate) {
    const std::string_view operation = operation_name(span.kind);
    out += operation.empty() ? "UNKNOWN" : operation;
  }
  if (span.stage == Stage::kStep) append_number(out, span.step);
  out += '"';
}

std::string_view phase_of(Stage stage) {
  if (stage == Stage::kCycle) return "\",\"ph\":\"i\",\"s\":\"p\",\"pid\":";
  return stage == Stage::kCounter ? "\",\"ph\":\"C\",\"pid\":" : "\",\"ph\":\"X\",\"pid\":";
}

void append_dtype(std::string& out, std::string_view argument, std::uint8_t dtype) {
  if (dtype >= kDTypeCount) return;
  out += argument;
  out += name_of(static_cast<DType>(dtype));
  out += "\",";
}

}  // namespace

void append_integer(std::string& out, std::int64_t value) { append_number(out, value); }
void append_unsigned(std::string& out, std::uint64_t value) { append_number(out, value); }

void append_microseconds(std::string& out, std::int64_t ns) {
  if (ns < 0) out += '-';
  const std::uint64_t magnitude = ns < 0 ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  append_number(out, magnitude / 1000);
  const auto rest = static_cast<unsigned>(magnitude % 1000);
  const std::array<char, 4> tail{'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                                 static_cast<char>('0' + rest % 10)};
  out.append(tail.data(), tail.size());
}

const std::string& QuotedNames::of(std::uint32_t id, const NameLookup& name_of) {
  const std::size_t at = id & (kPlaces - 1);
  if (at >= places_.size()) places_.resize(at + 1);
  Place& place = places_[at];
  if (place.id != id || place.quoted.empty()) place = {id, json_quote(name_of(id))};
  return place.quoted;
}

void append_event_head(std::string& out, const Span& span, int rank, const std::string& quoted_name) {
  append_name(out, span, quoted_name);
  out += ",\"cat\":\"";
  out += name_of(span.stage);
  out += phase_of(span.stage);
  append_number(out, rank);
  out += ",\"tid\":";
  append_number(out, static_cast<int>(span.stage));
  out += ",\"ts\":";
  append_microseconds(out, span.begin_ns);
  if (span.stage == Stage::kCycle || span.stage == Stage::kCounter) return;
  out += ",\"dur\":";
  append_microseconds(out, span.end_ns > span.begin_ns ? span.end_ns - span.begin_ns : 0);
}

void append_facts(std::string& out, const Span& span) {
  const std::uint8_t algorithm = span.kind >> 4;
  if (span.stage == Stage::kCommunicate && algorithm != 0 && !algorithm_name(algorithm).empty()) {
    out += "\"algorithm\":\"";
    out += algorithm_name(algorithm);
    out += "\",";
  }
  append_dtype(out, "\"dtype\":\"", span.dtype);
  append_dtype(out, "\"wire\":\"", span.wire);
  if (span.process_set != 0) {
    out += "\"process_set\":";
    append_number(out, span.process_set);
    out += ',';
  }
  if (span.schedule != 0) out += "\"step_schedule\":1,";
  if (span.peer >= 0) {
    out += is_of_device(span.stage) ? "\"device\":" : "\"peer\":";
    append_number(out, span.peer);
    out += ',';
  }
}

void append_place(std::string& out, const Span& span) {
  if (span.batch_id != 0) {
    out += "\"batch\":";
    append_number(out, signed_number(span.batch_id));
    out += ',';
  }
  out += "\"step\":";
  append_number(out, span.step);
  out += ",\"knobs_version\":";
  append_number(out, span.knobs_version);
  out += "}}";
}

void append_event(std::string& out, const Span& span, int rank, const std::string& quoted_name) {
  append_event_head(out, span, rank, quoted_name);
  if (span.stage == Stage::kCounter) {
    out += counts_speed(span) ? ",\"args\":{\"bytes_per_s\":" : ",\"args\":{\"bytes\":";
    append_number(out, span.bytes);
    if (!counts_speed(span)) {
      out += ",\"operations\":";
      append_number(out, span.batch_id);
    }
    out += "}}";
    return;
  }
  out += ",\"args\":{";
  if (span.stage != Stage::kRange && quoted_name.size() > 2) {  // longer than its two quotes
    out += "\"tensor\":";
    out += quoted_name;
    out += ',';
  }
  if (span.stage <= Stage::kWait || span.bytes != 0) {
    out += "\"bytes\":";
    append_number(out, span.bytes);
    out += ',';
  }
  append_facts(out, span);
  append_place(out, span);
}

}  // namespace ringtune
