// Times shared_allreduce between forked processes: shared_allreduce_bench [members] [float32|float16|...] [bytes ...]
// SLOTS, SLOT_KIB, CHANGES_OWNER (0, 1) and DISTANCE (0 to 2, as CoreLatency) in the environment: the group's options.
// Not built by default: cmake --build build/native-tests --target ringtune_native_bench
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collective/shared_allreduce.h"
#include "device/cpu_kernels.h"
#include "members.h"

using namespace ringtune;

namespace {

/// Small integers whose sum over the ranks is exact; other types than float32 are timed on zeros.
void fill(std::byte* data, std::size_t bytes, DType dtype, int rank) {
  std::memset(data, 0, bytes);
  if (dtype != DType::kFloat32) return;
  auto* numbers = reinterpret_cast<float*>(data);
  for (std::size_t i = 0; i < bytes / 4; ++i) numbers[i] = static_cast<float>((rank + 1) * static_cast<int>(i % 251));
}

void check(const std::byte* data, std::size_t bytes, DType dtype, int members) {
  if (dtype != DType::kFloat32) return;
  const auto* numbers = reinterpret_cast<const float*>(data);
  for (std::size_t i = 0; i < bytes / 4; ++i) {
    if (numbers[i] == static_cast<float>(members * (members + 1) / 2 * static_cast<int>(i % 251))) continue;
    std::fprintf(stderr, "wrong sum at element %zu of %zu bytes\n", i, bytes);
    std::_Exit(1);
  }
}

void run_member(ShmGroup& shm_group, DType dtype, const std::vector<std::size_t>& sizes) {
  const int rank = shm_group.position();
  const int members = shm_group.size();
  std::uint64_t token = 0;
  for (std::size_t bytes : sizes) {
    std::vector<std::byte> tensor(bytes + 64);
    std::vector<std::byte> copy(bytes + 64);
    std::memset(copy.data(), 1, copy.size());
    const Fragment fragment{tensor.data(), tensor.data(), bytes / size_of(dtype), 1.0, 1.0};
    const auto call = [&] { (void)shared_allreduce(shm_group, {&fragment, 1}, {++token, dtype, ReduceOp::kSum}); };
    const int calls =
        static_cast<int>(std::max<std::size_t>(3, std::min<std::size_t>(2000, (64u << 20) / (bytes + 4096))));
    std::vector<double> samples;
    std::vector<double> copies;
    for (int burst = 0; burst < 9; ++burst) {
      fill(tensor.data(), bytes, dtype, rank);
      call();
      check(tensor.data(), bytes, dtype, members);
      const std::int64_t begin = now_ns();
      for (int i = 0; i < calls; ++i) call();
      samples.push_back(static_cast<double>(now_ns() - begin) / calls);
      call();
      const std::int64_t copy_begin = now_ns();
      for (int i = 0; i < calls; ++i) scale_copy(copy.data(), tensor.data(), bytes / size_of(dtype), dtype, 1.0);
      copies.push_back(static_cast<double>(now_ns() - copy_begin) / calls);
    }
    if (rank == 0) {
      std::printf("%10zu B  %10.2f us  (copy %10.2f us, %5.1f %%)\n", bytes, bench::median(samples) / 1e3,
                  bench::median(copies) / 1e3, 100 * bench::median(copies) / bench::median(samples));
      std::fflush(stdout);
    }
  }
  if (rank == 0) std::printf("the members are: %s\n", std::string(name_of(shm_group.distance())).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const int members = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string dtype = argc > 2 ? argv[2] : "float32";
  std::vector<std::size_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  if (sizes.empty()) {
    for (std::size_t bytes = 1 << 10; bytes <= (256u << 20); bytes *= 4) sizes.push_back(bytes);
  }
  DType kind = DType::kFloat32;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name_of(static_cast<DType>(i)) == dtype) kind = static_cast<DType>(i);
  }
  return bench::run_members(members, [&](ShmGroup& shm_group) { run_member(shm_group, kind, sizes); });
}
