// Copies of a batch's tensors as one event.
#include <gtest/gtest.h>

#include <array>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "part_lines.h"
#include "trace/tracer.h"

namespace ringtune {
namespace {

using testing_support::lines_of;

/// As the executor records copies: of three tensors, the first from 1000 on.
void record_copies(Tracer& tracer, Stage stage, std::array<std::int64_t, 3> done_ns) {
  Span about{0, 0, 0, 0, 7, 5, 1, stage, 0};
  about.dtype = 7;
  BatchRecorder recorder(tracer);
  recorder.begin(about, 1000);
  for (std::size_t i = 0; i < 3; ++i) recorder.add(tracer.intern(std::string(1, "bcd"[i])), 64 * (i + 1), done_ns[i]);
  recorder.finish();
}

TEST(TraceCopies, AreOneEventThatNamesTheListOfTheBatch) {
  const auto lines = lines_of([](Tracer& tracer) {
    record_copies(tracer, Stage::kCopyIn, {1200, 1200, 1500});
    BatchRecorder recorder(tracer);
    recorder.begin({0, 2000, 0, 0, 7, 5, 1, Stage::kNegotiate, 0}, 2600);
    for (std::size_t i = 0; i < 3; ++i) recorder.add(tracer.intern(std::string(1, "bcd"[i])), 64 * (i + 1), 1000);
    recorder.finish();
    record_copies(tracer, Stage::kCopyOut, {1001, 1003, 1006});
  });
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0].find(R"({"name":"ringtune_tensors")"), 0U);
  EXPECT_EQ(lines[1], R"({"name":"MEMCPY_IN_FUSION_BUFFER","cat":"copy_in","ph":"X","pid":1,"tid":2,"ts":1.000,)"
                      R"("dur":0.500,"args":{"tensors":1,"copied":[200,0,300],"dtype":"float32",)"
                      R"("batch":7,"step":5,"knobs_version":1}})");
  EXPECT_NE(lines[2].find("\"tensors\":1,\"submitted\""), std::string::npos);
  EXPECT_EQ(lines[3], R"({"name":"MEMCPY_OUT_FUSION_BUFFER","cat":"copy_out","ph":"X","pid":1,"tid":4,"ts":1.000,)"
                      R"("dur":0.006,"args":{"tensors":1,"copied":[1,2,3],"dtype":"float32",)"
                      R"("batch":7,"step":5,"knobs_version":1}})");
  EXPECT_NE(lines[4].find("\"recorded\":12,\"dropped\":0"), std::string::npos);
}

TEST(TraceCopies, TooLongForTheirWordsAreSpansEach) {
  const std::int64_t far = 6'000'000'000;
  const auto lines = lines_of([&](Tracer& tracer) { record_copies(tracer, Stage::kCopyIn, {2000, far, far + 1000}); });
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_NE(lines[0].find(R"("ts":1.000,"dur":1.000,"args":{"tensor":"b","bytes":64,)"), std::string::npos);
  EXPECT_NE(lines[1].find(R"("ts":2.000,"dur":5999998.000,"args":{"tensor":"c","bytes":128,)"), std::string::npos);
  EXPECT_NE(lines[2].find(R"("ts":6000000.000,"dur":1.000,"args":{"tensor":"d","bytes":192,)"), std::string::npos);
}

/// One recorder, as the executor has it: a batch is told apart from those before it that begin as it does.
TEST(TraceBatch, ThatBeginsLikeAnotherKeepsItsOwnTensors) {
  using Tensors = std::vector<std::pair<std::string, std::uint64_t>>;
  const std::vector<Tensors> batches{
      {{"b", 4}, {"c", 4}, {"d", 4}},            // list 1
      {{"b", 4}, {"c", 4}, {"d", 4}},            // again
      {{"b", 4}, {"c", 4}},                      // 2: ends earlier
      {{"b", 4}, {"c", 4}, {"d", 4}},            // 1
      {{"b", 4}, {"c", 4}, {"d", 4}, {"e", 4}},  // 3: goes on
      {{"b", 4}, {"c", 8}, {"d", 4}},            // 4: other bytes in the middle
      {{"b", 8}, {"c", 4}, {"d", 4}},            // 5: at the begin
      {{"b", 4}, {"x", 4}, {"d", 4}},            // 6: another name
      {{"b", 4}},                                // two spans
      {{"b", 4}, {"x", 4}, {"d", 4}},            // 6
  };
  const std::vector<int> expected{1, 1, 2, 1, 3, 4, 5, 6, 0, 6};
  const auto lines = lines_of([&](Tracer& tracer) {
    BatchRecorder recorder(tracer);
    for (const Tensors& tensors : batches) {
      for (const Stage stage : {Stage::kNegotiate, Stage::kCopyIn}) {
        recorder.begin({0, 2000, 0, 0, 7, 5, 1, stage, 0}, now_ns());
        for (const auto& [name, bytes] : tensors) {
          const std::uint32_t id = tracer.intern(name);
          stage == Stage::kNegotiate ? recorder.add(id, bytes, 1000) : recorder.copied(id, bytes);
        }
        recorder.finish();
      }
    }
  });
  std::vector<std::string> lists;
  std::vector<int> used;
  for (const std::string& line : lines) {
    if (line.starts_with(R"({"name":"ringtune_tensors")")) lists.push_back(line.substr(line.find("\"names\"")));
    const std::size_t at = line.find("\"tensors\":");
    if (at != std::string::npos) used.push_back(line[at + 10] - '0');
  }
  EXPECT_EQ(lists, (std::vector<std::string>{
                       R"("names":["b","c","d"],"bytes":[4,4,4]}})", R"("names":["b","c"],"bytes":[4,4]}})",
                       R"("names":["b","c","d","e"],"bytes":[4,4,4,4]}})", R"("names":["b","c","d"],"bytes":[4,8,4]}})",
                       R"("names":["b","c","d"],"bytes":[8,4,4]}})", R"("names":["b","x","d"],"bytes":[4,4,4]}})"}));
  std::vector<int> twice;
  for (const int number : expected) {
    if (number > 0) twice.insert(twice.end(), 2, number);
  }
  EXPECT_EQ(used, twice);
}

/// Ends of the copies of one event, after its begin.
std::vector<std::int64_t> ends_of(const std::string& line) {
  std::vector<std::int64_t> ends;
  const std::size_t begin = line.find('[') + 1;
  std::istringstream numbers(line.substr(begin, line.find(']') - begin));
  for (std::string number; std::getline(numbers, number, ',');) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + std::stoll(number));
  }
  return ends;
}

TEST(TraceCopies, BetweenTwoLooksAtTheClockAreSharedOutByBytes) {
  constexpr std::uint64_t kPart = BatchRecorder::kTimedBytes / 4;
  std::int64_t took_ns = 0;
  const auto lines = lines_of([&](Tracer& tracer) {
    BatchRecorder recorder(tracer);
    const std::int64_t begin_ns = now_ns();
    recorder.begin({0, 0, 0, 0, 1, 5, 1, Stage::kCopyIn, 0}, begin_ns - 1'000'000'000);
    for (const std::uint64_t bytes : {kPart, std::uint64_t{0}, 3 * kPart, kPart, kPart}) {
      recorder.copied(tracer.intern("b"), bytes);
    }
    recorder.finish();
    took_ns = now_ns() - begin_ns;
  });
  ASSERT_EQ(lines.size(), 3U);
  const std::vector<std::int64_t> ends = ends_of(lines[1]);
  ASSERT_EQ(ends.size(), 5U);
  // The clock was looked at after the third and after the last.
  EXPECT_NEAR(static_cast<double>(ends[2]), 4.0 * static_cast<double>(ends[0]), 4.0);
  EXPECT_EQ(ends[1], ends[0]);
  EXPECT_NEAR(static_cast<double>(ends[4] - ends[2]), 2.0 * static_cast<double>(ends[3] - ends[2]), 2.0);
  EXPECT_GE(ends[2], 1'000'000'000);
  EXPECT_LE(ends[4], 1'000'000'000 + took_ns);
}

TEST(TraceCopies, OfNothingEndTogether) {
  const auto lines = lines_of([](Tracer& tracer) {
    BatchRecorder recorder(tracer);
    recorder.begin({0, 0, 0, 0, 1, 5, 1, Stage::kCopyIn, 0}, now_ns());
    recorder.copied(tracer.intern("b"), 0);
    recorder.copied(tracer.intern("c"), 0);
    recorder.finish();
  });
  ASSERT_EQ(lines.size(), 3U);
  const std::vector<std::int64_t> ends = ends_of(lines[1]);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0], ends[1]);
}

TEST(TraceCopies, OfThousandsGoOnWhereTheEventBeforeEnded) {
  const auto lines = lines_of([](Tracer& tracer) {
    BatchRecorder recorder(tracer);
    recorder.begin({0, 0, 0, 0, 1, 5, 1, Stage::kCopyOut, 0}, 1000);
    for (std::int64_t i = 1; i <= 5000; ++i) recorder.add(tracer.intern("b"), 4, 1000 + 2 * i);
    recorder.finish();
  });
  ASSERT_EQ(lines.size(), 5U);  // two lists
  EXPECT_NE(lines[1].find(R"("ts":1.000,"dur":8.192,)"), std::string::npos);
  EXPECT_NE(lines[3].find(R"("ts":9.192,"dur":1.808,)"), std::string::npos);
  EXPECT_NE(lines[4].find("\"recorded\":5000,\"dropped\":0"), std::string::npos);
}

TEST(TraceCopies, WithoutRoomAreCountedOneByOne) {
  const auto lines = lines_of(
      [](Tracer& tracer) {
        BatchRecorder recorder(tracer);
        recorder.begin({0, 0, 0, 0, 1, 5, 1, Stage::kCopyIn, 0}, 1000);
        for (std::int64_t i = 1; i <= 100; ++i) recorder.add(tracer.intern("b"), 4, 1000 + i);
        recorder.finish();
      },
      {.ring_spans = 4});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("\"recorded\":0,\"dropped\":100"), std::string::npos);
}

}  // namespace
}  // namespace ringtune
