#include "host_kernels.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <tuple>

namespace {

struct Index {
  unsigned x = 0;
};

// Where the calling thread is in the launch that it runs.
thread_local Index threadIdx;
thread_local Index blockIdx;
thread_local Index gridDim;
thread_local int t_phase = 0;
thread_local int t_phases = 1;  // of the kernel, once one of its threads has come to them
thread_local const fake_cuda::Resolve* t_resolve = nullptr;

template <typename T>
std::byte* place_of(std::uint64_t address) {
  std::byte* const place = address % alignof(T) == 0 ? (*t_resolve)(address, sizeof(T)) : nullptr;
  if (place == nullptr) throw fake_cuda::IllegalAddress{};
  return place;
}

}  // namespace

// What the compiler of kernels knows by itself.
#define __global__
#define __shared__ static thread_local
#define __launch_bounds__(threads)
#define UNROLL
#define BLOCK_PHASES(phase, count) if (const int phase = (t_phases = (count), t_phase); phase < (count))

namespace ringtune {
namespace {

template <typename T>
T load(std::uint64_t address) {
  T value;
  std::memcpy(&value, place_of<T>(address), sizeof value);
  return value;
}
template <typename T>
void store(std::uint64_t address, T value) {
  std::memcpy(place_of<T>(address), &value, sizeof value);
}

}  // namespace
}  // namespace ringtune

#include "ringtune.cu"

namespace fake_cuda {
namespace {

template <typename... Arguments>
std::function<void()> bind_to(void (*kernel)(Arguments...), void** arguments) {
  std::tuple<Arguments...> values;
  std::apply([&](auto&... value) { (std::memcpy(&value, *arguments++, sizeof value), ...); }, values);
  return [=] { std::apply(kernel, values); };
}

template <auto Kernel>
std::function<void()> bind(void** arguments) {
  return bind_to(Kernel, arguments);
}

#define ENTRY(kernel) {#kernel, bind<kernel>},
#define CAST(from, to, From, To) ENTRY(cast_##from##_##to)
#define SCALE(name, T) ENTRY(scale_##name)
#define REDUCE(name, Element, op, Op) ENTRY(reduce_##name##_##op)
#define ADASUM(name, Element) ENTRY(dots_##name) ENTRY(adasum_##name)
const HostKernel kKernels[] = {ENTRY(copy_bytes) RINGTUNE_CASTS(CAST) RINGTUNE_INTEGERS(SCALE)
                                   RINGTUNE_REDUCTIONS(REDUCE) RINGTUNE_FLOATS(ADASUM) ENTRY(dots_total)};

}  // namespace

const HostKernel* find_kernel(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kKernels), std::end(kKernels),
                                         [&](const HostKernel& kernel) { return kernel.name == name; });
  return found == std::end(kKernels) ? nullptr : found;
}

void run_kernel(const std::function<void()>& body, unsigned blocks, unsigned threads, const Resolve& resolve) {
  t_resolve = &resolve;
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    t_phases = 1;
    for (t_phase = 0; t_phase < t_phases; ++t_phase) {
      for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) body();
    }
  }
}

}  // namespace fake_cuda
