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
#include "trace/sink.h"
#include "trace/tracer.h"

namespace ringtune {
namespace {

using testing::events_of;
using testing::is_json_array;
using testing::read_file;
using testing::TemporaryFile;

const PartHeader kHeader{1, 4, "node", "job"};
constexpr std::size_t kHeaderEvents = 2 + 2 * kStageCount + 1;

/// A batch as the executor records it: when it was agreed on and began, then its tensors.
std::vector<Span> batch_of(std::uint32_t batch, std::initializer_list<std::uint32_t> names) {
  Span mark{2000, 2600, kBatchMark, 0, batch, 5, 1, Stage::kQueue, 0};
  mark.dtype = 7;
  mark.plan = 1;
  mark.peer = 3;
  std::vector<Span> spans{mark};
  std::int64_t submitted = 1000;
  for (const std::uint32_t name : names) {
    Span span = mark;
    span.stage = Stage::kNegotiate;
    span.begin_ns = submitted;
    span.end_ns = 2000;
    span.bytes = 64 * name;
    span.name_id = name;
    spans.push_back(span);
    submitted += 250;
  }
  return spans;
}
const NameLookup kLetters = [](std::uint32_t id) { return std::string_view("abcdefgh").substr(id, 1); };

std::vector<std::string> lines_of(const std::vector<std::vector<Span>>& batches) {
  const TemporaryFile file;
  const auto sink = make_chrome_sink({.path = file.path()}, kHeader);
  for (const std::vector<Span>& batch : batches) sink->write(batch, kLetters);
  sink->close(0);
  const auto events = events_of(read_file(file.path()));
  return {events.begin() + kHeaderEvents, events.end()};
}

TEST(TraceBatch, IsOneEventThatNamesAListOfTensors) {
  const auto lines = lines_of({batch_of(7, {1, 2, 3})});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], R"({"name":"ringtune_tensors","ph":"M","pid":1,"tid":0,"args":)"
                      R"({"id":1,"names":["b","c","d"],"bytes":[64,128,192]}})");
  EXPECT_EQ(lines[1], R"({"name":"NEGOTIATE_ALLREDUCE","cat":"negotiate","ph":"X","pid":1,"tid":0,"ts":1.000,)"
                      R"("dur":1.000,"args":{"tensors":1,"submitted":[0,250,250],"queued_ns":600,"dtype":"float32",)"
                      R"("plan":1,"peer":3,"batch":7,"step":5,"epoch":1}})");
  EXPECT_EQ(lines[2], R"({"name":"ringtune_end","ph":"M","pid":1,"tid":0,"args":{"recorded":6,"dropped":0}})");
}

TEST(TraceBatch, ListsAreWrittenOnceAndToldApart) {
  const auto lines = lines_of({batch_of(1, {1, 2}), batch_of(2, {2, 1}), batch_of(3, {1, 2})});
  ASSERT_EQ(lines.size(), 6U);  // two lists, three batches, the end
  EXPECT_NE(lines[1].find("\"tensors\":1,"), std::string::npos);
  EXPECT_NE(lines[3].find("\"tensors\":2,"), std::string::npos);
  EXPECT_NE(lines[4].find("\"tensors\":1,"), std::string::npos);
}

TEST(TraceBatch, OfOneTensorIsTwoSpans) {
  const auto lines = lines_of({batch_of(7, {1})});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_NE(lines[0].find(R"("ts":1.000,"dur":1.000,"args":{"tensor":"b","bytes":64,"dtype")"), std::string::npos);
  EXPECT_NE(lines[1].find(R"({"name":"QUEUE","cat":"queue","ph":"X","pid":1,"tid":1,"ts":2.000,"dur":0.600)"),
            std::string::npos);
}

TEST(TraceBatch, CutAnywhereKeepsItsTensorsAndTheirStart) {
  std::vector<Span> whole = batch_of(7, {1, 2, 3, 4});
  const Span stranger{5, 6, 0, 0, 0, 5, 1, Stage::kRange, 255};  // of another thread, between two halves
  const auto lines = lines_of({{whole.begin(), whole.begin() + 3}, {stranger}, {whole.begin() + 3, whole.end()}});
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_NE(lines[1].find("\"submitted\":[0,250],\"queued_ns\":600"), std::string::npos);
  EXPECT_NE(lines[4].find("\"submitted\":[0,250],\"queued_ns\":600"), std::string::npos);
}

TEST(TraceFiles, FollowOneAnotherWhenTheyHaveTheirSize) {
  const TemporaryFile file;
  ChromeOptions options{.path = file.path() + ".json", .rotate_bytes = 100'000};
  const auto sink = make_chrome_sink(options, kHeader);
  for (std::uint32_t i = 1; i <= 2000; ++i) sink->write(batch_of(i, {1, 2, 3}), kLetters);
  sink->close(4);
  const std::uint32_t files = options.next_file->load();
  EXPECT_GE(files, 3U);
  std::size_t batches = 0;
  for (std::uint32_t number = 0; number < files; ++number) {
    const std::string text = read_file(part_path(options, number));
    ASSERT_TRUE(is_json_array(text)) << number;
    EXPECT_LE(text.size(), 200'000U);
    const auto events = events_of(text);
    EXPECT_NE(events[kHeaderEvents - 1].find("\"file\":" + std::to_string(number)), std::string::npos);
    EXPECT_EQ(events[kHeaderEvents].find(R"({"name":"ringtune_tensors")"), 0U) << "lists are told again in each file";
    const bool last = number + 1 == files;
    EXPECT_NE(events.back().find(last ? "\"dropped\":4" : "\"dropped\":0"), std::string::npos);
    for (const std::string& event : events) batches += event.find("\"submitted\"") != std::string::npos ? 1 : 0;
    ::unlink(part_path(options, number).c_str());
  }
  EXPECT_EQ(batches, 2000U);
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
    sink->write(batch_of(i, {1, 2, 3}), kLetters);
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
