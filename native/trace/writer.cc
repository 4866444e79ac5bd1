#include "trace/writer.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/futex.h"
#include "base/log.h"
#include "trace/batch_slots.h"

namespace ringtune {
namespace {

// Horovod's timeline holds an event at once, and scripts read it a tenth of a second later.
constexpr std::int64_t kNapNs = 50'000'000;
constexpr std::int64_t kFlushNs = 50'000'000;  // longest time without a flush while there is too much for a nap

/// Signals belong to the application's threads: a thread started while this lives inherits that all are blocked.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

TraceWriter::TraceWriter(std::unique_ptr<Sink> sink, ThreadRings* rings, NameTable* names)
    : sink_(std::move(sink)),
      rings_(rings),
      names_(names),
      lookup_([this](std::uint32_t id) { return names_->name_of(id); }),
      dropped_before_(rings->dropped()),
      process_(::getpid()) {
  // Left behind by a recorder that was overtaken by the stop before: they belong to no recording.
  for (const auto& ring : rings_->all()) {
    while (!ring->spans.readable().empty()) ring->spans.consume(ring->spans.readable().size());
  }
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "ringtune-trace");
}

TraceWriter::~TraceWriter() {
  if (thread_.joinable()) (void)finish();
}

std::string TraceWriter::finish() {
  if (::getpid() != process_) {
    // A forked child has no such thread (joining would wait for ever, detaching throws), and the file is its parent's:
    // both are given up for good.
    (void)new std::thread(std::move(thread_));
    (void)sink_.release();
    return {};
  }
  stop_.store(true, std::memory_order_seq_cst);  // before wake() looks at the state; see nap()
  wake();
  thread_.join();
  return error_;
}

std::uint64_t TraceWriter::dropped() const {
  return rings_->dropped() - dropped_before_ + lost_.load(std::memory_order_relaxed) +
         sink_lost_.load(std::memory_order_relaxed);
}

void TraceWriter::push_event(RareEvent event) {
  {
    const std::lock_guard lock(event_mutex_);
    if (events_.size() >= kMostEvents) {  // the disk is too slow: memory stays bounded
      count_lost(1);
      return;
    }
    events_.push_back(std::move(event));
  }
  wake();
}

void TraceWriter::wake() noexcept {
  // A system call only when the thread does wait. seq_cst: ordered against what was published before.
  if (state_.exchange(kAwake, std::memory_order_seq_cst) != kAwake) futex_wake(state_, 1, FutexScope::kPrivate);
}

void TraceWriter::run() noexcept {
  std::int64_t flushed_ns = 0;
  for (;;) {
    const bool stopping = stop_.load(std::memory_order_seq_cst);  // before the round: it then sees all there was
    const bool moved = drain();
    if (stopping) break;
    if (!moved) {
      sleep();
      continue;
    }
    if (much_there() && now_ns() - flushed_ns < kFlushNs) continue;
    guarded([this] { sink_->flush(); });
    flushed_ns = now_ns();
    if (!much_there()) nap();  // looked at again: the disk may have been slow
  }
  guarded([this] { sink_->flush(); });
  guarded([this] { sink_->close(dropped()); });
  sink_.reset();
}

/// Runs `action` on the sink, which is used on after an error: what found no room is lost, later spans may find some.
template <typename Action>
void TraceWriter::guarded(Action action, std::size_t spans) noexcept {
  try {
    action();
  } catch (const std::exception& error) {
    try {
      if (error_.empty()) {
        error_ = std::string(error.what()) + " (spans are dropped; training goes on without them)";
        log_line(LogLevel::kError, error_);
      }
    } catch (...) {
      error_ = "timeline lost";  // short enough for no allocation
    }
  }
  given_.fetch_add(spans, std::memory_order_relaxed);  // before what was lost of them
  sink_lost_.store(sink_->lost(), std::memory_order_relaxed);
}

bool TraceWriter::drain() {
  const std::uint32_t oldest = names_->oldest();
  bool moved = drain_events();
  for (const auto& ring : rings_->all()) {
    // At most what was there at the beginning and once around: a thread that never rests does not starve the others.
    for (int part = 0; part < 2; ++part) {
      const std::span<const Span> spans = ring->spans.readable();
      if (spans.empty()) break;
      moved = true;
      guarded([&] { sink_->write(spans, lookup_); }, count_spans(spans));
      ring->spans.consume(spans.size());
    }
  }
  // A round later: a recorder may have asked for a number just before and push its span just after a round.
  names_->forget(std::exchange(outdated_names_, oldest));
  return moved;
}

bool TraceWriter::drain_events() {
  std::vector<RareEvent> events;
  {
    const std::lock_guard lock(event_mutex_);
    events.swap(events_);
  }
  for (const RareEvent& event : events) guarded([&] { sink_->write(event); });
  return !events.empty();
}

void TraceWriter::nap() {
  state_.store(kNapping, std::memory_order_seq_cst);
  // Either finish() sees kNapping and wakes, or we see its stop here. Spans may wait until the nap is over.
  if (!stop_.load(std::memory_order_seq_cst)) {
    (void)futex_wait(state_, kNapping, Deadline::after(kNapNs), FutexScope::kPrivate);
  }
  state_.store(kAwake, std::memory_order_relaxed);
}

void TraceWriter::sleep() {
  state_.store(kSleeping, std::memory_order_seq_cst);
  // A recorder stores its tail, then loads the state; we store the state, then load the tails. In the single order of
  // seq_cst operations one of the two sees the other, so no span is left lying while we sleep.
  while (state_.load(std::memory_order_seq_cst) == kSleeping && nothing_there()) {
    (void)futex_wait(state_, kSleeping, Deadline::never(), FutexScope::kPrivate);
  }
  state_.store(kAwake, std::memory_order_relaxed);
}

/// A recorder that filled a quarter of its ring while we were at work has woken nobody and may be in need of room.
bool TraceWriter::much_there() const {
  const auto rings = rings_->all();
  return std::any_of(rings.begin(), rings.end(),
                     [](const auto& ring) { return ring->spans.readable().size() >= ring->spans.capacity() / 4; });
}

bool TraceWriter::nothing_there() {
  if (stop_.load(std::memory_order_seq_cst) || !rings_->all_empty()) return false;
  const std::lock_guard lock(event_mutex_);
  return events_.empty();
}

}  // namespace ringtune
