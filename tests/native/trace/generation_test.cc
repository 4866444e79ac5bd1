// Spans of an elastic job stand under the numbers of the whole job.
#include <gtest/gtest.h>

#include <vector>

#include "trace/tracer.h"

namespace ringtune {
namespace {

Span span_of(Stage stage, std::uint32_t batch, int peer) {
  Span span{1, 2, 0, 0, batch, 0, 0, stage, 255};
  span.peer = peer;
  return span;
}

TEST(TraceGeneration, SpansGoOnWhereTheLastOneEnded) {
  std::vector<Span> spans;
  Tracer tracer({.generation = {.number = 2, .job = "job", .tracks = {1, 4}, .first_step = 7, .first_batch = 100}});
  tracer.start(make_memory_sink(&spans));
  const std::uint32_t in_schedule = kScheduleBatches | 3U, of_others = 1U << 30U;
  for (const std::uint32_t batch : {0U, 3U, in_schedule, of_others}) tracer.record(span_of(Stage::kAwait, batch, 1));
  tracer.record(span_of(Stage::kDeviceWait, 0, 1));  // the number of a device
  Tracer group(tracer, {.number = 1, .label = "g", .members = {1, 0}});
  group.record(span_of(Stage::kAwait, 1, 0));
  tracer.stop();
  ASSERT_EQ(spans.size(), 6U);
  const std::vector<std::uint32_t> batches = {0U, 103U, kScheduleBatches | 103U, of_others};
  for (std::size_t i = 0; i < batches.size(); ++i) {
    EXPECT_EQ(spans[i].batch_id, batches[i]);
    EXPECT_EQ(spans[i].peer, 4);
  }
  EXPECT_EQ(spans[4].peer, 1);
  EXPECT_EQ(spans[5].peer, 4);  // the group's rank 0 is rank 1 of the job, whose number is 4
  EXPECT_EQ(spans[5].batch_id, kGroupBatches | 1U << 20U | 101U);
}

}  // namespace
}  // namespace ringtune
