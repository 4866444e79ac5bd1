#include "base/check.h"
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

}  // namespace

std::unique_ptr<Sink> make_memory_sink(std::vector<Span>* out) { return std::make_unique<MemorySink>(out); }
std::unique_ptr<Sink> make_null_sink() { return std::make_unique<NullSink>(); }

}  // namespace ringtune
