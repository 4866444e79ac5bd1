#include "merging/merged_text.h"

#include <utility>

#include "trace/event_text.h"
#include "trace/span.h"

namespace ringtune {
namespace {

constexpr std::string_view kBusBandwidth = "\"BUS_BANDWIDTH\"";
constexpr std::string_view kStep = "\"STEP\"";

void append_member(std::string& out, std::string_view key, std::int64_t value) {
  out += key;
  append_integer(out, value);
}

/// Step, where it is known, and the version of the knobs: how the arguments end.
void append_known(std::string& out, const SpanRow& row) {
  if (row.step >= 0) {
    append_member(out, "\"step\":", row.step);
    out += ',';
  }
  append_member(out, "\"knobs_version\":", row.knobs_version);
  out += "}},\n";
}

}  // namespace

MergedText::MergedText(SpanTexts texts, const std::vector<std::string>& stages) : texts_(std::move(texts)) {
  for (const std::string& label : stages) tracks_.push_back(",\"cat\":\"" + label + "\",\"ph\":\"");
}

void MergedText::append(std::string& out, const SpanRow& row) const {
  const auto stage = static_cast<Stage>(row.stage);
  if (row.pair != 0) {
    append_head(out, row, 'b', row.begin_ns);
    append_member(out, ",\"id2\":{\"local\":", row.pair);
    out += '}';
    append_arguments(out, row);
    append_head(out, row, 'e', row.end_ns);
    append_member(out, ",\"id2\":{\"local\":", row.pair);
    out += "}},\n";
  } else if (stage == Stage::kCounter) {
    const bool speed = name(row) == kBusBandwidth;
    append_head(out, row, 'C', row.begin_ns);
    append_member(out, speed ? ",\"args\":{\"bytes_per_s\":" : ",\"args\":{\"bytes\":", row.bytes);
    if (!speed) append_member(out, ",\"operations\":", row.batch);
    out += "}},\n";
  } else if (stage == Stage::kCycle && row.end_ns == row.begin_ns) {
    append_head(out, row, 'i', row.begin_ns);
    out += ",\"s\":\"p\",\"args\":{";
    append_known(out, row);
  } else {
    append_head(out, row, 'X', row.begin_ns);
    out += ",\"dur\":";
    append_microseconds(out, row.end_ns - row.begin_ns);
    append_arguments(out, row);
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

void MergedText::append_head(std::string& out, const SpanRow& row, char phase, std::int64_t at_ns) const {
  out += "{\"name\":";
  append_name(out, row);
  out += tracks_[row.stage];
  out += phase;
  append_member(out, "\",\"pid\":", row.rank);
  append_member(out, ",\"tid\":", row.track);
  out += ",\"ts\":";
  append_microseconds(out, at_ns);
}

/// Steps have their numbers in their names, but for pairs: Perfetto draws a track for each name of these.
void MergedText::append_name(std::string& out, const SpanRow& row) const {
  if (row.stage == static_cast<std::uint8_t>(Stage::kStep) && row.pair == 0 && row.step >= 0 && name(row) == kStep) {
    append_member(out, "\"step ", row.step);
    out += '"';
  } else {
    out += name(row);
  }
}

void MergedText::append_arguments(std::string& out, const SpanRow& row) const {
  out += ",\"args\":{";
  if (const std::string& tensor = texts_.tensors[static_cast<std::size_t>(row.tensor)];
      tensor.size() > 2) {  // longer than its two quotes
    out += "\"tensor\":";
    out += tensor;
    out += ',';
  }
  append_member(out, "\"bytes\":", row.bytes);
  out += ',';
  if (const std::string& facts = texts_.facts[static_cast<std::size_t>(row.facts)]; !facts.empty()) {
    out += facts;
    out += ',';
  }
  if (row.batch != 0) {
    append_member(out, "\"batch\":", row.batch);
    out += ',';
  }
  append_known(out, row);
}

}  // namespace ringtune
