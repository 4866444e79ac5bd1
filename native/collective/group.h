// The ranks that take part in a collective, as this rank sees them. Borrowed by the algorithms; owned by the runtime.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "transport/link.h"
#include "transport/waker.h"

namespace ringtune {

/// A ring: `next` is the link to (rank + 1) % size, `prev` to (rank - 1 + size) % size; both null when size == 1; for
/// size == 2 they are two distinct links to the same peer (channels "data/up" and "data/down" in the fabric), so that
/// what is sent to next is read from prev whatever the size. `rank` is the position in the group.
struct Group {
  int rank = 0;
  int size = 1;
  Link* next = nullptr;
  Link* prev = nullptr;
  Waker* waker = nullptr;
  std::int64_t idle_timeout_ns =
      0;  // no byte moved for that long -> Timeout; 0 = wait for ever (peer loss still ends it)
};

}  // namespace ringtune
