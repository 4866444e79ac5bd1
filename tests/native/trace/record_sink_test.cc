// Parts as records: what stands in them, files that follow one another, packed ones, full disks, SIGKILL.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "json_reader.h"
#include "part_lines.h"
#include "record_reader.h"
#include "trace/part_layout.h"
#include "trace/sink.h"
#include "trace/tracer.h"

namespace ringtune {
namespace {

using testing_support::kHeader;
using testing_support::read_file;
using testing_support::read_records;
using testing_support::ReadPart;
using testing_support::TemporaryFile;

ReadPart recorded(const std::function<void(Tracer&)>& record, TracerOptions options = {}) {
  const TemporaryFile file;
  Tracer tracer(options);
  tracer.start(make_record_sink({.path = file.path()}, kHeader));
  record(tracer);
  tracer.stop();
  return read_records(read_file(file.path()));
}

void record_batch(Tracer& tracer, std::uint32_t batch, const std::vector<std::string>& names) {
  BatchRecorder recorder(tracer);
  recorder.begin({0, 2000, 0, 0, batch, 5, 1, Stage::kNegotiate, 0}, 2600);
  std::int64_t at_ns = 1000;
  for (const std::string& name : names) recorder.add(tracer.intern(name), 64, at_ns += 10);
  recorder.finish();
}

std::uint32_t word(const std::string& words, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, words.data() + 4 * at, sizeof(value));
  return value;
}

TEST(RecordSink, BeginsWithItsHeaderAndEndsWithItsCounts) {
  const ReadPart part = recorded([](Tracer&) {});
  EXPECT_EQ(part.header.magic, kPartMagic);
  EXPECT_EQ(part.header.format, 2U);
  EXPECT_EQ(part.header.record_bytes, 48U);
  EXPECT_EQ(part.header.rank, 1);
  EXPECT_EQ(part.header.size, 4);
  EXPECT_EQ(part.texts.at(part.header.host), "node");
  EXPECT_EQ(part.texts.at(part.header.job), "job");
  EXPECT_GT(part.header.unix_ns, part.header.monotonic_ns);
  ASSERT_EQ(part.ends.size(), 1U);
  EXPECT_EQ(part.ends[0].begin_ns, 0);
  EXPECT_EQ(part.ends[0].end_ns, 0);
}

TEST(RecordSink, ASpanStandsAsItIsAndItsNameBeforeIt) {
  const std::string longer(1000, 'x');
  const ReadPart part = recorded([&](Tracer& tracer) {
    Span span{-5, 9, 1ULL << 40, tracer.intern(longer), 7, 8, 9, Stage::kCommunicate, 0x21};
    span.dtype = 7;
    span.wire = 5;
    span.schedule = 1;
    span.peer = 3;
    span.process_set = 11;
    tracer.record(span);
    span.name_id = tracer.intern("");
    tracer.record(span);
    span.name_id = tracer.intern(longer);
    tracer.record(span);
  });
  ASSERT_EQ(part.spans.size(), 3U);
  EXPECT_EQ(part.name(part.spans[0]), longer);
  EXPECT_EQ(part.spans[1].name_id, 0U);
  EXPECT_EQ(part.spans[2].name_id, part.spans[0].name_id);
  EXPECT_EQ(part.texts.size(), 3U);  // with host and job
  EXPECT_EQ(part.spans[0].begin_ns, -5);
  EXPECT_EQ(part.spans[0].bytes, 1ULL << 40);
  EXPECT_EQ(part.spans[0].peer, 3);
  EXPECT_EQ(part.spans[0].wire, 5);
  EXPECT_EQ(part.ends.back().begin_ns, 3);
}

TEST(RecordSink, ABatchNamesAListThatStandsBeforeItOnce) {
  const ReadPart part = recorded([](Tracer& tracer) {
    record_batch(tracer, 1, {"b", "c", "d", "e"});
    record_batch(tracer, 2, {"b", "c", "d", "e"});
    record_batch(tracer, 3, {"c", "b"});
  });
  ASSERT_EQ(part.spans.size(), 3U);
  EXPECT_EQ(part.lists.size(), 2U);
  EXPECT_EQ(part.spans[0].bytes, part.spans[1].bytes);
  const std::string& list = part.lists.at(static_cast<std::uint32_t>(part.spans[0].bytes));
  ASSERT_EQ(list.size(), 48U);
  EXPECT_EQ(part.texts.at(word(list, 0)), "b");
  EXPECT_EQ(word(list, 1), 64U);
  EXPECT_EQ(part.texts.at(word(list, 9)), "e");
  EXPECT_EQ(part.spans[0].begin_ns, 1010);
  EXPECT_EQ(word(part.words[0], 0), 600U);
  EXPECT_EQ(word(part.words[0], 5), 30U);
  EXPECT_EQ(part.ends.back().begin_ns, 2 * (4 + 4 + 2));
}

/// Every batch wraps around the end of a ring of 16 at another place.
TEST(RecordSink, ABatchThatIsWrappedAnywhereIsWhole) {
  const ReadPart part = recorded(
      [](Tracer& tracer) {
        for (std::uint32_t batch = 1; batch <= 200; ++batch) {
          record_batch(tracer, batch, {"b", "c", "d", "e", "f", "g", "h", "i"});
          while (tracer.recorded() < 16 * batch) ::usleep(10);
        }
      },
      {.ring_spans = 16});
  ASSERT_EQ(part.spans.size(), 200U);
  for (std::size_t at = 0; at < 200; ++at) {
    EXPECT_EQ(part.spans[at].batch_id, at + 1);
    for (std::size_t tensor = 0; tensor < 8; ++tensor) EXPECT_EQ(word(part.words[at], 2 + tensor), 10 * tensor);
  }
}

TEST(RecordSink, AnEventHasItsArguments) {
  const std::string args = R"({"tensor":")" + std::string(200, 'y') + R"("})";
  const ReadPart part = recorded([&](Tracer& tracer) {
    tracer.event("STALL", "stall", 77, args);
    tracer.event("STALL", "stall", 78, "{}");
  });
  ASSERT_EQ(part.events.size(), 2U);
  EXPECT_EQ(part.name(part.events[0].first), "STALL");
  EXPECT_EQ(part.texts.at(part.events[0].first.batch_id), "stall");
  EXPECT_EQ(part.events[0].first.begin_ns, 77);
  EXPECT_EQ(part.events[0].second, args);
  EXPECT_EQ(part.texts.size(), 4U);
}

TEST(RecordFiles, FollowOneAnotherWhenTheyHaveTheirSize) {
  const TemporaryFile file;
  PartOptions options{.path = file.path() + ".spans", .rotate_bytes = 100'000};
  Tracer tracer;
  tracer.start(make_record_sink(options, kHeader));
  for (std::uint32_t i = 1; i <= 5000; ++i) record_batch(tracer, i, {"b", "c", "d"});
  tracer.stop();
  const std::uint32_t files = options.next_file->load();
  EXPECT_GE(files, 3U);
  std::size_t batches = 0;
  for (std::uint32_t number = 0; number < files; ++number) {
    const ReadPart part = read_records(read_file(part_path(options, number)));
    EXPECT_EQ(part.header.file, number);
    EXPECT_EQ(part.ends.size(), 1U);
    EXPECT_TRUE(part.spans.empty() || part.lists.size() == 1) << "lists are written again in each file";
    batches += part.spans.size();
  }
  EXPECT_EQ(batches, 5000U);
}

TEST(RecordFiles, AreNumberedBeforeTheirSuffix) {
  EXPECT_EQ(part_path({.path = "a/rank-00001.spans"}, 0), "a/rank-00001.spans");
  EXPECT_EQ(part_path({.path = "a.b/rank-00001.spans"}, 12), "a.b/rank-00001.12.spans");
  EXPECT_EQ(part_path({.path = "a.b/rank"}, 1), "a.b/rank.1");
  EXPECT_EQ(part_path({.path = "a/rank-00001.spans", .gzip = true}, 1), "a/rank-00001.1.spans.gz");
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

TEST(RecordGzip, HoldsTheSameRecordsAndCanBeReadUpToEveryFlush) {
  const TemporaryFile file;
  const auto sink = make_record_sink({.path = file.path(), .gzip = true}, kHeader);
  for (std::uint32_t i = 1; i <= 300; ++i) {
    sink->write(std::array{Span{i, i + 5, 4, 1, i, 5, 1, Stage::kCopyIn, 0}},
                [](std::uint32_t) { return std::string_view("b"); });
    sink->flush();
    if (i % 100 != 0) continue;
    // As after SIGKILL: no end, but everything until here.
    const ReadPart part = read_records(unpacked(file.path() + ".gz"));
    ASSERT_EQ(part.spans.size(), i);
    EXPECT_EQ(part.spans.back().batch_id, i);
    EXPECT_EQ(part.name(part.spans.back()), "b");
  }
  sink->close(0);
  EXPECT_EQ(read_records(unpacked(file.path() + ".gz")).ends.size(), 1U);
}

/// Runs `record` in a child whose files cannot become larger than `bytes`: as a disk that fills up in mid-recording.
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

TEST(RecordDisk, AFullOneLosesSpansTellsHowManyAndIsUsedAgain) {
  const TemporaryFile file;
  EXPECT_EQ(with_file_limit(300'000,
                            [&] {
                              Tracer tracer;
                              tracer.start(make_record_sink({.path = file.path()}, kHeader));
                              const auto record = [&](std::uint64_t until, std::uint32_t name) {
                                for (std::uint64_t i = tracer.recorded() + tracer.dropped(); i < until; ++i) {
                                  tracer.record({1, 2, 4, name, 0, 0, 0, Stage::kCopyIn, 0});
                                }
                                while (tracer.recorded() + tracer.dropped() < until) ::usleep(1000);
                              };
                              record(20'000, tracer.intern("t"));  // far more than there is room for
                              while (tracer.dropped() == 0) ::usleep(1000);
                              record(20'500, tracer.intern("lost"));  // the text does not reach the file
                              const rlimit room{RLIM_INFINITY, RLIM_INFINITY};
                              ::setrlimit(RLIMIT_FSIZE, &room);
                              record(21'000, tracer.intern("lost"));
                              const std::uint64_t dropped = tracer.dropped();
                              try {
                                tracer.stop();
                                return 1;
                              } catch (const TraceIo&) {
                                return dropped > 0 && dropped < 20'500 && tracer.recorded() > 500 ? 0 : 2;
                              }
                            }),
            0);
  const std::string bytes = read_file(file.path());
  EXPECT_EQ(bytes.size() % sizeof(Span), 0U) << "a block that does not fit leaves nothing";
  const ReadPart part = read_records(bytes);
  ASSERT_EQ(part.ends.size(), 1U);
  EXPECT_EQ(static_cast<std::size_t>(part.ends[0].begin_ns), part.spans.size());
  EXPECT_EQ(part.ends[0].end_ns + part.ends[0].begin_ns, 21'000);
  EXPECT_EQ(part.name(part.spans.front()), "t");
  EXPECT_EQ(part.name(part.spans.back()), "lost");
}

TEST(RecordDisk, AFullDeviceIsToldAtOnce) {
  try {
    (void)make_record_sink({.path = "/dev/full"}, kHeader);
    FAIL();
  } catch (const TraceIo& error) {
    EXPECT_EQ(std::string(error.what()), "cannot write the timeline file /dev/full: No space left on device");
  }
}

TEST(RecordDisk, AMissingFolderIsNamed) {
  const TemporaryFile file;
  const std::string path = file.path() + ".missing/part.spans";
  try {
    (void)make_record_sink({.path = path}, kHeader);
    FAIL();
  } catch (const TraceIo& error) {
    EXPECT_EQ(std::string(error.what()), "cannot create the timeline file " + path + ": No such file or directory");
  }
}

/// The child records without end and is killed in the middle.
class RecordKill : public ::testing::TestWithParam<int> {};
TEST_P(RecordKill, LeavesEveryRecordThatWasWritten) {
  const TemporaryFile file;
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // an aborted test leaves nobody behind who fills the disk
    Tracer tracer({.ring_spans = 256});
    tracer.start(make_record_sink({.path = file.path()}, kHeader));
    for (std::int64_t i = 1;; ++i) {
      tracer.record({i, i + 1, 0, tracer.intern("t" + std::to_string(i % 100)), 1, 1, 1, Stage::kCopyIn, 0});
      if (i % 128 == 0) ::usleep(100);
    }
  }
  ASSERT_GT(child, 0);
  const auto least = static_cast<std::size_t>(GetParam());
  const Deadline deadline = Deadline::after(20'000'000'000);
  struct stat state{};
  while (::stat(file.path().c_str(), &state) == 0 && static_cast<std::size_t>(state.st_size) < least &&
         !deadline.expired()) {
    ::usleep(500);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const std::string bytes = read_file(file.path());
  EXPECT_GE(bytes.size(), least);
  const ReadPart part = read_records(bytes);
  EXPECT_TRUE(part.ends.empty());
  std::int64_t before = 0;
  for (const Span& span : part.spans) {
    EXPECT_GT(span.begin_ns, before);
    EXPECT_EQ(span.end_ns, span.begin_ns + 1);
    EXPECT_EQ(part.name(span), "t" + std::to_string(span.begin_ns % 100));
    before = span.begin_ns;
  }
}
INSTANTIATE_TEST_SUITE_P(Bytes, RecordKill, ::testing::Values(1, 10'000, 100'000, 1'000'000));

TEST(TeeSink, GoesOnWithTheFirstWhereTheSecondFails) {
  class Failing : public Sink {
   public:
    void write(std::span<const Span>, const NameLookup&) override { throw TraceIo("no room"); }
    void write(const RareEvent&) override {}
    void flush() override {}
    void close(std::uint64_t) override {}
  };
  std::vector<Span> kept;
  const auto tee = make_tee_sink(make_memory_sink(&kept), std::make_unique<Failing>());
  const Span span{1, 2, 0, 0, 0, 0, 0, Stage::kQueue, 0};
  for (int i = 0; i < 3; ++i) tee->write(std::span(&span, 1), [](std::uint32_t) { return std::string_view(); });
  EXPECT_EQ(kept.size(), 3U);
}

}  // namespace
}  // namespace ringtune
