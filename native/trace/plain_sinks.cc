#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "trace/sink.h"

namespace ringtune {
namespace {

class MemorySink : public Sink {
 public:
  explicit MemorySink(std::vector<Span>* out) : out_(out) { RINGTUNE_CHECK(out != nullptr); }
  void write(std::span<const Span> spans, const NameLookup&) override {
    out_->insert(out_->end(), spans.begin(), spans.end());
  }
  void write(const RareEvent&) override {}
  void flush() override {}
  void close(std::uint64_t) override {}

 private:
  std::vector<Span>* out_;
};

class NullSink : public Sink {
 public:
  void write(std::span<const Span>, const NameLookup&) override {}
  void write(const RareEvent&) override {}
  void flush() override {}
  void close(std::uint64_t) override {}
};

class TeeSink : public Sink {
 public:
  TeeSink(std::unique_ptr<Sink> first, std::unique_ptr<Sink> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  void write(std::span<const Span> spans, const NameLookup& name_of) override {
    second([&](Sink& sink) { sink.write(spans, name_of); });
    first_->write(spans, name_of);
  }
  void write(const RareEvent& event) override {
    second([&](Sink& sink) { sink.write(event); });
    first_->write(event);
  }
  void flush() override {
    second([](Sink& sink) { sink.flush(); });
    first_->flush();
  }
  void close(std::uint64_t dropped) override {
    second([&](Sink& sink) { sink.close(dropped); });
    first_->close(dropped);
  }
  [[nodiscard]] std::uint64_t lost() const noexcept override { return first_->lost(); }

 private:
  template <typename Action>
  void second(Action action) {
    if (second_ == nullptr) return;
    try {
      action(*second_);
    } catch (const TraceIo& error) {
      log_line(LogLevel::kWarning, error.what());
      second_.reset();
    }
  }

  std::unique_ptr<Sink> first_;
  std::unique_ptr<Sink> second_;
};

}  // namespace

std::unique_ptr<Sink> make_tee_sink(std::unique_ptr<Sink> first, std::unique_ptr<Sink> second) {
  return std::make_unique<TeeSink>(std::move(first), std::move(second));
}
std::unique_ptr<Sink> make_memory_sink(std::vector<Span>* out) { return std::make_unique<MemorySink>(out); }
std::unique_ptr<Sink> make_null_sink() { return std::make_unique<NullSink>(); }

}  // namespace ringtune
