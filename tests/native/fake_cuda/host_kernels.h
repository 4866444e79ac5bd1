// The kernels of core/gpu/cuda, compiled for the CPU: the threads of a block run one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace fake_cuda {

/// A kernel has touched memory that is no allocation's, or not at a multiple of what it touched.
struct IllegalAddress {};

/// Where the bytes of an address of the device really are; null when it is no allocation's.
using Resolve = std::function<std::byte*(std::uint64_t address, std::size_t bytes)>;

struct HostKernel {
  const char* name;
  std::function<void()> (*bind)(void** arguments);  // copies them
};

/// Null when there is none of that name.
[[nodiscard]] const HostKernel* find_kernel(const std::string& name);

/// All blocks of a launch; `body` is what `bind` gave. Throws IllegalAddress.
void run_kernel(const std::function<void()>& body, unsigned blocks, unsigned threads, const Resolve& resolve);

}  // namespace fake_cuda
