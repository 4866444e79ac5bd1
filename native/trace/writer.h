// The thread that moves spans from the rings into the sink. Internal to trace/.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trace/name_table.h"
#include "trace/sink.h"
#include "trace/thread_rings.h"

namespace ringtune {

/// Lives for one recording: the constructor starts the thread, finish() drains and ends it. Borrows rings and names.
///
/// While spans come in, the thread flushes the sink after each round, so that who follows the file sees them soon, and
/// naps at most 50 ms before the next one; after a round without any it sleeps without a timer until the next span. A
/// recorder pays for a wake-up only then, and when a quarter of its ring was filled since it last looked.
class TraceWriter {
 public:
  TraceWriter(std::unique_ptr<Sink> sink, ThreadRings* rings, NameTable* names);
  ~TraceWriter();  // ends the thread when finish() was not called
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  /// Recorder, after a push with seq_cst. Inline: the common case is one load.
  void pushed(ThreadRing& ring, std::size_t count) noexcept {
    const bool sleeping = state_.load(std::memory_order_seq_cst) == kSleeping;
    const std::uint64_t before = ring.pushed;
    ring.pushed += count;
    const std::size_t part = ring.spans.capacity() / 4;  // a power of two
    const bool quarter = ((before ^ ring.pushed) & ~std::uint64_t{part - 1}) != 0;
    if (sleeping || quarter) [[unlikely]]
      wake();
  }
  void push_event(RareEvent event);
  /// A span that found no room or no ring.
  void count_lost(std::size_t spans) noexcept { lost_.fetch_add(spans, std::memory_order_relaxed); }

  /// Blocks until everything recorded before the call is written and the sink is closed. Returns the first error of the
  /// sink, empty when there was none. In a forked child: gives up thread and file and returns at once.
  std::string finish();

  [[nodiscard]] std::uint64_t written() const noexcept {
    return given_.load(std::memory_order_relaxed) - sink_lost_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t dropped() const;

 private:
  enum State : std::uint32_t { kAwake = 0, kNapping = 1, kSleeping = 2 };
  void run() noexcept;
  bool drain();
  bool drain_events();
  bool much_there() const;
  bool nothing_there();
  void nap();
  void sleep();
  void wake() noexcept;
  template <typename Action>
  void guarded(Action action, std::size_t spans = 0) noexcept;

  std::unique_ptr<Sink> sink_;
  ThreadRings* rings_;
  NameTable* names_;
  std::uint32_t outdated_names_ = 0;  // their numbers were not to be used any more before the last round
  NameLookup lookup_;
  const std::uint64_t dropped_before_;  // by the rings, in earlier recordings
  const int process_;
  alignas(64) std::atomic<std::uint32_t> state_{kAwake};  // read by every recorder: alone on its line
  alignas(64) std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> given_{0};      // to the sink
  std::atomic<std::uint64_t> sink_lost_{0};  // of these
  std::atomic<std::uint64_t> lost_{0};
  std::mutex event_mutex_;
  std::vector<RareEvent> events_;
  std::string error_;                                  // the first; of the writer thread, read by others after join
  static constexpr std::size_t kMostEvents = 1 << 14;  // that wait for the writer
  std::thread thread_;
};

}  // namespace ringtune
