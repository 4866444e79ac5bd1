// Adasum of a tensor on a GPU: NCCL carries halves of it and the products of the members' parts, the kernels compute
// both, and nothing of it comes to the host. Small tensors, for which every call costs more than its bytes, go to all
// members as a whole, and each of them makes all of the tree.
#pragma once

#include <cstddef>
#include <functional>

#include "runtime/gpu/batch_times.h"
#include "runtime/gpu/pack.h"
#include "runtime/operation.h"

namespace ringtune {

/// Of the device's memory.
struct DeviceRange {
  CudaAddress begin;
  std::size_t bytes;
};

/// What all members put into their streams together.
struct AdasumCalls {
  /// With that member, of which both make the same call.
  std::function<void(int peer, const DeviceRange& sent, const DeviceRange& received)> swap;
  /// As many bytes of each, one member's behind the other's; `own` may be where it comes to.
  std::function<void(const DeviceRange& own, CudaAddress all)> gather;
};

/// Where it happens.
struct AdasumPlace {
  DevicePacker& packer;
  CudaAddress scratch;  // adasum_scratch_bytes() of it, aligned to 256
  CudaStreamHandle stream;
  int rank;
  int ranks;  // a power of two, two at least
};

/// The same on all members.
[[nodiscard]] std::size_t adasum_scratch_bytes(const Operation& operation, int ranks);

/// Bits are the same on all members, and others than the host's: products are added up in another order. Throws
/// DeviceError, and what the calls do.
void put_adasum(const Operation& operation, const AdasumPlace& place, const AdasumCalls& calls,
                const BatchTimes& times);

}  // namespace ringtune
