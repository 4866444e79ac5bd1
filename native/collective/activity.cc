#include "collective/activity.h"

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

void finish(Activity& activity, Waker& waker, std::int64_t idle_timeout_ns) {
  advance_until(
      waker, idle_timeout_ns, [&] { return activity.done(); }, [&] { return activity.advance(); },
      [&] { throw Timeout(activity.complaint()); });
}

}  // namespace ringtune
