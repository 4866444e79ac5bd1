#include "merging/merged_text.h"

#include <utility>

#include "trace/event_text.h"
#include "trace/span.h"

namespace ringtune {
namespace {

constexpr std::string_view kBusBandwidth = "\"BUS_BANDWIDTH\"";

void append_member(std::string& out, std::string_view key, std::int64_t value) {
  out += key;
  append_integer(out, value);
}

/// Step, where it is known, and the version of the knobs: how the arguments end.
void append_known(std::string& out, const SpanRecord& record) {
  if (record.step >= 0) {
    append_member(out, "\"step\":", record.step);
    out += ',';
  }
  append_member(out, "\"knobs_version\":", record.knobs_version);
  out += "}},\n";
}

}  // namespace

MergedText::MergedText(std::vector<PartTexts> parts, std::vector<std::string> stages) : parts_(std::move(parts)) {
  for (const std::string& label : stages) tracks_.push_back(",\"cat\":\"" + label + "\",\"ph\":\"");
}

void MergedText::append(std::string& out, const PlacedRecord& placed) const {
  const SpanRecord& record = placed.record;
  const auto stage = static_cast<Stage>(record.stage);
  if (placed.paired) {
    append_head(out, placed, 'b', record.begin_ns);
    append_member(out, ",\"id2\":{\"local\":", placed.place);
    out += '}';
    append_arguments(out, placed);
    append_head(out, placed, 'e', record.end_ns);
    append_member(out, ",\"id2\":{\"local\":", placed.place);
    out += "}},\n";
  } else if (stage == Stage::kCounter) {
    const bool speed = name(placed) == kBusBandwidth;
    append_head(out, placed, 'C', record.begin_ns);
    append_member(out, speed ? ",\"args\":{\"bytes_per_s\":" : ",\"args\":{\"bytes\":", record.bytes);
    if (!speed) append_member(out, ",\"operations\":", record.batch);
    out += "}},\n";
  } else if (stage == Stage::kCycle && record.end_ns == record.begin_ns) {
    append_head(out, placed, 'i', record.begin_ns);
    out += ",\"s\":\"p\",\"args\":{";
    append_known(out, record);
  } else {
    append_head(out, placed, 'X', record.begin_ns);
    out += ",\"dur\":";
    append_microseconds(out, record.end_ns - record.begin_ns);
    append_arguments(out, placed);
  }
}

void MergedText::append_arrow(std::string& out, std::string_view phase, std::int64_t identity, const BatchBegin& at) {
  out += "{\"name\":\"batch\",\"cat\":\"batch\",\"ph\":\"";
  out += phase;
  append_member(out, "\",\"id\":", identity);
  append_member(out, ",\"pid\":", at.rank);
  append_member(out, ",\"tid\":", static_cast<int>(Stage::kCommunicate));
  out += ",\"ts\":";
  append_microseconds(out, at.begin_ns);
  out += "},\n";
}

void MergedText::append_head(std::string& out, const PlacedRecord& placed, char phase, std::int64_t at_ns) const {
  out += "{\"name\":";
  out += name(placed);
  out += tracks_[placed.record.stage];
  out += phase;
  append_member(out, "\",\"pid\":", placed.record.rank);
  append_member(out, ",\"tid\":", placed.record.stage);
  out += ",\"ts\":";
  append_microseconds(out, at_ns);
}

void MergedText::append_arguments(std::string& out, const PlacedRecord& placed) const {
  const SpanRecord& record = placed.record;
  const PartTexts& texts = parts_[placed.part];
  out += ",\"args\":{";
  if (const std::string& tensor = texts.tensors[record.tensor]; tensor.size() > 2) {  // longer than its two quotes
    out += "\"tensor\":";
    out += tensor;
    out += ',';
  }
  append_member(out, "\"bytes\":", record.bytes);
  out += ',';
  if (const std::string& facts = texts.facts[record.facts]; !facts.empty()) {
    out += facts;
    out += ',';
  }
  if (record.batch != 0) {
    append_member(out, "\"batch\":", record.batch);
    out += ',';
  }
  append_known(out, record);
}

}  // namespace ringtune
