#include "merging/part_reader.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "trace/span.h"

namespace ringtune {
namespace {

constexpr std::uint32_t kPlace = bits(Field::kName, Field::kCategory, Field::kPhase, Field::kProcess, Field::kTrack,
                                      Field::kMoment, Field::kArguments);
constexpr std::uint32_t kFacts = bits(Field::kAlgorithm, Field::kDType, Field::kWire, Field::kProcessSet,
                                      Field::kSchedule, Field::kPeer, Field::kDevice);
constexpr std::uint32_t kKnown = kFacts | bits(Field::kBatch, Field::kStep, Field::kKnobsVersion);
constexpr std::uint32_t kPlain = kKnown | bits(Field::kTensor, Field::kBytes);
constexpr std::uint32_t kGroup = bits(Field::kList, Field::kSubmitted, Field::kCopied, Field::kQueued);
constexpr std::uint32_t kPairIdentity = bits(Field::kIdentity, Field::kLocalIdentity);

constexpr bool is(std::uint32_t stage, Stage which) noexcept { return stage == static_cast<std::uint32_t>(which); }

bool fits_32_bits(std::int64_t value) noexcept { return std::abs(value) <= std::numeric_limits<std::int32_t>::max(); }

bool skip_word(std::string_view& left, std::string_view word) noexcept {
  if (!left.starts_with(word)) return false;
  left.remove_prefix(word.size());
  return true;
}

}  // namespace

PartReader::PartReader(std::vector<std::string> stages) : stages_(std::move(stages)) {
  (void)tensors_.of("");  // "none" has the code 0, in every table of texts
  (void)facts_.of("");
}

void PartReader::feed(std::string_view text) {
  std::size_t end = text.find('\n');
  if (!unfinished_.empty()) {
    unfinished_ += text.substr(0, end);
    if (end == std::string_view::npos) return;
    take_line(std::exchange(unfinished_, {}));
    text.remove_prefix(end + 1);
    end = text.find('\n');
  }
  for (; end != std::string_view::npos && !odd(); end = text.find('\n')) {
    take_line(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  unfinished_ = text;
  odd_ = odd_ || records_.size() > kMostRows;
}

void PartReader::finish() {
  if (!unfinished_.empty()) take_line(std::exchange(unfinished_, {}));
  odd_ = odd_ || open_.has_value();
}

std::span<SpanRecord> PartReader::records() noexcept {
  for (std::size_t i = 0; i < records_.size(); ++i) records_[i].row = i & (kMostRows - 1);
  return records_;
}

void PartReader::take_line(std::string_view line) {
  std::string_view event = line;
  if (event.ends_with(',')) event.remove_suffix(1);
  if (parse_event(event, event_) && take_event()) return;
  if (!learn_list(event)) odd_ = true;
  rest_ += line;
  rest_ += '\n';
}

bool PartReader::take_event() {
  const std::string_view phase = event_.text(Field::kPhase);
  if (phase.size() != 1) return false;
  switch (phase.front()) {
    case 'X':
      return take_span();
    case 'C':
      return take_counter();
    case 'i':
      return take_cycle();
    case 'b':
      return take_begin();
    case 'e':
      return take_end();
    default:
      return is_flow();
  }
}

/// What all spans have in common; nothing when the line lacks something or says more than it should.
std::optional<SpanRecord> PartReader::record_of(std::uint32_t required, std::uint32_t allowed) {
  const int stage = stage_of_category();
  const std::int64_t rank = event_.number(Field::kProcess, 0);
  const std::int64_t knobs_version = event_.number(Field::kKnobsVersion, 0);
  const bool whole = (event_.seen & required) == required && (event_.seen & ~(required | allowed)) == 0;
  if (!whole || stage < 0 || !fits_32_bits(rank) || !fits_32_bits(knobs_version)) return std::nullopt;
  SpanRecord record{};
  record.begin_ns = record.end_ns = event_.number(Field::kMoment, 0);
  record.bytes = event_.number(Field::kBytes, 0);
  record.batch = event_.number(Field::kBatch, 0);
  record.step = event_.number(Field::kStep, -1);
  record.rank = static_cast<std::int32_t>(rank);
  record.knobs_version = static_cast<std::int32_t>(knobs_version);
  record.name = names_.of(event_.text(Field::kName));
  record.tensor = tensors_.of(event_.text(Field::kTensor));
  record.facts = (event_.seen & kFacts) == 0 ? 0 : facts_of_event();
  record.stage = static_cast<std::uint8_t>(stage);
  return record;
}

int PartReader::stage_of_category() const noexcept {
  const std::string_view category = event_.text(Field::kCategory);
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (stages_[stage] == category) return category.empty() ? -1 : static_cast<int>(stage);
  }
  return -1;
}

std::uint32_t PartReader::facts_of_event() {
  fact_text_.clear();
  for (const Field field : {Field::kAlgorithm, Field::kDType, Field::kWire, Field::kProcessSet, Field::kSchedule,
                            Field::kPeer, Field::kDevice}) {
    if (!event_.has(field)) continue;
    if (!fact_text_.empty()) fact_text_ += ',';
    const bool quoted = field == Field::kAlgorithm || field == Field::kDType || field == Field::kWire;
    fact_text_ += fact_key(field);
    if (quoted) fact_text_ += '"';
    fact_text_ += event_.text(field);
    if (quoted) fact_text_ += '"';
  }
  return facts_.of(fact_text_);
}

bool PartReader::take_span() {
  const std::uint32_t group = event_.seen & kGroup;
  const auto record = record_of(kPlace | bit(Field::kDuration), group != 0 ? kKnown | group : kPlain);
  const std::int64_t duration_ns = event_.number(Field::kDuration, 0);
  if (!record || duration_ns < 0) return false;
  SpanRecord span = *record;
  span.end_ns += duration_ns;
  if (group == 0) {
    records_.push_back(span);
    return true;
  }
  const TensorSizes* const list = list_of_event(span.stage);
  if (list == nullptr) return false;
  const std::size_t before = records_.size();
  const bool whole = is(span.stage, Stage::kNegotiate) ? take_negotiated(span, *list) : take_copied(span, *list);
  if (!whole) records_.resize(before);
  return whole;
}

/// The list that the event of a batch names; null when the event is none that the recorder writes.
const PartReader::TensorSizes* PartReader::list_of_event(std::uint32_t stage) const {
  const bool negotiated = is(stage, Stage::kNegotiate);
  const bool copied = is(stage, Stage::kCopyIn) || is(stage, Stage::kCopyOut);
  const std::uint32_t group = event_.seen & kGroup & ~(negotiated ? bit(Field::kQueued) : 0);
  const std::uint32_t numbers = negotiated ? bit(Field::kSubmitted) : bit(Field::kCopied);
  if ((!negotiated && !copied) || group != (bit(Field::kList) | numbers)) return nullptr;
  const auto found = lists_.find({event_.number(Field::kProcess, 0), event_.number(Field::kList, 0)});
  return found == lists_.end() ? nullptr : &found->second;
}

/// One `negotiate` and, when the batch ran, one `queue` span a tensor (ringtune/timeline/reading/groups.py says how).
bool PartReader::take_negotiated(const SpanRecord& shared, const TensorSizes& list) {
  std::string_view left = event_.text(Field::kSubmitted);
  const std::int64_t queued_ns = event_.number(Field::kQueued, -1);
  std::int64_t submitted_ns = shared.begin_ns;
  for (std::size_t i = 0; i < list.tensors.size(); ++i) {
    std::int64_t later_ns = 0;
    if (!take_number(left, later_ns) || std::abs(later_ns) > kLargestNs) return false;
    submitted_ns += i == 0 ? 0 : later_ns;
    if (std::abs(submitted_ns) > kLargestNs || queued_ns > kLargestNs) return false;
    SpanRecord span = shared;
    span.tensor = list.tensors[i];
    span.bytes = list.bytes[i];
    span.begin_ns = submitted_ns;
    span.end_ns = std::max(shared.end_ns, submitted_ns);
    records_.push_back(span);
    if (queued_ns < 0) continue;
    span.name = names_.of("QUEUE");
    span.stage = static_cast<std::uint8_t>(Stage::kQueue);
    span.begin_ns = span.end_ns;
    span.end_ns += queued_ns;
    records_.push_back(span);
  }
  return left.empty();
}

/// One span a tensor, each from where the one before ended.
bool PartReader::take_copied(const SpanRecord& shared, const TensorSizes& list) {
  std::string_view left = event_.text(Field::kCopied);
  std::int64_t at_ns = shared.begin_ns;
  for (std::size_t i = 0; i < list.tensors.size(); ++i) {
    std::int64_t took_ns = 0;
    if (!take_number(left, took_ns) || took_ns < 0 || took_ns > kLargestNs) return false;
    SpanRecord span = shared;
    span.tensor = list.tensors[i];
    span.bytes = list.bytes[i];
    span.begin_ns = at_ns;
    span.end_ns = at_ns += took_ns;
    if (at_ns > kLargestNs) return false;
    records_.push_back(span);
  }
  return left.empty();
}

bool PartReader::take_counter() {
  constexpr std::uint32_t kValue = bits(Field::kBytes, Field::kSpeed);
  const std::uint32_t value = event_.seen & kValue;
  auto record = record_of(kPlace, kValue | bit(Field::kOperations));
  if (!record || !is(record->stage, Stage::kCounter) || value == 0 || value == kValue) return false;
  record->bytes = event_.number(Field::kBytes, event_.number(Field::kSpeed, 0));
  record->batch = event_.number(Field::kOperations, 0);
  records_.push_back(*record);
  return true;
}

bool PartReader::take_cycle() {
  const auto record = record_of(kPlace, kPlain | bit(Field::kScope));
  if (!record || !is(record->stage, Stage::kCycle)) return false;
  records_.push_back(*record);
  return true;
}

bool PartReader::take_begin() {
  const std::uint32_t identity = event_.seen & kPairIdentity;
  const auto record = record_of(kPlace, kPlain | kPairIdentity);
  if (!record || identity == 0 || identity == kPairIdentity) return false;
  odd_ = odd_ || open_.has_value();
  open_ = record;
  open_identity_ = event_.number(Field::kIdentity, event_.number(Field::kLocalIdentity, 0));
  return true;
}

/// The end of the pair that the line before began: so ringtune writes them.
bool PartReader::take_end() {
  const std::int64_t identity = event_.number(Field::kIdentity, event_.number(Field::kLocalIdentity, 0));
  const std::int64_t end_ns = event_.number(Field::kMoment, 0);
  const bool matches = open_ && (event_.seen & kPairIdentity) != 0 && event_.has(Field::kMoment) &&
                       !event_.has(Field::kArguments) && identity == open_identity_ && end_ns >= open_->begin_ns &&
                       event_.number(Field::kProcess, -1) == open_->rank &&
                       stage_of_category() == static_cast<int>(open_->stage);
  if (!matches) {
    odd_ = true;
    return true;
  }
  open_->end_ns = end_ns;
  records_.push_back(*open_);
  open_.reset();
  ++pairs_;
  return true;
}

/// Arrows between batches hold nothing that the spans do not.
bool PartReader::is_flow() const noexcept {
  const char phase = event_.text(Field::kPhase).front();
  return (phase == 's' || phase == 't' || phase == 'f') && event_.text(Field::kCategory) == "batch";
}

/// Takes the line's list of tensors if it is one; false when its number was given before.
bool PartReader::learn_list(std::string_view line) {
  std::int64_t process = 0;
  std::int64_t number = 0;
  const bool is_list = skip_word(line, "{\"name\":\"ringtune_tensors\",\"ph\":\"M\",\"pid\":") &&
                       take_number(line, process) && skip_word(line, "\"tid\":0,\"args\":{\"id\":") &&
                       take_number(line, number) && skip_word(line, "\"names\":[") && line.ends_with("]}}");
  if (!is_list) return true;
  line.remove_suffix(3);
  TensorSizes list;
  do {
    std::string_view name;
    if (!take_string(line, name)) return true;
    list.tensors.push_back(tensors_.of(name));
  } while (skip_word(line, ","));
  if (!skip_word(line, "],\"bytes\":[")) return true;
  for (std::int64_t size = 0; !line.empty(); list.bytes.push_back(size)) {
    if (!take_number(line, size)) return true;
  }
  if (list.bytes.size() != list.tensors.size()) return true;
  return lists_.emplace(std::pair(process, number), std::move(list)).second;
}

}  // namespace ringtune
