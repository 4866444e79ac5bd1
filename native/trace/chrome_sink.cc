// Spans as Chrome-trace events in files of one rank; timeline/README.md describes the part format field by field.
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "trace/batch_slots.h"
#include "trace/element_file.h"
#include "trace/event_text.h"
#include "trace/sink.h"

namespace ringtune {
namespace {

class ChromeSink : public Sink {
 public:
  ChromeSink(ChromeOptions options, PartHeader header) : options_(std::move(options)), header_(std::move(header)) {
    open_next();
  }

  void write(std::span<const Span> spans, const NameLookup& name_of) override {
    name_of_ = &name_of;
    for (const Span& span : spans) take(span);
    tell();
  }

  void write(const RareEvent& event) override {
    std::string& out = file_->begin_element();
    out += "{\"name\":" + json_quote(event.name) + ",\"cat\":" + json_quote(event.category);
    out += ",\"ph\":\"i\",\"s\":\"p\",\"pid\":";
    append_integer(out, header_.rank);
    out += ",\"tid\":8,\"ts\":";
    append_microseconds(out, event.at_ns);
    out += ",\"args\":" + event.args_json + "}";
    end_element(0);
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
  void open_next() {
    number_ = options_.next_file->fetch_add(1, std::memory_order_relaxed);  // one recording at a time
    const std::string path = part_path(options_, number_);
    file_ = options_.gzip ? open_gzip_file(path) : open_array_file(path);
    recorded_ = 0;
    numbers_.clear();
    write_header();
    file_->flush();
  }

  void take(const Span& span) {
    if (is_head(span)) {
      batch_.begin(span);
    } else if (span.stage == Stage::kWords) {
      batch_.add(span);
      if (batch_.complete()) end_batch();
    } else {
      append_event(file_->begin_element(), span, header_.rank, names_.of(span.name_id, *name_of_));
      end_element(1);
    }
  }

  void end_batch() {
    const TensorList& list = batch_.list();
    if (list.number >= numbers_.size()) numbers_.resize(list.number + 1);
    if (numbers_[list.number] == 0) write_list(list);
    batch_.append(file_->begin_element(), header_.rank, numbers_[list.number]);
    const std::uint64_t spans = batch_.spans();
    batch_.clear();
    end_element(spans);
  }

  /// Gives the list a number that no other has had in this recording.
  void write_list(const TensorList& list) {
    std::vector<std::string> names;
    for (const std::uint32_t name : list.names) names.push_back(names_.of(name, *name_of_));
    numbers_[list.number] = next_number_++;
    append_list(file_->begin_element(), header_.rank, numbers_[list.number], names, list.bytes);
  }

  void end_element(std::uint64_t spans) {
    in_block_ += spans;
    if (file_->block_full()) end_block();
  }

  void end_block() {
    flush_block();
    if (options_.rotate_bytes > 0 && file_->text_bytes() >= options_.rotate_bytes) rotate();
  }

  /// A block that does not fit is lost, and with it the lists in it.
  void flush_block() {
    try {
      file_->flush();
      recorded_ += in_block_;
    } catch (const TraceIo&) {
      lost_ += in_block_;
      numbers_.clear();
      if (!error_) error_ = std::current_exception();
    }
    in_block_ = 0;
  }

  void rotate() {
    end_file(0);
    try {
      open_next();
    } catch (const TraceIo&) {
      // Goes on in the file that there is, beyond its size, rather than losing what follows.
      if (!error_) error_ = std::current_exception();
    }
  }

  void end_file(std::uint64_t dropped) {
    write_metadata("ringtune_end", 0,
                   "{\"recorded\":" + std::to_string(recorded_) + ",\"dropped\":" + std::to_string(dropped) + "}");
    try {
      file_->finish();
    } catch (const TraceIo&) {
      if (!error_) error_ = std::current_exception();
    }
  }

  /// Throws the first error since the last call.
  void tell() {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  void write_metadata(std::string_view name, int tid, const std::string& args) {
    file_->begin_element() += "{\"name\":" + json_quote(name) +
                              ",\"ph\":\"M\",\"pid\":" + std::to_string(header_.rank) +
                              ",\"tid\":" + std::to_string(tid) + ",\"args\":" + args + "}";
  }

  void write_header() {
    const std::string rank = std::to_string(header_.rank);
    write_metadata("process_name", 0, "{\"name\":\"rank " + rank + "\"}");
    write_metadata("process_sort_index", 0, "{\"sort_index\":" + rank + "}");
    for (const Stage stage : kStages) {
      const int track = static_cast<int>(stage);
      write_metadata("thread_name", track, "{\"name\":" + json_quote(name_of(stage)) + "}");
      write_metadata("thread_sort_index", track, "{\"sort_index\":" + std::to_string(track) + "}");
    }
    const std::int64_t unix_ns = unix_now_ns();  // both clocks read one after the other: they belong together
    const std::int64_t monotonic_ns = now_ns();
    write_metadata("ringtune_part", 0,
                   "{\"format\":1,\"rank\":" + rank + ",\"size\":" + std::to_string(header_.size) +
                       ",\"host\":" + json_quote(header_.host) + ",\"job\":" + json_quote(header_.job) +
                       ",\"unix_ns\":" + std::to_string(unix_ns) + ",\"monotonic_ns\":" + std::to_string(monotonic_ns) +
                       ",\"file\":" + std::to_string(number_) +
                       // Horovod's word: the moment of ts 0, from which its users count.
                       ",\"start_time_since_epoch_in_micros\":" + std::to_string((unix_ns - monotonic_ns) / 1000) +
                       "}");
  }

  ChromeOptions options_;
  PartHeader header_;
  std::uint32_t number_ = 0;
  std::unique_ptr<ElementFile> file_;
  const NameLookup* name_of_ = nullptr;  // of the last write(): the tracer's, which outlives the sink
  QuotedNames names_;
  BatchReader batch_;
  std::vector<std::uint32_t> numbers_;  // of lists in this file, by their own; 0 = not told
  std::uint32_t next_number_ = 1;
  std::uint64_t in_block_ = 0;  // spans in the block that is being collected
  std::uint64_t recorded_ = 0;  // in this file
  std::uint64_t lost_ = 0;
  std::exception_ptr error_;
  bool closed_ = false;
};

}  // namespace

std::string part_path(const ChromeOptions& options, std::uint32_t number) {
  std::string path = options.path;
  if (number > 0) {
    constexpr std::string_view kSuffix = ".json";
    const bool usual = path.ends_with(kSuffix);
    path.insert(usual ? path.size() - kSuffix.size() : path.size(), "." + std::to_string(number));
  }
  return options.gzip ? path + ".gz" : path;
}

std::unique_ptr<Sink> make_chrome_sink(ChromeOptions options, const PartHeader& header) {
  return std::make_unique<ChromeSink>(std::move(options), header);
}

}  // namespace ringtune
