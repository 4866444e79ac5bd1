#include "trace/tracer.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "trace/name_table.h"
#include "trace/thread_rings.h"

namespace ringtune {
namespace {

Span span_at(std::int64_t begin_ns, std::uint32_t name_id = 0) {
  return {begin_ns, begin_ns + 10, 4, name_id, 1, 2, 3, Stage::kCopyIn, 0};
}

/// Holds the writer thread inside write() until it is let go, counts, and can be told to fail.
class GateSink : public Sink {
 public:
  struct Control {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = true;
    bool inside = false;
    bool fail = false;
    std::size_t spans = 0;
    std::size_t events = 0;
    std::size_t flushes = 0;
    std::size_t closes = 0;
    std::uint64_t dropped = 0;

    template <typename Predicate>
    void wait_for(Predicate predicate) {
      std::unique_lock lock(mutex);
      ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), predicate));
    }
    void set_open(bool value) {
      const std::lock_guard lock(mutex);
      open = value;
      changed.notify_all();
    }
  };

  explicit GateSink(Control* control) : control_(*control) {}
  void write(std::span<const Span> spans, const NameLookup&) override {
    std::unique_lock lock(control_.mutex);
    control_.inside = true;
    control_.changed.notify_all();
    control_.changed.wait(lock, [this] { return control_.open; });
    control_.inside = false;
    if (control_.fail) {
      lost_ += spans.size();
      throw TraceIo("disk full");
    }
    control_.spans += spans.size();
    control_.changed.notify_all();
  }
  void write(const RareEvent&) override { bump(control_.events); }
  void flush() override { bump(control_.flushes); }
  void close(std::uint64_t dropped) override {
    bump(control_.closes);
    control_.dropped = dropped;
  }
  [[nodiscard]] std::uint64_t lost() const noexcept override { return lost_; }

 private:
  void bump(std::size_t& counter) {
    const std::lock_guard lock(control_.mutex);
    ++counter;
    control_.changed.notify_all();
  }
  Control& control_;
  std::uint64_t lost_ = 0;
};

TEST(TraceTracer, KeepsEverySpanInOrder) {
  std::vector<Span> out;
  Tracer tracer;
  tracer.start(make_memory_sink(&out));
  for (int i = 0; i < 1000; ++i) tracer.record(span_at(i));
  tracer.stop();
  ASSERT_EQ(out.size(), 1000U);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(out[static_cast<std::size_t>(i)].begin_ns, i);
  EXPECT_EQ(tracer.recorded(), 1000U);
  EXPECT_EQ(tracer.dropped(), 0U);
}

TEST(TraceTracer, RecordsNothingWhenStopped) {
  std::vector<Span> out;
  Tracer tracer;
  tracer.record(span_at(1));
  tracer.start(make_memory_sink(&out));
  EXPECT_TRUE(tracer.recording());
  tracer.stop();
  tracer.stop();
  tracer.record(span_at(2));
  EXPECT_FALSE(tracer.recording());
  EXPECT_TRUE(out.empty());
}

TEST(TraceTracer, StartsAnyNumberOfTimesButOnlyOneAtATime) {
  Tracer tracer;
  for (int round = 0; round < 20; ++round) {
    std::vector<Span> out;
    tracer.start(make_memory_sink(&out));
    EXPECT_THROW(tracer.start(make_null_sink()), InvalidArgument);
    tracer.record(span_at(round));
    tracer.stop();
    ASSERT_EQ(out.size(), 1U);
    EXPECT_EQ(out[0].begin_ns, round);
    EXPECT_EQ(tracer.recorded(), 1U);
  }
}

TEST(TraceTracer, NamesAreStable) {
  Tracer tracer;
  const std::uint32_t first = tracer.intern("a");
  EXPECT_EQ(tracer.intern(""), 0U);
  EXPECT_NE(tracer.intern("b"), first);
  EXPECT_EQ(tracer.intern("a"), first);
}

TEST(TraceTracer, AFullRingDropsAndCounts) {
  GateSink::Control control;
  control.open = false;
  Tracer tracer({.ring_spans = 8});
  tracer.start(std::make_unique<GateSink>(&control));
  tracer.record(span_at(0));
  control.wait_for([&] { return control.inside; });  // the writer holds one span and consumes nothing
  for (int i = 1; i < 20; ++i) tracer.record(span_at(i));
  EXPECT_EQ(tracer.dropped(), 12U);
  control.set_open(true);
  tracer.stop();
  EXPECT_EQ(control.spans, 8U);
  EXPECT_EQ(control.dropped, 12U);
  EXPECT_EQ(tracer.recorded(), 8U);
  tracer.start(make_null_sink());
  EXPECT_EQ(tracer.dropped(), 0U) << "the counts start anew";
}

TEST(TraceTracer, ManyThreadsLoseNothing) {
  constexpr int kThreads = 8;
  constexpr int kEach = 5000;
  std::vector<Span> out;
  Tracer tracer;
  tracer.start(make_memory_sink(&out));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) tracer.record(span_at(t * kEach + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  tracer.stop();
  std::set<std::int64_t> seen;
  for (const Span& span : out) seen.insert(span.begin_ns);
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(out.size(), seen.size());
}

TEST(TraceTracer, StartAndStopWhileOthersRecord) {
  Tracer tracer;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!done.load()) tracer.record(span_at(1, tracer.intern("x")));
    });
  }
  for (int round = 0; round < 30; ++round) {
    tracer.start(make_null_sink());
    tracer.event("KNOBS", "knobs", now_ns(), "{}");
    tracer.stop();
  }
  done.store(true);
  for (std::thread& thread : threads) thread.join();
}

TEST(TraceTracer, AGroupRecordsIntoTheTimelineOfItsJob) {
  std::vector<Span> out;
  auto job = std::make_unique<Tracer>();
  Tracer group(*job, {3, "pair", {4, 7}});
  group.record(span_at(1));
  EXPECT_FALSE(group.recording());
  EXPECT_THROW(group.start(make_null_sink()), std::exception);
  job->start(make_memory_sink(&out));
  job->now_in(9, 2);
  EXPECT_TRUE(group.recording());
  Span await = span_at(2);
  await.stage = Stage::kAwait;
  await.peer = 1;
  Span on_gpu = span_at(3);
  on_gpu.peer = 1;               // a GPU's number
  on_gpu.batch_id |= 1U << 31U;  // of a step schedule
  Span counter = span_at(4);
  counter.stage = Stage::kCounter;
  BatchWords words{};
  words.words[0] = 11;
  words.stage = Stage::kWords;
  group.record(std::array{await, on_gpu, counter, std::bit_cast<Span>(words)});
  group.event("KNOBS", "knobs", 1, "{}");
  group.stop();  // its own recording, which it does not have
  EXPECT_TRUE(job->recording());
  EXPECT_EQ(group.intern("grad"), job->intern("pair: grad"));
  EXPECT_EQ(group.intern(""), 0U);
  job->stop();
  job.reset();
  group.record(span_at(5));
  ASSERT_EQ(out.size(), 4U);
  for (const std::size_t i : {0U, 1U}) {
    EXPECT_EQ(out[i].batch_id, kGroupBatches + (3U << 20) + (i << 19) + 1);
    EXPECT_EQ(out[i].process_set, 3);
    EXPECT_EQ(out[i].step, 9U);
    EXPECT_EQ(out[i].knobs_version, 2);
  }
  EXPECT_EQ(out[0].peer, 7);
  EXPECT_EQ(out[1].peer, 1);
  EXPECT_EQ(out[2].batch_id, 1U) << "counted operations";
  EXPECT_EQ(std::bit_cast<BatchWords>(out[3]).words, words.words);
}

TEST(TraceTracer, GroupsBeyond512AreNotMixedUp) {
  std::vector<Span> out;
  Tracer job;
  job.start(make_memory_sink(&out));
  for (std::uint16_t number = 1; number <= 2048; ++number) {
    Tracer group(job, {number, "g" + std::to_string(number), {0, 1}});
    for (std::uint32_t batch = 1; batch <= 3; ++batch) {
      Span span = span_at(1);
      span.batch_id = batch;
      group.record(span);
    }
  }
  job.stop();
  std::set<std::uint32_t> seen;
  for (const Span& span : out) {
    EXPECT_GE(span.batch_id, kGroupBatches);
    EXPECT_LT(span.batch_id, 2 * kGroupBatches);
    seen.insert(span.batch_id);
  }
  EXPECT_EQ(seen.size(), std::size_t{2048 * 3});
}

TEST(TraceRings, AThreadThatEndsGivesItsRingBack) {
  ThreadRings rings(16);
  for (int i = 0; i < 50; ++i) std::thread([&] { EXPECT_NE(rings.mine(), nullptr); }).join();
  EXPECT_EQ(rings.count(), 1U);
}

TEST(TraceRings, UnreadSpansAreNotHandedOn) {
  ThreadRings rings(16);
  std::thread([&] { EXPECT_TRUE(rings.mine()->spans.try_push(span_at(1))); }).join();
  std::thread([&] { EXPECT_TRUE(rings.mine()->spans.empty()); }).join();
  EXPECT_EQ(rings.count(), 2U);
}

TEST(TraceRings, OneThreadHasOneRingPerTracer) {
  auto first = std::make_unique<ThreadRings>(16);
  ThreadRings second(16);
  ThreadRing* const ring = first->mine();
  EXPECT_NE(second.mine(), ring);
  EXPECT_EQ(first->mine(), ring);
  first.reset();  // the tracer ends before the thread
  ThreadRings third(16);
  EXPECT_NE(third.mine(), second.mine());
}

TEST(TraceWriter, FlushesWhenNothingComesAndThenSleeps) {
  GateSink::Control control;
  Tracer tracer;
  tracer.start(std::make_unique<GateSink>(&control));
  for (std::size_t round = 1; round <= 3; ++round) {  // each round the writer sleeps for good and must be woken
    tracer.record(span_at(1));
    control.wait_for([&] { return control.flushes == round && control.spans == round; });
  }
  tracer.stop();
  EXPECT_EQ(control.closes, 1U);
}

/// How often the writer thread of this process has gone to sleep since it started.
long sleeps_of_writer() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string word;
    std::string name;
    long sleeps = -1;
    while (status >> word) {
      if (word == "Name:") status >> name;
      if (word == "voluntary_ctxt_switches:") status >> sleeps;
    }
    if (name == "ringtune-trace") return sleeps;
  }
  return -1;
}

TEST(TraceWriter, FlushesAlsoWhileSpansKeepComing) {
  GateSink::Control control;
  Tracer tracer;
  tracer.start(std::make_unique<GateSink>(&control));
  const Deadline deadline = Deadline::after(120'000'000'000);
  std::size_t flushes = 0;
  for (int i = 0; flushes < 3 && !deadline.expired(); ++i) {
    tracer.record(span_at(i));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(control.mutex);
    flushes = control.flushes;
  }
  EXPECT_GE(flushes, 3U);
  tracer.stop();
}

TEST(TraceWriter, WakesForNobodyWhenIdle) {
  GateSink::Control control;
  Tracer tracer;
  tracer.start(std::make_unique<GateSink>(&control));
  tracer.record(span_at(1));
  control.wait_for([&] { return control.flushes == 1; });  // a nap follows, and then sleep
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const long before = sleeps_of_writer();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_GT(before, 0);
  EXPECT_EQ(sleeps_of_writer(), before);
  tracer.stop();
}

TEST(TraceWriter, AFailingSinkLosesSpansNotTheTraining) {
  GateSink::Control control;
  control.fail = true;
  Tracer tracer({.ring_spans = 16});
  set_log_level(LogLevel::kWarning);  // whatever other tests left
  ::testing::internal::CaptureStderr();
  tracer.start(std::make_unique<GateSink>(&control));
  tracer.record(span_at(1));
  // The ring holds 16: that 1000 more find room or are counted shows that the writer goes on draining.
  for (int i = 0; i < 1000; ++i) tracer.record(span_at(i));
  EXPECT_TRUE(tracer.recording());
  try {
    tracer.stop();
    FAIL() << "stop() must tell";
  } catch (const TraceIo& error) {
    EXPECT_NE(std::string(error.what()).find("disk full"), std::string::npos);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("disk full"), std::string::npos);
  EXPECT_EQ(log.find("disk full"), log.rfind("disk full")) << "logged once: " << log;
  EXPECT_EQ(tracer.dropped(), 1001U);
  EXPECT_EQ(tracer.recorded(), 0U);
  tracer.start(make_null_sink());  // and it can be started again
  tracer.stop();
}

TEST(TraceWriter, RareEventsReachTheSink) {
  GateSink::Control control;
  Tracer tracer;
  tracer.event("KNOBS", "knobs", 1, "{}");  // not recording: nothing
  tracer.start(std::make_unique<GateSink>(&control));
  tracer.event("KNOBS", "knobs", 1, R"({"knobs_version":1})");
  tracer.stop();
  EXPECT_EQ(control.events, 1U);
}

TEST(NameTable, ForgetsNamesThatNobodyCanHold) {
  NameTable names;
  const std::uint32_t often = names.intern("often");
  std::uint32_t last = often;
  for (std::uint32_t i = 0; i < 3 * NameTable::kMostNames; ++i) {
    last = names.intern("step" + std::to_string(i));
    if (i % 1000 == 0) {
      const std::uint32_t id = names.intern("often");
      EXPECT_GE(id, names.oldest());
      EXPECT_EQ(names.name_of(id), "often");
    }
  }
  EXPECT_EQ(names.name_of(often), "often") << "until it is forgotten";
  EXPECT_LT(often, names.oldest());
  names.forget(names.oldest());
  EXPECT_EQ(names.name_of(often), "");
  EXPECT_EQ(names.name_of(last), "step" + std::to_string(3 * NameTable::kMostNames - 1));
  EXPECT_EQ(names.intern("often"), names.intern("often"));
  EXPECT_EQ(names.intern(""), 0u);
  EXPECT_EQ(names.name_of(0), "");
}

}  // namespace
}  // namespace ringtune
