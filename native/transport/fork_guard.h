// Sockets that a forked child must not keep open. A data loader forks workers that outlive a killed rank for seconds;
// if they held its liveness socket, nobody would see it close.
#pragma once

#include "base/fd.h"

namespace ringtune {

/// Owns a descriptor that every child made by fork() closes before fork() returns there. Any thread; move-only.
class ParentOnlyFd {
 public:
  ParentOnlyFd() noexcept = default;
  /// Throws std::bad_alloc.
  explicit ParentOnlyFd(Fd fd);
  ParentOnlyFd(ParentOnlyFd&&) noexcept = default;
  ParentOnlyFd& operator=(ParentOnlyFd&& other) noexcept;
  ~ParentOnlyFd();
  [[nodiscard]] int get() const noexcept { return fd_.get(); }
  [[nodiscard]] bool valid() const noexcept { return fd_.valid(); }
  void reset() noexcept;

 private:
  Fd fd_;
};

}  // namespace ringtune
