#include "transport/link_table.h"

#include "base/error.h"

namespace ringtune {

void AbortState::give(const std::string& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (given_.load(std::memory_order_relaxed)) return;
  try {
    reason_ = reason;
  } catch (...) {  // out of memory: abort without words rather than not at all
  }
  // Release: a thread that sees the flag reads the complete reason, which never changes again (so without the mutex).
  given_.store(true, std::memory_order_release);
}

void AbortState::raise(int peer) const {
  throw PeerLost(peer, reason_.empty() ? "the links of this rank were aborted" : reason_);
}

void LinkTable::check_free(int peer, const std::string& channel) const {
  aborted_.check(peer);
  const std::lock_guard lock(mutex_);
  if (links_.contains({peer, channel})) {
    throw InvalidArgument("channel '" + channel + "' to rank " + std::to_string(peer) +
                          " is open already: give every link between two ranks its own channel name");
  }
}

Link& LinkTable::add(const std::string& channel, std::unique_ptr<Link> link) {
  const std::lock_guard lock(mutex_);
  Link& added = *link;
  links_[{added.peer(), channel}] = std::move(link);
  if (aborted_.given()) added.abort(reason_);
  return added;
}

void LinkTable::add_abortable(const std::shared_ptr<Abortable>& abortable) {
  const std::lock_guard lock(mutex_);
  abortables_.emplace_back(abortable);
  if (aborted_.given()) abortable->abort(reason_);
}

void LinkTable::close(const std::string& prefix) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(links_, [&](const auto& item) { return item.first.second.starts_with(prefix); });
}

void LinkTable::abort(const std::string& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (aborted_.given()) return;
  try {
    reason_ = reason;
  } catch (...) {  // out of memory: as in AbortState::give
  }
  aborted_.give(reason);
  for (const auto& [key, link] : links_) link->abort(reason);
  for (const std::weak_ptr<Abortable>& weak : abortables_) {
    if (const std::shared_ptr<Abortable> abortable = weak.lock()) abortable->abort(reason);
  }
}

void LinkTable::clear() noexcept {
  const std::lock_guard lock(mutex_);
  links_.clear();
}

}  // namespace ringtune
