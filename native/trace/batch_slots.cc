#include "trace/batch_slots.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "trace/tracer.h"

namespace ringtune {
namespace {

constexpr std::int64_t kMostNs = std::numeric_limits<std::uint32_t>::max();  // that a word holds

std::uint64_t hash_of(std::span<const std::uint32_t> names, std::span<const std::uint64_t> bytes) noexcept {
  std::uint64_t hash = names.size();
  for (std::size_t i = 0; i < names.size(); ++i) {
    hash = (hash ^ names[i] ^ bytes[i] << 20) * 0x9e3779b97f4a7c15ull + (hash >> 29);
  }
  return hash;
}

/// `count` numbers with commas between them.
template <typename NumberAt>
void append_numbers(std::string& out, std::size_t count, NumberAt number_at) {
  constexpr std::size_t kLongest = 12;  // ",-4294967295"
  std::array<char, 4096> text;
  char* at = text.data();
  for (std::size_t i = 0; i < count; ++i) {
    if (text.data() + text.size() < at + kLongest) {
      out.append(text.data(), static_cast<std::size_t>(at - text.data()));
      at = text.data();
    }
    if (i > 0) *at++ = ',';
    at = std::to_chars(at, at + kLongest, std::int64_t{number_at(i)}).ptr;
  }
  out.append(text.data(), static_cast<std::size_t>(at - text.data()));
}

}  // namespace

const TensorList* TensorLists::find_or_add(std::span<const std::uint32_t> names, std::span<const std::uint64_t> bytes) {
  const std::uint64_t hash = hash_of(names, bytes);
  const auto find = [&]() -> const TensorList* {
    const auto found = by_hash_.find(hash);
    if (found == by_hash_.end()) return nullptr;
    for (const TensorList* list : found->second) {
      if (std::ranges::equal(list->names, names) && std::ranges::equal(list->bytes, bytes)) return list;
    }
    return nullptr;
  };
  {
    const std::shared_lock lock(mutex_);
    if (const TensorList* list = find()) return list;
  }
  const std::unique_lock lock(mutex_);
  if (const TensorList* list = find()) return list;  // somebody was quicker
  if (lists_.size() >= kMostLists) return nullptr;
  const auto number = static_cast<std::uint32_t>(lists_.size());
  // A deque: lists that are there do not move.
  const TensorList& list =
      lists_.emplace_back(TensorList{number, {names.begin(), names.end()}, {bytes.begin(), bytes.end()}});
  by_hash_[hash].push_back(&list);
  return &list;
}

bool is_head(const Span& slot) noexcept {
  return slot.stage == Stage::kBatch || slot.stage == Stage::kCopiesIn || slot.stage == Stage::kCopiesOut;
}

const TensorList& list_of(const Span& head) noexcept {
  return *std::bit_cast<const TensorList*>(static_cast<std::uintptr_t>(head.bytes));
}

std::uint64_t count_spans(const Span& head) noexcept {
  return list_of(head).names.size() * (head.stage == Stage::kBatch ? 2 : 1);
}

std::uint64_t count_spans(std::span<const Span> slots) noexcept {
  std::uint64_t count = 0;
  for (const Span& slot : slots) {
    if (is_head(slot)) {
      count += count_spans(slot);
    } else if (slot.stage != Stage::kWords) {
      ++count;
    }
  }
  return count;
}

void BatchRecorder::begin(const Span& about, std::int64_t start_ns) {
  about_ = about;
  start_ns_ = timed_ns_ = start_ns;
}

void BatchRecorder::add(std::uint32_t name_id, std::uint64_t bytes, std::int64_t at_ns) {
  take(name_id, bytes);
  at_ns_.push_back(at_ns);
  if (count_ < kMostTensors) return;
  record();
  if (copies()) start_ns_ = at_ns;
}

const TensorList* BatchRecorder::batch_that_begins(std::uint32_t name_id) const {
  const auto found = by_first_.find(name_id);
  return found == by_first_.end() ? nullptr : found->second;
}

/// It is another batch than the known one, of which the first `count` tensors are those so far.
void BatchRecorder::write_out(std::size_t count) {
  if (known_ == nullptr) return;
  names_.assign(known_->names.begin(), known_->names.begin() + static_cast<std::ptrdiff_t>(count));
  bytes_.assign(known_->bytes.begin(), known_->bytes.begin() + static_cast<std::ptrdiff_t>(count));
  known_ = nullptr;
}

/// Null when there are too many lists.
const TensorList* BatchRecorder::whole_list() {
  if (known_ != nullptr && known_->names.size() == count_) return known_;
  write_out(count_);
  const TensorList* const list = tracer_.tensor_lists().find_or_add(names_, bytes_);
  if (list != nullptr) by_first_[names_.front()] = list;
  return list;
}

void BatchRecorder::share_out() {
  const std::int64_t end_ns = now_ns();
  const double per_byte =
      static_cast<double>(end_ns - timed_ns_) / static_cast<double>(std::max<std::uint64_t>(1, untimed_bytes_));
  const std::vector<std::uint64_t>& sizes = known_ != nullptr ? known_->bytes : bytes_;
  std::uint64_t before = 0;
  for (std::size_t i = at_ns_.size(); i < count_; ++i) {
    before += sizes[i];
    const auto part_ns = static_cast<std::int64_t>(per_byte * static_cast<double>(before));
    at_ns_.push_back(before == untimed_bytes_ ? end_ns : timed_ns_ + part_ns);
  }
  untimed_bytes_ = 0;
  timed_ns_ = end_ns;
  if (count_ < kMostTensors) return;
  record();
  start_ns_ = end_ns;
}

void BatchRecorder::finish() {
  if (at_ns_.size() < count_) share_out();
  record();
}

void BatchRecorder::record() {
  if (count_ == 0) return;
  if (count_ > 1 && pack()) {
    tracer_.record(slots_);
  } else {
    write_out(count_);
    record_singly();
  }
  count_ = 0;
  known_ = nullptr;
  names_.clear();
  bytes_.clear();
  at_ns_.clear();
}

/// False when it does not fit: moments far apart, or more lists than are kept.
bool BatchRecorder::pack() {
  const TensorList* const list = whole_list();
  return list != nullptr && (copies() ? pack_copies(*list) : pack_batch(*list));
}

bool BatchRecorder::pack_batch(const TensorList& list) {
  const auto [first, last] = std::ranges::minmax(at_ns_);
  if (last - first > kMostNs) return false;
  Span head = about_;
  head.stage = Stage::kBatch;
  head.begin_ns = first;
  begin_slots(head, list);
  const auto queued_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(0, start_ns_ - about_.end_ns));
  push(static_cast<std::uint32_t>(queued_ns));
  push(static_cast<std::uint32_t>(queued_ns >> 32));
  for (const std::int64_t submitted_ns : at_ns_) push(static_cast<std::uint32_t>(submitted_ns - first));
  if (words_.count > 0) slots_.push_back(std::bit_cast<Span>(words_));
  return true;
}

bool BatchRecorder::pack_copies(const TensorList& list) {
  if (at_ns_.back() - start_ns_ > kMostNs) return false;
  Span head = about_;
  head.stage = about_.stage == Stage::kCopyIn ? Stage::kCopiesIn : Stage::kCopiesOut;
  head.begin_ns = start_ns_;
  head.end_ns = at_ns_.back();
  begin_slots(head, list);
  std::int64_t begin_ns = start_ns_;
  for (const std::int64_t end_ns : at_ns_) push(static_cast<std::uint32_t>(end_ns - std::exchange(begin_ns, end_ns)));
  if (words_.count > 0) slots_.push_back(std::bit_cast<Span>(words_));
  return true;
}

void BatchRecorder::begin_slots(const Span& head, const TensorList& list) {
  slots_.assign(1, head);
  slots_.front().bytes = std::bit_cast<std::uintptr_t>(&list);
  words_ = {.words = {}, .count = 0, .stage = Stage::kWords, .unused = {}};
}

void BatchRecorder::push(std::uint32_t word) {
  words_.words[words_.count++] = word;
  if (words_.count < BatchWords::kMost) return;
  slots_.push_back(std::bit_cast<Span>(words_));
  words_.count = 0;
}

void BatchRecorder::record_singly() {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    Span span = about_;
    span.bytes = bytes_[i];
    span.name_id = names_[i];
    if (copies()) {
      span.begin_ns = i == 0 ? start_ns_ : at_ns_[i - 1];
      span.end_ns = at_ns_[i];
      tracer_.record(span);
      continue;
    }
    span.begin_ns = at_ns_[i];
    Span queue = span;
    queue.stage = Stage::kQueue;
    queue.begin_ns = about_.end_ns;
    queue.end_ns = start_ns_;
    tracer_.record(std::array{span, queue});
  }
}

void BatchReader::begin(const Span& head) {
  head_ = head;
  list_ = &list_of(head);
  expected_ = list_->names.size() + (head.stage == Stage::kBatch ? 2 : 0);
  words_.clear();
}

void BatchReader::add(const Span& words) {
  const auto found = std::bit_cast<BatchWords>(words);
  words_.insert(words_.end(), found.words.begin(), found.words.begin() + found.count);
}

void BatchReader::append(std::string& out, int rank, std::uint32_t list) const {
  Span whole = head_;
  const bool batch = whole.stage == Stage::kBatch;
  if (batch) {
    whole.stage = Stage::kNegotiate;
    whole.begin_ns += words_[2];  // the first tensor's; another may have been submitted before it
  } else {
    whole.stage = whole.stage == Stage::kCopiesIn ? Stage::kCopyIn : Stage::kCopyOut;
  }
  append_event_head(out, whole, rank, {});
  out += ",\"args\":{\"tensors\":";
  append_unsigned(out, list);
  batch ? append_submitted(out) : append_copied(out);
  append_facts(out, whole);
  append_place(out, whole);
}

void BatchReader::append_submitted(std::string& out) const {
  const auto words = std::span(words_).subspan(2);
  out += ",\"submitted\":[";
  append_numbers(out, words.size(), [&](std::size_t i) {
    return i == 0 ? std::int64_t{0} : std::int64_t{words[i]} - std::int64_t{words[i - 1]};
  });
  out += "],\"queued_ns\":";
  append_unsigned(out, words_[0] | std::uint64_t{words_[1]} << 32);
  out += ',';
}

void BatchReader::append_copied(std::string& out) const {
  out += ",\"copied\":[";
  append_numbers(out, words_.size(), [&](std::size_t i) { return words_[i]; });
  out += "],";
}

void append_list(std::string& out, int rank, std::uint32_t number, std::span<const std::string> names,
                 std::span<const std::uint64_t> bytes) {
  out += "{\"name\":\"ringtune_tensors\",\"ph\":\"M\",\"pid\":";
  append_integer(out, rank);
  out += ",\"tid\":0,\"args\":{\"id\":";
  append_unsigned(out, number);
  out += ",\"names\":";
  char before = '[';
  for (const std::string& name : names) {
    out += before;
    out += name;
    before = ',';
  }
  out += "],\"bytes\":";
  before = '[';
  for (const std::uint64_t size : bytes) {
    out += before;
    append_unsigned(out, size);
    before = ',';
  }
  out += "]}}";
}

}  // namespace ringtune
