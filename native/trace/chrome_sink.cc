// Spans as the events of a Chrome trace, for who looks at a job while it runs; timeline/README.md has the vocabulary.
#include <utility>

#include "base/clock.h"
#include "trace/array_file.h"
#include "trace/batch_slots.h"
#include "trace/event_text.h"
#include "trace/sink.h"

namespace ringtune {
namespace {

class ChromeSink : public Sink {
 public:
  ChromeSink(const std::string& path, PartHeader header) : header_(std::move(header)), file_(path) {
    write_header();
    file_.flush();
  }

  void write(std::span<const Span> spans, const NameLookup& name_of) override {
    for (const Span& span : spans) take(span, name_of);
  }

  void write(const RareEvent& event) override {
    std::string& out = file_.begin_element();
    out += "{\"name\":" + json_quote(event.name) + ",\"cat\":" + json_quote(event.category);
    out += ",\"ph\":\"i\",\"s\":\"p\",\"pid\":";
    append_integer(out, header_.rank);
    out += ",\"tid\":8,\"ts\":";
    append_microseconds(out, event.at_ns);
    out += ",\"args\":" + event.args_json + "}";
    end_element(0);
  }

  void flush() override { file_.flush(); }

  void close(std::uint64_t dropped) override {
    if (closed_) return;
    closed_ = true;
    file_.flush();
    write_metadata("ringtune_end", 0,
                   "{\"recorded\":" + std::to_string(recorded_) + ",\"dropped\":" + std::to_string(dropped) + "}");
    file_.finish();
  }

 private:
  void take(const Span& span, const NameLookup& name_of) {
    if (is_head(span)) {
      batch_.begin(span);
    } else if (span.stage == Stage::kWords) {
      batch_.add(span);
      if (batch_.complete()) end_batch(name_of);
    } else {
      append_event(file_.begin_element(), span, header_.rank, names_.of(span.name_id, name_of));
      end_element(1);
    }
  }

  void end_batch(const NameLookup& name_of) {
    const TensorList& list = batch_.list();
    if (list.number >= numbers_.size()) numbers_.resize(list.number + 1);
    if (numbers_[list.number] == 0) write_list(list, name_of);
    batch_.append(file_.begin_element(), header_.rank, numbers_[list.number]);
    const std::uint64_t spans = batch_.spans();
    batch_.clear();
    end_element(spans);
  }

  /// Gives the list a number that no other has had in this recording.
  void write_list(const TensorList& list, const NameLookup& name_of) {
    std::vector<std::string> names;
    for (const std::uint32_t name : list.names) names.push_back(names_.of(name, name_of));
    numbers_[list.number] = next_number_++;
    append_list(file_.begin_element(), header_.rank, numbers_[list.number], names, list.bytes);
  }

  void end_element(std::uint64_t spans) {
    recorded_ += spans;
    if (file_.block_full()) file_.flush();
  }

  void write_metadata(std::string_view name, int tid, const std::string& args) {
    file_.begin_element() += "{\"name\":" + json_quote(name) + ",\"ph\":\"M\",\"pid\":" + std::to_string(header_.rank) +
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
                       // Horovod's word: the moment of ts 0, from which its users count.
                       ",\"start_time_since_epoch_in_micros\":" + std::to_string((unix_ns - monotonic_ns) / 1000) +
                       "}");
  }

  PartHeader header_;
  ArrayFile file_;
  QuotedNames names_;
  BatchReader batch_;
  std::vector<std::uint32_t> numbers_;  // of lists in this file, by their own; 0 = not told
  std::uint32_t next_number_ = 1;
  std::uint64_t recorded_ = 0;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<Sink> make_chrome_sink(const std::string& path, const PartHeader& header) {
  return std::make_unique<ChromeSink>(path, header);
}

}  // namespace ringtune
