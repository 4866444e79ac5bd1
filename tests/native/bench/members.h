// Processes that share a shared-memory group, for programs that time it.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "collective/communicator.h"
#include "collective/shm_bootstrap.h"
#include "transport/fabric.h"
#include "transport/store.h"

namespace ringtune::bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// As the environment says: SLOTS, SLOT_KIB, CHANGES_OWNER (0, 1) and DISTANCE (0 to 2, as CoreLatency).
inline ShmGroupOptions shm_group_options() {
  const auto number = [](const char* text) { return std::strtoul(text, nullptr, 10); };
  ShmGroupOptions options = default_shm_group();
  if (const char* slots = std::getenv("SLOTS")) options.slots = number(slots);
  if (const char* slot = std::getenv("SLOT_KIB")) options.slot_bytes = number(slot) << 10;
  if (const char* hands = std::getenv("CHANGES_OWNER")) options.changes_owner = number(hands) != 0;
  if (const char* distance = std::getenv("DISTANCE")) options.distance = static_cast<CoreLatency>(number(distance));
  return options;
}

/// One member's life: calls `run` with its shared-memory group.
inline void live(int rank, int members, std::uint16_t port, const std::function<void(ShmGroup&)>& run) {
  constexpr std::int64_t kWaitNs = 10'000'000'000;
  StoreClient store("127.0.0.1", port, Secret("bench"), Deadline::after(kWaitNs));
  FabricOptions options;
  options.rank = rank;
  options.size = members;
  options.secret = "bench";
  options.host = "here";
  auto fabric = make_fabric(options, &store, Deadline::after(kWaitNs));
  const std::vector<int> ranks = all_ranks(members);
  const Group ring = connect_ring(*fabric, ranks, "bench", Deadline::after(kWaitNs));
  const std::shared_ptr<ShmGroup> shm_group = connect_shm_group(*fabric, ring, ranks, shm_group_options());
  if (!shm_group) {
    std::fprintf(stderr, "no shm_group\n");
    std::_Exit(1);
  }
  run(*shm_group);
  fabric->leave();
}

/// A process for each member, to its end; returns the exit status of the program.
inline int run_members(int members, const std::function<void(ShmGroup&)>& run) {
  int port_pipe[2];
  if (::pipe(port_pipe) != 0) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < members; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::uint16_t port = 0;
      if (::read(port_pipe[0], &port, sizeof port) != sizeof port) std::_Exit(1);
      live(rank, members, port, run);
      std::fflush(stdout);
      std::_Exit(0);
    }
    children.push_back(pid);
  }
  StoreServer server("127.0.0.1", 0, Secret("bench"));  // its threads are not to be forked
  const std::uint16_t port = server.port();
  for (int rank = 0; rank < members; ++rank) {
    if (::write(port_pipe[1], &port, sizeof port) != sizeof port) return 1;
  }
  int failures = 0;
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    failures += status != 0 ? 1 : 0;
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace ringtune::bench
