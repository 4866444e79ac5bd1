#include "collective/activity.h"

#include <algorithm>

#include "base/error.h"
#include "collective/progress.h"

namespace ringtune {

bool Sequence::advance() {
  if (done()) return false;
  const bool moved = parts_[at_]->advance();
  const std::size_t before = at_;
  skip_done();
  return moved || at_ != before;
}

void Sequence::skip_done() {
  while (at_ < parts_.size() && parts_[at_]->done()) ++at_;
}

Lanes::Lanes(std::vector<std::vector<Part>> lanes) {
  for (std::vector<Part>& parts : lanes) lanes_.push_back({std::move(parts)});
  (void)skip_done();
}

Activity* Lanes::Lane::current() const {
  if (at == parts.size()) return nullptr;
  const Part& part = parts[at];
  return part.after == nullptr || part.after->done() ? part.activity.get() : nullptr;
}

bool Lanes::advance() {
  bool moved = false;
  for (Lane& lane : lanes_) {
    if (Activity* const activity = lane.current()) moved = activity->advance() || moved;
  }
  return skip_done() || moved;
}

bool Lanes::skip_done() {
  bool passed = false;
  for (bool again = true; again;) {
    again = false;
    for (Lane& lane : lanes_) {
      const Activity* const activity = lane.current();
      if (activity == nullptr || !activity->done()) continue;
      ++lane.at;
      passed = again = true;
    }
  }
  return passed;
}

bool Lanes::done() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.at == lane.parts.size(); });
}

std::string Lanes::complaint() const {
  for (const Lane& lane : lanes_) {
    if (const Activity* const activity = lane.current()) return activity->complaint();
  }
  return "nothing is under way";
}

void finish(Activity& activity, Waker& waker, std::int64_t idle_timeout_ns) {
  advance_until(
      waker, idle_timeout_ns, [&] { return activity.done(); }, [&] { return activity.advance(); },
      [&] { throw Timeout(activity.complaint()); });
}

}  // namespace ringtune
