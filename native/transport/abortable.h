// Something of a rank that threads may block in, besides its links, and that must not outlive the job's end.
#pragma once

#include <string>

namespace ringtune {

class Abortable {
 public:
  virtual ~Abortable() = default;
  /// Any thread; never blocks. Every wait, now or later, throws PeerLost with the reason.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace ringtune
