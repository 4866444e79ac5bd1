// A link whose bytes something outside the runtime carries, such as MPI: a pair of sockets, one of whose ends it gets.
#pragma once

#include "base/fd.h"
#include "transport/fabric.h"
#include "transport/tcp_bootstrap.h"

namespace ringtune {

/// Agrees with the peer on a number for the link, over `meeting`, and gives the carrier its end. Returns this rank's,
/// for a TcpLink. Blocks; throws as TcpBootstrap does, and what the carrier throws.
[[nodiscard]] Fd open_carried(const BootstrapRequest& request, int rank, Fd meeting, Waker& waker,
                              const Carrier& carrier);

}  // namespace ringtune
