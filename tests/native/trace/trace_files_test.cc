// Batches as one event, files that follow one another, packed files, disks that are full or slow.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "json_reader.h"
#include "part_lines.h"
#include "trace/sink.h"
#include "trace/tracer.h"

namespace ringtune {
namespace {

using testing_support::events_of;
using testing_support::is_json_array;
using testing_support::kHeader;
using testing_support::kHeaderEvents;
using testing_support::lines_of;
using testing_support::read_file;
using testing_support::TemporaryFile;

struct Tensor {
  const char* name;
  std::int64_t submitted_ns;
};

/// As the executor records a batch: agreed on at 2000, started at 2600.
void record_batch(Tracer& tracer, std::uint32_t batch, std::initializer_list<Tensor> tensors) {
  Span about{0, 2000, 0, 0, batch, 5, 1, Stage::kNegotiate, 0};
  about.dtype = 7;
  about.schedule = 1;
  BatchRecorder recorder(tracer);
  recorder.begin(about, 2600);
  for (const Tensor& tensor : tensors) {
    recorder.add(tracer.intern(tensor.name), static_cast<std::uint64_t>(64 * (tensor.name[0] - 'a')),
                 tensor.submitted_ns);
  }
  recorder.finish();
}

TEST(TraceBatch, IsOneEventThatNamesAListOfTensors) {
  const auto lines = lines_of([](Tracer& tracer) { record_batch(tracer, 7, {{"b", 1000}, {"c", 1250}, {"d", 1100}}); });
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], R"({"name":"ringtune_tensors","ph":"M","pid":1,"tid":0,"args":)"
                      R"({"id":1,"names":["b","c","d"],"bytes":[64,128,192]}})");
  EXPECT_EQ(lines[1], R"({"name":"NEGOTIATE_ALLREDUCE","cat":"negotiate","ph":"X","pid":1,"tid":0,"ts":1.000,)"
                      R"("dur":1.000,"args":{"tensors":1,"submitted":[0,250,-150],"queued_ns":600,"dtype":"float32",)"
                      R"("step_schedule":1,"batch":7,"step":5,"knobs_version":1}})");
  EXPECT_EQ(lines[2], R"({"name":"ringtune_end","ph":"M","pid":1,"tid":0,"args":{"recorded":6,"dropped":0}})");
}

TEST(TraceBatch, BeginsWithItsFirstTensorIfAnotherWasSubmittedBefore) {
  const auto lines = lines_of([](Tracer& tracer) { record_batch(tracer, 7, {{"b", 1500}, {"c", 1000}}); });
  EXPECT_NE(lines[1].find(R"("ts":1.500,"dur":0.500,"args":{"tensors":1,"submitted":[0,-500],)"), std::string::npos);
}

TEST(TraceBatch, ListsAreWrittenOnceAndToldApart) {
  const auto lines = lines_of([](Tracer& tracer) {
    record_batch(tracer, 1, {{"b", 1000}, {"c", 1000}});
    record_batch(tracer, 2, {{"c", 1000}, {"b", 1000}});
    record_batch(tracer, 3, {{"b", 1000}, {"c", 1000}});
  });
  ASSERT_EQ(lines.size(), 6U);  // two lists, three batches, the end
  EXPECT_NE(lines[1].find("\"tensors\":1,"), std::string::npos);
  EXPECT_NE(lines[3].find("\"tensors\":2,"), std::string::npos);
  EXPECT_NE(lines[4].find("\"tensors\":1,"), std::string::npos);
}

TEST(TraceBatch, OfOneTensorIsTwoSpans) {
  const auto lines = lines_of([](Tracer& tracer) { record_batch(tracer, 7, {{"b", 1000}}); });
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_NE(lines[0].find(R"("ts":1.000,"dur":1.000,"args":{"tensor":"b","bytes":64,"dtype")"), std::string::npos);
  EXPECT_NE(lines[1].find(R"({"name":"QUEUE","cat":"queue","ph":"X","pid":1,"tid":1,"ts":2.000,"dur":0.600)"),
            std::string::npos);
}

TEST(TraceBatch, OfTensorsSubmittedFarApartIsTwoSpansEach) {
  const std::int64_t far = -5'000'000'000;  // more than four bytes of nanoseconds
  const auto lines = lines_of([&](Tracer& tracer) { record_batch(tracer, 7, {{"b", far}, {"c", 1000}}); });
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_NE(lines[0].find(R"("ts":-5000000.000,"dur":5000002.000)"), std::string::npos);
  EXPECT_NE(lines[4].find("\"recorded\":4"), std::string::npos);
}

/// Every batch wraps around the end of a ring of 16 at another place.
TEST(TraceBatch, WrappedAnywhereKeepsItsTensors) {
  const auto lines = lines_of(
      [](Tracer& tracer) {
        for (std::uint32_t batch = 1; batch <= 200; ++batch) {
          record_batch(
              tracer, batch,
              {{"b", 1000}, {"c", 1001}, {"d", 1003}, {"e", 1006}, {"f", 1010}, {"g", 1015}, {"h", 1021}, {"i", 1028}});
          while (tracer.recorded() < 16 * batch) ::usleep(10);
        }
      },
      {.ring_spans = 16});
  ASSERT_EQ(lines.size(), 202U);
  for (std::size_t batch = 1; batch <= 200; ++batch) {
    EXPECT_NE(lines[batch].find("\"submitted\":[0,1,2,3,4,5,6,7],\"queued_ns\":600"), std::string::npos)
        << lines[batch];
    EXPECT_NE(lines[batch].find("\"batch\":" + std::to_string(batch) + ","), std::string::npos);
  }
}

TEST(TraceBatch, WithoutRoomIsCountedTensorByTensor) {
  std::uint64_t dropped = 0;
  const auto lines = lines_of(
      [&](Tracer& tracer) {
        record_batch(tracer, 1, {{"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}, {"g", 1}, {"h", 1},
                                 {"i", 1}, {"j", 1}, {"k", 1}, {"l", 1}, {"m", 1}, {"n", 1}, {"o", 1},
                                 {"p", 1}, {"q", 1}, {"r", 1}, {"s", 1}, {"t", 1}, {"u", 1}, {"v", 1},
                                 {"w", 1}, {"x", 1}, {"y", 1}, {"z", 1}, {"b", 1}, {"b", 1}, {"b", 1}});
        dropped = tracer.dropped();
      },
      {.ring_spans = 4});
  EXPECT_EQ(dropped, 2U * 28);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("\"recorded\":0,\"dropped\":56"), std::string::npos);
}

TEST(TraceBatch, OfThousandsIsCutIntoEvents) {
  const auto lines = lines_of([](Tracer& tracer) {
    BatchRecorder recorder(tracer);
    recorder.begin({0, 2000, 0, 0, 1, 5, 1, Stage::kNegotiate, 0}, 2600);
    for (std::int64_t i = 0; i < 5000; ++i) recorder.add(tracer.intern("b"), 4, i % 2);
    recorder.finish();
  });
  ASSERT_EQ(lines.size(), 5U);  // two lists
  EXPECT_NE(lines[4].find("\"recorded\":10000,\"dropped\":0"), std::string::npos);
}

TEST(TraceBatch, ListsAreBounded) {
  const auto lines = lines_of([](Tracer& tracer) {
    for (std::uint32_t i = 0; i <= TensorLists::kMostLists; ++i) {
      BatchRecorder recorder(tracer);
      recorder.begin({0, 2000, 0, 0, 1, 5, 1, Stage::kNegotiate, 0}, 2600);
      recorder.add(0, i, 1);
      recorder.add(0, i, 1);
      recorder.finish();
    }
  });
  EXPECT_EQ(lines.size(), 2 * TensorLists::kMostLists + 4 + 1);  // the last batch: four spans
}

TEST(TraceFiles, FollowOneAnotherWhenTheyHaveTheirSize) {
  const TemporaryFile file;
  ChromeOptions options{.path = file.path() + ".json", .rotate_bytes = 100'000};
  Tracer tracer;
  tracer.start(make_chrome_sink(options, kHeader));
  for (std::uint32_t i = 1; i <= 2000; ++i) record_batch(tracer, i, {{"b", 1}, {"c", 2}, {"d", 3}});
  tracer.stop();
  const std::uint32_t files = options.next_file->load();
  EXPECT_GE(files, 3U);
  std::size_t batches = 0;
  for (std::uint32_t number = 0; number < files; ++number) {
    const std::string text = read_file(part_path(options, number));
    ASSERT_TRUE(is_json_array(text)) << number;
    EXPECT_LE(text.size(), 200'000U);
    const auto events = events_of(text);
    EXPECT_NE(events[kHeaderEvents - 1].find("\"file\":" + std::to_string(number)), std::string::npos);
    EXPECT_EQ(events[kHeaderEvents].find(R"({"name":"ringtune_tensors")"), 0U)
        << "lists are written again in each file";
    EXPECT_NE(events.back().find("\"dropped\":0"), std::string::npos);
    for (const std::string& event : events) batches += event.find("\"submitted\"") != std::string::npos ? 1 : 0;
    ::unlink(part_path(options, number).c_str());
  }
  EXPECT_EQ(batches, 2000U);
}

TEST(TraceFiles, FollowOneAnotherAlsoWhereEveryBlockIsFlushedBeforeItIsFull) {
  const TemporaryFile file;
  const ChromeOptions options{.path = file.path() + ".json", .rotate_bytes = 2000};
  const auto sink = make_chrome_sink(options, kHeader);
  for (int i = 0; i < 100; ++i) {
    sink->write(RareEvent{"MARK", "test", i, "{}"});
    sink->flush();
  }
  sink->close(0);
  const std::uint32_t files = options.next_file->load();
  EXPECT_GE(files, 4U);
  for (std::uint32_t number = 0; number < files; ++number) {
    EXPECT_LE(read_file(part_path(options, number)).size(), 4000U);
    ::unlink(part_path(options, number).c_str());
  }
}

TEST(TraceFiles, AreNumberedBeforeTheirSuffix) {
  EXPECT_EQ(part_path({.path = "a/rank-00001.json"}, 0), "a/rank-00001.json");
  EXPECT_EQ(part_path({.path = "a/rank-00001.json"}, 12), "a/rank-00001.12.json");
  EXPECT_EQ(part_path({.path = "a/rank-00001.json", .gzip = true}, 1), "a/rank-00001.1.json.gz");
}

/// What `zcat` prints; its own complaint about a file without end goes nowhere.
std::string unpacked(const std::string& path) {
  const std::string command = "zcat '" + path + "' 2>/dev/null";
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part;
  for (std::size_t got = 0; (got = ::fread(part.data(), 1, part.size(), pipe)) > 0;) text.append(part.data(), got);
  ::pclose(pipe);
  return text;
}

TEST(TraceGzip, HoldsTheSameTextAndCanBeReadUpToEveryFlush) {
  const TemporaryFile file;
  ChromeOptions options{.path = file.path(), .gzip = true};
  const auto sink = make_chrome_sink(options, kHeader);
  for (std::uint32_t i = 1; i <= 300; ++i) {
    sink->write(std::array{Span{i, i + 5, 4, 0, i, 5, 1, Stage::kCopyIn, 0}},
                [](std::uint32_t) { return std::string_view("b"); });
    sink->flush();
    if (i % 100 != 0) continue;
    // As after SIGKILL: no end, but everything until here.
    const std::string text = unpacked(file.path() + ".gz");
    EXPECT_TRUE(is_json_array(text + "]"));
    EXPECT_NE(text.find("\"batch\":" + std::to_string(i) + ","), std::string::npos);
  }
  sink->close(0);
  EXPECT_TRUE(is_json_array(unpacked(file.path() + ".gz")));
  ::unlink((file.path() + ".gz").c_str());
}

/// Runs `record` in a child whose files cannot become larger than `bytes`.
template <typename Record>
int with_file_limit(rlim_t bytes, Record record) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);  // NOLINT
    ::_exit(record());
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(TraceDisk, AFullOneLosesSpansTellsHowManyAndIsUsedAgain) {
  const TemporaryFile file;
  EXPECT_EQ(with_file_limit(60'000,
                            [&] {
                              Tracer tracer;
                              tracer.start(make_chrome_sink({.path = file.path()}, kHeader));
                              const std::uint32_t name = tracer.intern("t");
                              const auto record = [&](std::uint64_t until) {
                                for (std::uint64_t i = tracer.recorded() + tracer.dropped(); i < until; ++i) {
                                  tracer.record({1, 2, 4, name, 0, 0, 0, Stage::kCopyIn, 0});
                                }
                                while (tracer.recorded() + tracer.dropped() < until) ::usleep(1000);
                              };
                              record(2000);  // far more than there is room for
                              while (tracer.dropped() == 0) ::usleep(1000);
                              const rlimit room{RLIM_INFINITY, RLIM_INFINITY};
                              ::setrlimit(RLIMIT_FSIZE, &room);
                              record(2500);
                              const std::uint64_t dropped = tracer.dropped();
                              try {
                                tracer.stop();
                                return 1;
                              } catch (const TraceIo&) {
                                return dropped > 0 && dropped < 2100 && tracer.recorded() > 400 ? 0 : 2;
                              }
                            }),
            0);
  const std::string text = read_file(file.path());
  ASSERT_TRUE(is_json_array(text));
  EXPECT_EQ(events_of(text).back().find(R"({"name":"ringtune_end")"), 0U);
}

TEST(TraceDisk, AFullOneHasRoomForTheEnd) {
  const TemporaryFile file;
  EXPECT_EQ(with_file_limit(40'000,
                            [&] {
                              Tracer tracer;
                              tracer.start(make_chrome_sink({.path = file.path()}, kHeader));
                              const std::uint32_t name = tracer.intern("t");
                              for (int i = 0; i < 3000; ++i) tracer.record({1, 2, 4, name, 0, 0, 0, Stage::kCopyIn, 0});
                              try {
                                tracer.stop();
                                return 1;
                              } catch (const TraceIo&) {
                                return 0;
                              }
                            }),
            0);
  const std::string text = read_file(file.path());
  ASSERT_TRUE(is_json_array(text));
  const auto events = events_of(text);
  const std::size_t spans = events.size() - kHeaderEvents - 1;
  EXPECT_EQ(events.back(), R"({"name":"ringtune_end","ph":"M","pid":1,"tid":0,"args":{"recorded":)" +
                               std::to_string(spans) + ",\"dropped\":" + std::to_string(3000 - spans) + "}}");
}

/// A disk that takes nothing for a while: recording goes on in bounded memory, what finds no room is counted.
TEST(TraceDisk, ASlowOneDropsAndNeverBlocks) {
  const TemporaryFile file;
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe(ends.data()), 0);
  class BlockedSink : public Sink {
   public:
    explicit BlockedSink(int gate) : gate_(gate) {}
    void write(std::span<const Span>, const NameLookup&) override {
      char word = 0;
      if (!open_) (void)!::read(gate_, &word, 1);  // as a write to a hung network file system
      open_ = true;
    }
    void write(const RareEvent&) override {}
    void flush() override {}
    void close(std::uint64_t) override {}

   private:
    int gate_;
    bool open_ = false;
  };
  Tracer tracer({.ring_spans = 1024});
  tracer.start(std::make_unique<BlockedSink>(ends[0]));
  const std::int64_t begin_ns = now_ns();
  for (int i = 0; i < 100'000; ++i) tracer.record({1, 2, 0, 0, 0, 0, 0, Stage::kCopyIn, 0});
  for (int i = 0; i < 50'000; ++i) tracer.event("KNOBS", "knobs", 1, "{}");
  EXPECT_LT(now_ns() - begin_ns, 5'000'000'000);
  EXPECT_GE(tracer.dropped(), 100'000U - 2 * 1024 + 50'000U - 2 * (1 << 14));
  EXPECT_EQ(::write(ends[1], "x", 1), 1);
  tracer.stop();
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace ringtune
