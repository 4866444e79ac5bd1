#include "transport/carried_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "base/bytes.h"
#include "transport/memory.h"
#include "transport/socket.h"

namespace ringtune {
namespace {

/// Of links that this process has numbered: each number is used once, also by the job that follows in this process.
std::atomic<std::uint32_t> numbered{0};

}  // namespace

// The lower rank gives the number.
Fd open_carried(const BootstrapRequest& request, int rank, Fd meeting, Waker& waker, const Carrier& carrier) {
  const WatchScope scope(waker, meeting.get());
  std::array<std::byte, 4> bytes{};
  if (rank < request.peer) {
    ByteWriter number;
    number.u32(numbered++);
    std::copy(number.bytes().begin(), number.bytes().end(), bytes.begin());
    (void)write_some(meeting.get(), bytes);  // fits; a peer that is gone shows later
  } else {
    read_exactly(request, waker, meeting.get(), bytes);
  }
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw_errno("cannot make a pair of sockets");
  }
  Fd own(ends[0]);
  carrier(request.peer, ByteReader(bytes).u32(), ends[1]);
  return own;
}

}  // namespace ringtune
