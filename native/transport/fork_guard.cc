#include "transport/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace ringtune {
namespace {

/// The one list of the process, because fork() is an act of the whole process. Never destroyed: fork handlers stay
/// registered until the end.
struct GuardedFds {
  std::mutex mutex;
  std::vector<int> fds;
};

GuardedFds& guarded() {
  static auto* const list = [] {
    auto* created = new GuardedFds;
    // The mutex is held across fork(), so that the child finds the list whole. The child only closes and unlocks, both
    // allowed there.
    ::pthread_atfork([] { guarded().mutex.lock(); }, [] { guarded().mutex.unlock(); },
                     [] {
                       for (const int fd : guarded().fds) ::close(fd);
                       guarded().fds.clear();
                       guarded().mutex.unlock();
                     });
    return created;
  }();
  return *list;
}

}  // namespace

ParentOnlyFd::ParentOnlyFd(Fd fd) : fd_(std::move(fd)) {
  const std::lock_guard lock(guarded().mutex);
  guarded().fds.push_back(fd_.get());
}

ParentOnlyFd& ParentOnlyFd::operator=(ParentOnlyFd&& other) noexcept {
  if (this == &other) return *this;
  reset();
  fd_ = std::move(other.fd_);
  return *this;
}

ParentOnlyFd::~ParentOnlyFd() { reset(); }

void ParentOnlyFd::reset() noexcept {
  if (!fd_) return;
  const std::lock_guard lock(guarded().mutex);
  // Absent in a forked child: the number is closed there already and may mean another file by now.
  if (std::erase(guarded().fds, fd_.get()) == 0) {
    (void)fd_.release();
  } else {
    fd_.reset();
  }
}

}  // namespace ringtune
