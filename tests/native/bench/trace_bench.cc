// How fast spans are recorded: `trace_bench [FOLDER]` prints nanoseconds and millions a second, into memory (a sink
// that throws them away) and into files in FOLDER, one span at a time and as batches of 256 tensors, without and with
// the copies of each into and out of the fusion buffer.
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "trace/sink.h"
#include "trace/tracer.h"

namespace {

using namespace ringtune;

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::size_t kTensors = 256;

enum class How { kSingly, kBatches, kCopiedBatches };

struct Speed {
  double record_ns;    // of a span, on the thread that records
  double writer_ns;    // of a span: processor time of the writer, in the kernel too
  double written_mhz;  // until the last one is in the sink
  std::uint64_t dropped;
};

/// Processor time that all threads but this one have used.
std::int64_t others_used_ns() {
  timespec all{};
  timespec mine{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &all);
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mine);
  return (all.tv_sec - mine.tv_sec) * kSecondNs + all.tv_nsec - mine.tv_nsec;
}

void record_copies(BatchRecorder& recorder, Span about, const std::vector<std::uint32_t>& names) {
  for (const Stage stage : {Stage::kCopyIn, Stage::kCopyOut}) {
    about.stage = stage;
    recorder.begin(about, now_ns());
    for (const std::uint32_t name : names) recorder.copied(name, 4096);
    recorder.finish();
  }
}

/// As fast as the sink takes them: a full ring is waited for, so that nothing is dropped.
Speed run(Tracer& tracer, std::unique_ptr<Sink> sink, How how, std::int64_t for_ns) {
  const bool batches = how != How::kSingly;
  const std::size_t spans = kTensors * (how == How::kSingly ? 1 : how == How::kBatches ? 2 : 4);
  std::vector<std::uint32_t> names;
  for (std::size_t i = 0; i < kTensors; ++i) names.push_back(tracer.intern("layer." + std::to_string(i) + ".weight"));
  tracer.start(std::move(sink));
  BatchRecorder recorder(tracer);
  const std::uint64_t most_behind = batches ? 1 << 19 : 1 << 15;  // half the ring; a batch takes 31 slots for 512 spans
  std::uint64_t count = 0;
  std::int64_t inside_ns = 0;
  const std::int64_t used_before_ns = others_used_ns();
  const std::int64_t begin_ns = now_ns();
  for (std::uint32_t batch = 1; now_ns() - begin_ns < for_ns; ++batch) {
    const std::int64_t now = now_ns();
    const Span about{now, now, 4096, names[0], batch, 1, 1, batches ? Stage::kNegotiate : Stage::kCopyIn, 0};
    if (batches) recorder.begin(about, now + 900);
    for (std::size_t i = 0; i < kTensors; ++i) {
      const std::int64_t submitted_ns = now - 100'000 + 300 * static_cast<std::int64_t>(i);
      if (batches) {
        recorder.add(names[i], 4096, submitted_ns);
      } else {
        Span span = about;
        span.begin_ns = submitted_ns;
        span.name_id = names[i];
        tracer.record(span);
      }
    }
    if (batches) recorder.finish();
    if (how == How::kCopiedBatches) record_copies(recorder, about, names);
    inside_ns += now_ns() - now;
    count += spans;
    while (count > tracer.recorded() + tracer.dropped() + most_behind) ::usleep(50);
  }
  tracer.stop();
  const double seconds = static_cast<double>(now_ns() - begin_ns) * 1e-9;
  const std::uint64_t recorded = tracer.recorded();
  return {static_cast<double>(inside_ns) / static_cast<double>(count),
          static_cast<double>(others_used_ns() - used_before_ns) / static_cast<double>(recorded),
          static_cast<double>(recorded) / seconds * 1e-6, tracer.dropped()};
}

void print(const char* what, const Speed& speed) {
  std::printf("%-36s %5.1f ns a span (%5.1f million/s), writer %6.1f ns, %6.2f million/s with the sink, %llu dropped\n",
              what, speed.record_ns, 1e3 / speed.record_ns, speed.writer_ns, speed.written_mhz,
              static_cast<unsigned long long>(speed.dropped));
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path();
  const std::string path = folder / ("ringtune-trace-bench-" + std::to_string(::getpid()) + ".json");
  Tracer tracer;
  Span off{};
  const std::int64_t begin_ns = now_ns();
  for (int i = 0; i < 10'000'000; ++i) tracer.record(off);
  std::printf("%-36s %5.2f ns a span\n", "not recording", static_cast<double>(now_ns() - begin_ns) * 1e-7);
  for (const auto& [how, name] :
       {std::pair(How::kSingly, "single spans"), std::pair(How::kBatches, "batches of 256 tensors"),
        std::pair(How::kCopiedBatches, "batches with copies")}) {
    const std::string what = name;
    print((what + ", memory").c_str(), run(tracer, make_null_sink(), how, kSecondNs));
    print((what + ", file").c_str(), run(tracer, make_record_sink({.path = path}, {}), how, kSecondNs));
    std::filesystem::remove(path);
    PartOptions packed{.path = path, .gzip = true};
    print((what + ", gzip file").c_str(), run(tracer, make_record_sink(packed, {}), how, kSecondNs));
    std::filesystem::remove(path + ".gz");
  }
  return 0;
}
