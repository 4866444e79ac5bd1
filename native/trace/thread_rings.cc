#include "trace/thread_rings.h"

#include <algorithm>
#include <utility>

namespace ringtune {
namespace {

std::atomic<std::uint64_t> g_next_id{1};

/// The ring used last by this thread; trivially destructible, so reading it needs no initialisation check.
struct LastRing {
  std::uint64_t tracer_id;  // 0 = none
  ThreadRing* ring;
  bool thread_ending;
};
thread_local constinit LastRing t_last{0, nullptr, false};

/// All rings of this thread, by tracer. Its destructor gives them back when the thread ends.
class OwnedRings {
 public:
  ~OwnedRings() {
    t_last = {0, nullptr, true};
    // release: the next owner of the ring sees all we did to it.
    for (auto& [id, ring] : rings_) ring->owner_ended.store(true, std::memory_order_release);
  }
  ThreadRing* find(std::uint64_t id) const noexcept {
    const auto found =
        std::find_if(rings_.begin(), rings_.end(), [id](const auto& entry) { return entry.first == id; });
    return found == rings_.end() ? nullptr : found->second.get();
  }
  void add(std::uint64_t id, std::shared_ptr<ThreadRing> ring) {
    // A ring that only this thread still holds belonged to a tracer that is gone.
    std::erase_if(rings_, [](const auto& entry) { return entry.second.use_count() == 1; });
    rings_.emplace_back(id, std::move(ring));
  }

 private:
  std::vector<std::pair<std::uint64_t, std::shared_ptr<ThreadRing>>> rings_;
};
thread_local OwnedRings t_owned;

}  // namespace

ThreadRings::ThreadRings(std::size_t ring_spans)
    : id_(g_next_id.fetch_add(1, std::memory_order_relaxed)), ring_spans_(ring_spans) {}

ThreadRing* ThreadRings::mine() noexcept {
  if (t_last.tracer_id == id_) [[likely]]
    return t_last.ring;
  if (t_last.thread_ending) return nullptr;  // t_owned is destroyed
  ThreadRing* ring = t_owned.find(id_);
  if (ring == nullptr) {
    try {
      ring = attach();
    } catch (...) {  // out of memory: the span counts as dropped, training goes on
      return nullptr;
    }
  }
  t_last.tracer_id = id_;
  t_last.ring = ring;
  return ring;
}

ThreadRing* ThreadRings::attach() {
  std::shared_ptr<ThreadRing> ring = take_over_or_make();
  t_owned.add(id_, ring);
  return ring.get();
}

std::shared_ptr<ThreadRing> ThreadRings::take_over_or_make() {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<ThreadRing>& ring : rings_) {
    // acquire: pairs with the release of the thread that ended. A ring with unread spans stays as it is.
    if (ring->owner_ended.load(std::memory_order_acquire) && ring->spans.empty()) {
      ring->owner_ended.store(false, std::memory_order_relaxed);  // only read under this lock
      return ring;
    }
  }
  return rings_.emplace_back(std::make_shared<ThreadRing>(ring_spans_));
}

std::vector<std::shared_ptr<ThreadRing>> ThreadRings::all() const {
  const std::lock_guard lock(mutex_);
  return rings_;
}

bool ThreadRings::all_empty() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(rings_.begin(), rings_.end(), [](const auto& ring) { return ring->spans.empty(); });
}

std::uint64_t ThreadRings::dropped() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t total = 0;
  for (const auto& ring : rings_) total += ring->dropped.load(std::memory_order_relaxed);  // a statistic
  return total;
}

std::size_t ThreadRings::count() const {
  const std::lock_guard lock(mutex_);
  return rings_.size();
}

}  // namespace ringtune
