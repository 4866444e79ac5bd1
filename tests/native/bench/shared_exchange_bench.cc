// Times gathers, exchanges and reduce-scatters in shared memory between forked processes:
// shared_exchange_bench [members] [bytes of the largest tensor ...]
// HANDS_OVER (0, 1) in the environment: the option of the arena.
// Not built by default: cmake --build build/native-tests --target ringtune_native_bench
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collective/arena_meeting.h"
#include "collective/communicator.h"
#include "collective/shared_exchange.h"
#include "transport/fabric.h"
#include "transport/store.h"

using namespace ringtune;

namespace {

constexpr std::int64_t kWaitNs = 10'000'000'000;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(SharedExchange& exchange, std::byte* output) {
  if (!await_agreement(exchange)) std::_Exit(1);
  exchange.deliver_to(output);
  exchange.finish();
}

/// Microseconds of a call, the median of bursts that begin together.
double time_of(Arena& arena, std::size_t bytes, const std::function<void()>& call) {
  const std::size_t calls = std::clamp<std::size_t>((8 << 20) / (bytes + 4096), 4, 2000);
  const std::vector<std::size_t> none(static_cast<std::size_t>(arena.size()));
  std::vector<double> times;
  for (int burst = 0; burst < 15; ++burst) {
    SharedGather together(arena, 7, none, nullptr);
    run(together, nullptr);
    const std::int64_t begin_ns = now_ns();
    for (std::size_t i = 0; i < calls; ++i) call();
    times.push_back(static_cast<double>(now_ns() - begin_ns) * 1e-3 / static_cast<double>(calls));
  }
  return median(times);
}

void run_member(int rank, int members, const std::vector<std::size_t>& sizes, std::uint16_t port) {
  StoreClient store("127.0.0.1", port, Deadline::after(kWaitNs));
  FabricOptions options;
  options.rank = rank;
  options.size = members;
  options.host = "here";
  auto fabric = make_fabric(options, &store, Deadline::after(kWaitNs));
  const std::vector<int> ranks = all_ranks(members);
  const Group ring = connect_ring(*fabric, ranks, "bench", Deadline::after(kWaitNs));
  ArenaOptions arena_options = default_arena();
  if (const char* hands = std::getenv("HANDS_OVER")) arena_options.hands_over = std::strtoul(hands, nullptr, 10) != 0;
  const std::shared_ptr<Arena> arena = connect_arena(*fabric, ring, ranks, arena_options);
  if (rank == 0) std::printf("%12s %12s %12s %12s %12s\n", "bytes", "broadcast", "allgather", "alltoall", "scatter");
  const auto count = static_cast<std::size_t>(members);
  for (const std::size_t bytes : sizes) {
    const std::size_t part = bytes / count / 64 * 64;
    std::vector<std::byte> input(bytes, std::byte{1});
    std::vector<std::byte> output(bytes, std::byte{2});
    std::vector<std::size_t> root(count);
    root.front() = bytes;
    const std::vector<std::size_t> equal(count, part);
    const std::vector<std::size_t> floats(count, part / sizeof(float));
    std::vector<double> times;
    times.push_back(time_of(*arena, bytes, [&] {
      SharedGather round(*arena, 1, root, input.data());
      run(round, input.data());
    }));
    times.push_back(time_of(*arena, bytes, [&] {
      SharedGather round(*arena, 2, equal, input.data());
      run(round, output.data());
    }));
    times.push_back(time_of(*arena, bytes, [&] {
      SharedAlltoall round(*arena, 3, equal, input.data());
      run(round, output.data());
    }));
    times.push_back(time_of(*arena, bytes, [&] {
      SharedReducescatter round(*arena, 4, {.parts = floats}, input.data());
      run(round, output.data());
    }));
    if (rank == 0) {
      std::printf("%12zu", bytes);
      for (const double time : times) std::printf(" %9.2f us", time);
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  fabric->leave();
}

}  // namespace

int main(int argc, char** argv) {
  const int members = argc > 1 ? std::atoi(argv[1]) : 2;
  std::vector<std::size_t> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  int port_pipe[2];
  if (::pipe(port_pipe) != 0) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < members; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::uint16_t port = 0;
      if (::read(port_pipe[0], &port, sizeof port) != sizeof port) std::_Exit(1);
      run_member(rank, members, sizes, port);
      std::_Exit(0);
    }
    children.push_back(pid);
  }
  StoreServer server("127.0.0.1", 0);
  const std::uint16_t port = server.port();
  for (int rank = 0; rank < members; ++rank) {
    if (::write(port_pipe[1], &port, sizeof port) != sizeof port) return 1;
  }
  for (const pid_t pid : children) ::waitpid(pid, nullptr, 0);
  return 0;
}
