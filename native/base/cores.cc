#include "base/cores.h"

#include <algorithm>
#include <cstdint>

namespace ringtune {
namespace {

constexpr std::size_t kWord = 64;
static_assert(CPU_SETSIZE % kWord == 0);

}  // namespace

CoreSet usable_cores() noexcept {
  CoreSet cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return cores;
  for (std::size_t core = 0; core < cores.size(); ++core) cores[core] = CPU_ISSET(core, &mask);
  return cores;
}

void write_cores(ByteWriter& out, const CoreSet& cores) {
  for (std::size_t first = 0; first < cores.size(); first += kWord) {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < kWord; ++i) word |= std::uint64_t{cores[first + i]} << i;
    out.u64(word);
  }
}

CoreSet read_cores(ByteReader& in) {
  CoreSet cores;
  for (std::size_t first = 0; first < cores.size(); first += kWord) {
    const std::uint64_t word = in.u64();
    for (std::size_t i = 0; i < kWord; ++i) cores[first + i] = (word >> i & 1) != 0;
  }
  return cores;
}

bool run_at_once(std::span<const CoreSet> threads) noexcept {
  CoreSet all;
  for (const CoreSet& cores : threads) {
    const auto confined =
        std::count_if(threads.begin(), threads.end(), [&](const CoreSet& other) { return (other & ~cores).none(); });
    if (static_cast<std::size_t>(confined) > cores.count()) return false;  // of themselves, if they have none
    all |= cores;
  }
  return threads.size() <= all.count();
}

}  // namespace ringtune
