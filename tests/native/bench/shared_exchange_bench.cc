// Times gathers, exchanges and reduce-scatters in shared memory between forked processes:
// shared_exchange_bench [members] [bytes of the largest tensor ...]
// CHANGES_OWNER (0, 1) and DISTANCE (0 to 2, as CoreLatency) in the environment: the group's options.
// Not built by default: cmake --build build/native-tests --target ringtune_native_bench
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "collective/shared_exchange.h"
#include "members.h"

using namespace ringtune;

namespace {

void run(SharedExchange& exchange, std::byte* output) {
  if (!await_agreement(exchange)) std::_Exit(1);
  exchange.deliver_to(output);
  exchange.finish();
}

/// Microseconds of a call, the median of bursts that begin together.
double time_of(ShmGroup& shm_group, std::size_t bytes, const std::function<void()>& call) {
  const std::size_t calls = std::clamp<std::size_t>((8 << 20) / (bytes + 4096), 4, 2000);
  const std::vector<std::size_t> none(static_cast<std::size_t>(shm_group.size()));
  std::vector<double> times;
  for (int burst = 0; burst < 15; ++burst) {
    SharedGather together(shm_group, 7, none, nullptr);
    run(together, nullptr);
    const std::int64_t begin_ns = now_ns();
    for (std::size_t i = 0; i < calls; ++i) call();
    times.push_back(static_cast<double>(now_ns() - begin_ns) * 1e-3 / static_cast<double>(calls));
  }
  return bench::median(times);
}

void run_member(ShmGroup& shm_group, const std::vector<std::size_t>& sizes) {
  const int rank = shm_group.position();
  if (rank == 0) std::printf("%12s %12s %12s %12s %12s\n", "bytes", "broadcast", "allgather", "alltoall", "scatter");
  const auto count = static_cast<std::size_t>(shm_group.size());
  for (const std::size_t bytes : sizes) {
    const std::size_t part = bytes / count / 64 * 64;
    std::vector<std::byte> input(bytes, std::byte{1});
    std::vector<std::byte> output(bytes, std::byte{2});
    std::vector<std::size_t> root(count);
    root.front() = bytes;
    const std::vector<std::size_t> equal(count, part);
    const std::vector<std::size_t> floats(count, part / sizeof(float));
    std::vector<double> times;
    times.push_back(time_of(shm_group, bytes, [&] {
      SharedGather round(shm_group, 1, root, input.data());
      run(round, input.data());
    }));
    times.push_back(time_of(shm_group, bytes, [&] {
      SharedGather round(shm_group, 2, equal, input.data());
      run(round, output.data());
    }));
    times.push_back(time_of(shm_group, bytes, [&] {
      SharedAlltoall round(shm_group, 3, equal, input.data());
      run(round, output.data());
    }));
    times.push_back(time_of(shm_group, bytes, [&] {
      SharedReducescatter round(shm_group, 4, {.parts = floats}, input.data());
      run(round, output.data());
    }));
    if (rank == 0) {
      std::printf("%12zu", bytes);
      for (const double time : times) std::printf(" %9.2f us", time);
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int members = argc > 1 ? std::atoi(argv[1]) : 2;
  std::vector<std::size_t> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  return bench::run_members(members, [&](ShmGroup& shm_group) { run_member(shm_group, sizes); });
}
