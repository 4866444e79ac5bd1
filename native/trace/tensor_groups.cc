#include "trace/tensor_groups.h"

#include <algorithm>

namespace ringtune {

bool TensorGroup::takes(const Span& span) const noexcept {
  if (span.stage != Stage::kNegotiate || spans_.size() >= kMostTensors) return false;
  if (spans_.empty()) return true;
  const Span& first = spans_.front();
  return span.batch_id == first.batch_id && span.end_ns == first.end_ns && span.step == first.step &&
         span.epoch == first.epoch && span.kind == first.kind && span.dtype == first.dtype &&
         span.process_set == first.process_set && span.plan == first.plan && span.peer == first.peer;
}

void TensorGroup::append(std::string& out, int rank, std::uint32_t list) const {
  Span whole = spans_.front();
  append_event_head(out, whole, rank, {});
  out += ",\"args\":{\"tensors\":";
  append_unsigned(out, list);
  // Distances to the one before: small numbers.
  out += ",\"submitted\":[0";
  for (std::size_t i = 1; i < spans_.size(); ++i) {
    out += ',';
    append_integer(out, spans_[i].begin_ns - spans_[i - 1].begin_ns);
  }
  out += "],";
  if (started()) {
    out += "\"queued_ns\":";
    append_integer(out, mark_.end_ns - mark_.begin_ns);
    out += ',';
  }
  append_facts(out, whole);
  append_place(out, whole);
}

void TensorGroup::append_single(std::string& out, int rank, const std::string& quoted_name) const {
  const Span& span = spans_.front();
  append_event(out, span, rank, quoted_name);
  if (!started()) return;
  Span queue = span;
  queue.stage = Stage::kQueue;
  queue.begin_ns = mark_.begin_ns;
  queue.end_ns = mark_.end_ns;
  out += ",\n";
  append_event(out, queue, rank, quoted_name);
}

std::uint32_t TensorLists::number_of(std::span<const Span> spans, bool& fresh) {
  std::uint64_t hash = spans.size();
  for (const Span& span : spans) hash = (hash ^ span.name_id ^ span.bytes << 20) * 0x9e3779b97f4a7c15ull + (hash >> 29);
  const auto found = lists_.find(hash);
  if (found != lists_.end()) {
    const List& list = found->second;
    const bool same = list.names.size() == spans.size() &&
                      std::equal(spans.begin(), spans.end(), list.names.begin(),
                                 [](const Span& span, std::uint32_t name) { return span.name_id == name; }) &&
                      std::equal(spans.begin(), spans.end(), list.bytes.begin(),
                                 [](const Span& span, std::uint64_t bytes) { return span.bytes == bytes; });
    if (same) {
      fresh = false;
      return list.number;
    }
  }
  if (lists_.size() >= kMostLists) lists_.clear();
  List list{next_++, {}, {}};
  for (const Span& span : spans) {
    list.names.push_back(span.name_id);
    list.bytes.push_back(span.bytes);
  }
  fresh = true;
  return lists_.insert_or_assign(hash, std::move(list)).first->second.number;
}

void TensorLists::forget() noexcept { lists_.clear(); }

void TensorLists::append(std::string& out, int rank, std::uint32_t number, std::span<const Span> spans,
                         QuotedNames& names, const NameLookup& name_of) {
  out += "{\"name\":\"ringtune_tensors\",\"ph\":\"M\",\"pid\":";
  append_integer(out, rank);
  out += ",\"tid\":0,\"args\":{\"id\":";
  append_unsigned(out, number);
  out += ",\"names\":[";
  for (const Span& span : spans) {
    if (&span != spans.data()) out += ',';
    out += names.of(span.name_id, name_of);
  }
  out += "],\"bytes\":[";
  for (const Span& span : spans) {
    if (&span != spans.data()) out += ',';
    append_unsigned(out, span.bytes);
  }
  out += "]}}";
}

}  // namespace ringtune
