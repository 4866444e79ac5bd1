#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
using testing_support::kHeaderEvents;
using testing_support::read_file;
using testing_support::TemporaryFile;

const PartHeader kOddHeader{1, 4, "node\"7", "job"};

std::string event_line(const Span& span, std::string_view name) {
  const TemporaryFile file;
  const auto sink = make_chrome_sink(file.path(), kOddHeader);
  sink->write(std::span(&span, 1), [name](std::uint32_t) { return name; });
  sink->close(0);
  return events_of(read_file(file.path())).at(kHeaderEvents);
}

TEST(TraceChrome, HeaderAndEndStandAsAgreed) {
  const TemporaryFile file;
  const auto sink = make_chrome_sink(file.path(), kOddHeader);
  EXPECT_TRUE(is_json_array(read_file(file.path()))) << "valid from the first moment";
  sink->close(7);
  sink->close(8);
  const auto events = events_of(read_file(file.path()));
  ASSERT_EQ(events.size(), kHeaderEvents + 1);
  EXPECT_EQ(events[0], R"({"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"rank 1"}})");
  EXPECT_EQ(events[1], R"({"name":"process_sort_index","ph":"M","pid":1,"tid":0,"args":{"sort_index":1}})");
  EXPECT_EQ(events[6], R"({"name":"thread_name","ph":"M","pid":1,"tid":2,"args":{"name":"copy_in"}})");
  EXPECT_EQ(events[7], R"({"name":"thread_sort_index","ph":"M","pid":1,"tid":2,"args":{"sort_index":2}})");
  EXPECT_EQ(
      events[kHeaderEvents - 1].find(R"({"name":"ringtune_part","ph":"M","pid":1,"tid":0,"args":{"format":1,"rank":1,)"
                                     R"("size":4,"host":"node\"7","job":"job","unix_ns":)"),
      0U);
  EXPECT_EQ(events.back(), R"({"name":"ringtune_end","ph":"M","pid":1,"tid":0,"args":{"recorded":0,"dropped":7}})");
}

TEST(TraceChrome, TimesAreExactMicroseconds) {
  EXPECT_EQ(event_line({9'007'199'254'740'993'001, 9'007'199'254'740'993'041, 64, 5, 9, 2, 3, Stage::kCopyIn, 0}, "g"),
            R"({"name":"MEMCPY_IN_FUSION_BUFFER","cat":"copy_in","ph":"X","pid":1,"tid":2,"ts":9007199254740993.001,)"
            R"("dur":0.040,"args":{"tensor":"g","bytes":64,"batch":9,"step":2,"knobs_version":3}})");
}

TEST(TraceChrome, NumbersOfMessagesAreNegative) {
  const auto number = [](std::uint32_t batch) {
    const std::string line = event_line({0, 40, 64, 5, batch, 2, 3, Stage::kWait, 0}, "g");
    const std::size_t at = line.find("\"batch\":");
    return at == std::string::npos ? std::string() : line.substr(at + 8, line.find(',', at) - at - 8);
  };
  EXPECT_EQ(number(0), "");
  EXPECT_EQ(number(kMessages - 1), "3221225471");
  EXPECT_EQ(number(kMessages), "-1073741824");
  EXPECT_EQ(number(0xffff'ffffU), "-1");
}

struct StageCase {
  Stage stage;
  std::uint8_t kind;
  const char* begin;
};
class TraceChromeStage : public ::testing::TestWithParam<StageCase> {};
TEST_P(TraceChromeStage, HasItsName) {
  const std::string line = event_line({1000, 2000, 0, 1, 0, 0, 0, GetParam().stage, GetParam().kind}, "user");
  EXPECT_EQ(line.find(GetParam().begin), 0U) << line;
}
INSTANTIATE_TEST_SUITE_P(
    Stages, TraceChromeStage,
    ::testing::Values(
        StageCase{
            Stage::kNegotiate, 0,
            R"({"name":"NEGOTIATE_ALLREDUCE","cat":"negotiate","ph":"X","pid":1,"tid":0,"ts":1.000,"dur":1.000,"args":{"tensor":"user","bytes":0,"step":0,"knobs_version":0}})"},
        StageCase{Stage::kQueue, 1, R"({"name":"QUEUE","cat":"queue","ph":"X")"},
        StageCase{Stage::kCommunicate, 2, R"({"name":"RING_BROADCAST","cat":"communicate","ph":"X","pid":1,"tid":3)"},
        StageCase{Stage::kCommunicate, 255, R"({"name":"RING_UNKNOWN")"},
        StageCase{Stage::kCopyOut, 0,
                  R"({"name":"MEMCPY_OUT_FUSION_BUFFER","cat":"copy_out","ph":"X","pid":1,"tid":4)"},
        StageCase{Stage::kWait, 255, R"({"name":"WAIT","cat":"wait","ph":"X","pid":1,"tid":5)"},
        StageCase{Stage::kStep, 255, R"({"name":"step 0","cat":"step","ph":"X","pid":1,"tid":6)"},
        StageCase{
            Stage::kRange, 255,
            R"({"name":"user","cat":"range","ph":"X","pid":1,"tid":7,"ts":1.000,"dur":1.000,"args":{"step":0,"knobs_version":0}})"},
        StageCase{Stage::kCycle, 255,
                  R"({"name":"CYCLE_START","cat":"cycle","ph":"i","s":"p","pid":1,"tid":8,"ts":1.000,"args":{)"}));

class TraceChromeHostile : public ::testing::TestWithParam<std::string> {};
TEST_P(TraceChromeHostile, NamesLeaveTheFileValid) {
  const TemporaryFile file;
  Tracer tracer;
  tracer.start(make_chrome_sink(file.path(), {0, 1, GetParam(), GetParam()}));
  const std::uint32_t id = tracer.intern(GetParam());
  tracer.record({1, 2, 0, id, 0, 0, 0, Stage::kRange, 255});
  tracer.record({1, 2, 0, id, 0, 0, 0, Stage::kWait, 255});
  tracer.event(GetParam(), GetParam(), 5, R"({"tensor":"x"})");
  tracer.stop();
  EXPECT_TRUE(is_json_array(read_file(file.path())));
}
std::string every_byte() {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Names, TraceChromeHostile,
                         ::testing::Values("\"],\n[{", "\\", std::string(1, '\0'), every_byte(), "\xed\xa0\x80\xff",
                                           std::string(100'000, '"'), ""));

TEST(TraceChrome, IsValidAfterEveryFlush) {
  const TemporaryFile file;
  const auto sink = make_chrome_sink(file.path(), kOddHeader);
  for (int i = 0; i < 300; ++i) {
    const Span span{i, i + 1, 0, 0, 0, 0, 0, Stage::kQueue, 0};
    sink->write(std::span(&span, 1), [](std::uint32_t) { return std::string_view("t"); });
    sink->flush();
    ASSERT_TRUE(is_json_array(read_file(file.path()))) << i;
  }
}

/// The child records without end and is killed in the middle.
class TraceKill : public ::testing::TestWithParam<int> {};
TEST_P(TraceKill, LeavesValidJson) {
  const TemporaryFile file;
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // an aborted test leaves nobody behind who fills the disk
    Tracer tracer({.ring_spans = 256});
    tracer.start(make_chrome_sink(file.path(), kOddHeader));
    const std::uint32_t id = tracer.intern("tensor");
    for (std::uint64_t i = 1;; ++i) {
      tracer.record({now_ns(), now_ns(), 0, id, 1, 1, 1, Stage::kCopyIn, 0});
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
  const std::string text = read_file(file.path());
  EXPECT_GE(text.size(), least);
  EXPECT_TRUE(is_json_array(text)) << text.substr(text.size() - 200);
}
INSTANTIATE_TEST_SUITE_P(Bytes, TraceKill, ::testing::Values(1, 10'000, 100'000, 1'000'000));

TEST(TraceFork, AChildNeitherHangsNorTouchesTheFile) {
  const TemporaryFile file;
  {
    Tracer tracer;
    tracer.start(make_chrome_sink(file.path(), kOddHeader));
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0; i < 10; ++i) tracer.record({1, 2, 0, 0, 0, 0, 0, Stage::kQueue, 0});
      tracer.stop();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    tracer.record({1, 2, 0, 0, 0, 0, 0, Stage::kQueue, 0});
    tracer.stop();
  }
  const auto events = events_of(read_file(file.path()));
  EXPECT_EQ(events.back(), R"({"name":"ringtune_end","ph":"M","pid":1,"tid":0,"args":{"recorded":1,"dropped":0}})");
}

TEST(TraceDisk, AFullDeviceIsToldAtOnce) {
  try {
    (void)make_chrome_sink("/dev/full", kOddHeader);
    FAIL();
  } catch (const TraceIo& error) {
    EXPECT_EQ(std::string(error.what()), "cannot write the timeline file /dev/full: No space left on device");
  }
}

TEST(TraceDisk, AMissingFolderIsNamed) {
  const TemporaryFile file;
  const std::string path = file.path() + ".missing/part.json";
  try {
    (void)make_chrome_sink(path, kOddHeader);
    FAIL();
  } catch (const TraceIo& error) {
    EXPECT_EQ(std::string(error.what()), "cannot create the timeline file " + path + ": No such file or directory");
  }
}

}  // namespace
}  // namespace ringtune
