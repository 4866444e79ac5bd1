// Batches as one event, and disks that are slow.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "base/clock.h"
#include "part_lines.h"
#include "trace/sink.h"
#include "trace/tracer.h"

namespace ringtune {
namespace {

using testing_support::lines_of;
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
