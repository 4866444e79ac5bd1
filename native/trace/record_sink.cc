// Spans as records in files of one rank (trace/part_layout.h).
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "trace/batch_slots.h"
#include "trace/part_layout.h"
#include "trace/record_file.h"
#include "trace/sink.h"

namespace ringtune {
namespace {

constexpr std::size_t kBlockSlots = 2048;  // 96 KiB

class RecordSink : public Sink {
 public:
  RecordSink(PartOptions options, PartHeader header) : options_(std::move(options)), header_(std::move(header)) {
    open_next();
  }

  void write(std::span<const Span> spans, const NameLookup& name_of) override {
    for (const Span& span : spans) take(span, name_of);
    tell();
  }

  void write(const RareEvent& event) override {
    Span head{};
    head.begin_ns = event.at_ns;
    head.name_id = text_of_word(event.name);
    head.batch_id = text_of_word(event.category);
    head.bytes = event.args_json.size();
    head.stage = kEventRecord;
    block_.push_back(head);
    push_words(event.args_json);
    end_record(0);
    tell();
  }

  void flush() override {
    end_block();
    tell();
  }

  void close(std::uint64_t dropped) override {
    if (closed_) return;
    closed_ = true;
    flush_block();
    end_file(dropped);
    tell();
  }

  [[nodiscard]] std::uint64_t lost() const noexcept override { return lost_; }

 private:
  /// When it throws, the sink goes on as before.
  void open_next() {
    const std::uint32_t number =
        options_.next_file->fetch_add(1, std::memory_order_relaxed);  // one recording at a time
    const std::string path = part_path(options_, number);
    auto file = std::make_unique<RecordFile>(path, options_.gzip);
    const auto texts = std::exchange(next_text_, 1);
    try {
      file->append(bytes_of(header_of(number)));
    } catch (const TraceIo&) {
      next_text_ = texts;
      throw;
    }
    file_ = std::move(file);
    recorded_ = 0;
    next_list_ = 1;
    forget();
  }

  /// How a file begins; its first two texts are host and job.
  std::vector<Span> header_of(std::uint32_t number) {
    PartFileHeader header{};
    header.magic = kPartMagic;
    header.format = kPartFormat;
    header.record_bytes = sizeof(Span);
    header.rank = header_.rank;
    header.size = header_.size;
    header.file = number;
    header.host = next_text_;
    header.job = next_text_ + 1;
    header.unix_ns = unix_now_ns();  // both clocks read one after the other: they belong together
    header.monotonic_ns = now_ns();
    const auto slots = std::bit_cast<std::array<Span, 2>>(header);
    block_.assign(slots.begin(), slots.end());
    (void)define(header_.host);
    (void)define(header_.job);
    return std::exchange(block_, {});
  }

  void take(const Span& span, const NameLookup& name_of) {
    if (is_head(span)) {
      batch_.assign(1, span);
    } else if (span.stage == Stage::kWords) {
      batch_.push_back(span);
    } else {
      const std::uint32_t name = text_of(span.name_id, name_of);  // may push a record of its own
      block_.push_back(span);
      block_.back().name_id = name;
      end_record(1);
      return;
    }
    if (batch_.size() == 1 + word_slots(batch_.front())) end_batch(name_of);
  }

  void end_batch(const NameLookup& name_of) {
    Span& head = batch_.front();
    const TensorList& list = list_of(head);
    const std::uint64_t spans = count_spans(head);
    if (list.number >= lists_.size()) lists_.resize(list.number + 1);
    if (lists_[list.number] == 0) define(list, name_of);
    head.bytes = lists_[list.number];
    head.name_id = 0;
    block_.insert(block_.end(), batch_.begin(), batch_.end());
    batch_.clear();
    end_record(spans);
  }

  void define(const TensorList& list, const NameLookup& name_of) {
    std::string tensors;
    for (std::size_t i = 0; i < list.names.size(); ++i) {
      const std::uint32_t name = text_of(list.names[i], name_of);
      tensors.append(reinterpret_cast<const char*>(&name), sizeof(name));
      tensors.append(reinterpret_cast<const char*>(&list.bytes[i]), sizeof(std::uint64_t));
    }
    Span head{};
    head.name_id = lists_[list.number] = next_list_++;
    head.batch_id = static_cast<std::uint32_t>(list.names.size());
    head.stage = kTensorsRecord;
    block_.push_back(head);
    push_words(tensors);
  }

  std::uint32_t define(std::string_view text) {
    Span head{};
    head.name_id = next_text_++;
    head.bytes = text.size();
    head.stage = kTextRecord;
    block_.push_back(head);
    push_words(text);
    return head.name_id;
  }

  void push_words(std::string_view bytes) {
    while (!bytes.empty()) {
      BatchWords words{.words = {}, .count = 0, .stage = Stage::kWords, .unused = {}};
      const std::size_t some = std::min(bytes.size(), kWordBytes);
      std::memcpy(words.words.data(), bytes.data(), some);
      words.count = static_cast<std::uint16_t>(BatchWords::kMost);
      block_.push_back(std::bit_cast<Span>(words));
      bytes.remove_prefix(some);
    }
  }

  /// A name that is used again soon keeps its number in this file.
  std::uint32_t text_of(std::uint32_t id, const NameLookup& name_of) {
    if (id == 0) return 0;
    const std::size_t at = id & (kPlaces - 1);
    if (at >= texts_.size()) texts_.resize(at + 1);
    Place& place = texts_[at];
    if (place.id != id) {
      const std::string_view text = name_of(id);
      place = {id, text.empty() ? 0 : define(text)};
    }
    return place.text;
  }

  /// As text_of(), of the few words that name rare events.
  std::uint32_t text_of_word(const std::string& word) {
    if (word.empty()) return 0;
    if (words_.size() >= kMostWords) words_.clear();
    const auto [found, fresh] = words_.try_emplace(word, 0);
    if (fresh) found->second = define(word);
    return found->second;
  }

  void end_record(std::uint64_t spans) {
    in_block_ += spans;
    if (block_.size() >= kBlockSlots) end_block();
  }

  void end_block() {
    flush_block();
    if (options_.rotate_bytes > 0 && file_->appended_bytes() >= options_.rotate_bytes) rotate();
  }

  /// A block that does not fit is lost, and with it the texts and lists in it.
  void flush_block() {
    if (block_.empty()) return;
    try {
      file_->append(bytes_of(block_));
      recorded_ += in_block_;
    } catch (const TraceIo&) {
      lost_ += in_block_;
      forget();
      if (!error_) error_ = std::current_exception();
    }
    block_.clear();
    in_block_ = 0;
  }

  void forget() {
    texts_.clear();
    words_.clear();
    lists_.clear();
  }

  void rotate() {
    end_file(0);
    try {
      open_next();
    } catch (const TraceIo&) {
      // Goes on in the file that there is, beyond its size and behind its end, rather than losing what follows.
      if (!error_) error_ = std::current_exception();
    }
  }

  void end_file(std::uint64_t dropped) {
    Span end{};
    end.begin_ns = static_cast<std::int64_t>(recorded_);
    end.end_ns = static_cast<std::int64_t>(dropped);
    end.stage = kEndRecord;
    try {
      file_->finish(bytes_of(std::span(&end, 1)));
    } catch (const TraceIo&) {
      if (!error_) error_ = std::current_exception();
    }
  }

  /// Throws the first error since the last call.
  void tell() {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  static std::size_t word_slots(const Span& head) {
    const std::size_t words = list_of(head).names.size() + (head.stage == Stage::kBatch ? 2 : 0);
    return (words + BatchWords::kMost - 1) / BatchWords::kMost;
  }

  static std::string_view bytes_of(std::span<const Span> slots) {
    return {reinterpret_cast<const char*>(slots.data()), slots.size_bytes()};
  }

  static constexpr std::size_t kPlaces = 1 << 13;  // a power of two
  static constexpr std::size_t kMostWords = 256;
  struct Place {
    std::uint32_t id = 0;
    std::uint32_t text = 0;
  };

  PartOptions options_;
  PartHeader header_;
  std::unique_ptr<RecordFile> file_;
  std::vector<Span> block_;  // that is being collected
  std::vector<Span> batch_;  // whose words have not all come
  std::vector<Place> texts_;
  std::unordered_map<std::string, std::uint32_t> words_;
  std::vector<std::uint32_t> lists_;  // their numbers in this file, by their own; 0 = not told
  std::uint32_t next_text_ = 1;       // numbers of lost texts and lists are not given again
  std::uint32_t next_list_ = 1;
  std::uint64_t in_block_ = 0;  // spans
  std::uint64_t recorded_ = 0;  // in this file
  std::uint64_t lost_ = 0;
  std::exception_ptr error_;
  bool closed_ = false;
};

}  // namespace

std::string part_path(const PartOptions& options, std::uint32_t number) {
  std::string path = options.path;
  if (number > 0) {
    const std::size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
    const std::size_t suffix = path.rfind('.');
    const bool usual = suffix != std::string::npos && suffix > name;
    path.insert(usual ? suffix : path.size(), "." + std::to_string(number));
  }
  return options.gzip ? path + ".gz" : path;
}

std::unique_ptr<Sink> make_record_sink(PartOptions options, const PartHeader& header) {
  return std::make_unique<RecordSink>(std::move(options), header);
}

}  // namespace ringtune
