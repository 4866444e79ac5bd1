// What every rank tells all others at the start: where it runs and how it can be reached.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/cores.h"
#include "transport/fabric.h"
#include "transport/shared_waker.h"

namespace ringtune {

/// Value type. Two ranks share memory when host, boot, pid namespace and user are equal: then /proc/<pid>/fd means the
/// same to both and the kernel lets one open what the other created.
struct PeerInfo {
  int rank = 0;
  std::string host;
  std::string boot_id;        // of the running kernel; empty when /proc does not tell
  std::string pid_namespace;  // likewise
  std::uint32_t user = 0;
  TransportChoice transport = TransportChoice::kAuto;
  int sockets = 1;  // wanted for a TCP link
  CoreSet cores;    // that it may use
  WakerAddress waker;
  std::string address;  // numeric, of the listening socket
  std::uint16_t port = 0;
};

/// What this process can say by itself: boot, pid namespace, user, cores.
[[nodiscard]] PeerInfo describe_process();

[[nodiscard]] Bytes encode(const PeerInfo& peer_info);
/// Throws Protocol for other versions and corrupt values.
[[nodiscard]] PeerInfo decode_peer_info(ByteView bytes);

/// Empty when the two may share memory, else why not ("they run on hosts a and b").
[[nodiscard]] std::string why_not_shared(const PeerInfo& a, const PeerInfo& b);

/// Whether a process of this host and pid namespace is stopped (SIGSTOP, a debugger).
[[nodiscard]] bool is_stopped(int pid);

/// "rank 1 on host a".
[[nodiscard]] std::string name_of(const PeerInfo& peer_info);

/// Throws the Timeout of a rank in the start of a job for which `missing` ranks have not come.
[[noreturn]] void throw_waited_in_vain(const std::string& job, int rank, int size, const std::vector<int>& missing);

/// Puts the own peer info into the store and collects those of all ranks, by rank. Blocks until all are there.
/// Throws Timeout naming the ranks that are not.
[[nodiscard]] std::vector<PeerInfo> exchange_peer_infos(const FabricOptions& options, const PeerInfo& own,
                                                        StoreClient& store, Deadline deadline);

}  // namespace ringtune
