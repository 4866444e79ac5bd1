// Starting the helper threads of the transport.
#pragma once

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "transport/memory.h"

namespace ringtune {

/// A thread with a name (at most 15 characters) that takes no signals: those belong to the program's own threads.
/// Throws std::system_error when the machine gives none.
template <typename Body>
[[nodiscard]] std::thread start_thread(const char* name, Body body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  try {
    std::thread thread(std::move(body));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    ::pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

/// Ends the poll() of a helper thread. raise() from any thread; fd() becomes readable for good.
class StopSignal {
 public:
  StopSignal() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!fd_) throw_errno("cannot create an eventfd");
  }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void raise() const noexcept {
    const std::uint64_t one = 1;
    while (::write(fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }
  /// Makes it unreadable again, for use as a plain wake-up.
  void clear() const noexcept {
    std::uint64_t count = 0;
    while (::read(fd_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
    }
  }

 private:
  Fd fd_;
};

}  // namespace ringtune
