// Adasum of a tensor on a GPU. NCCL carries halves of the tensor and the dot products of the members' parts, kernels
// compute both, and no byte comes to the host. A small tensor, for which a call costs more than its bytes, goes to all
// members as a whole, and each of them computes the whole tree.
#pragma once

#include <cstddef>
#include <functional>

#include "runtime/gpu/batch_times.h"
#include "runtime/gpu/pack.h"
#include "runtime/operation.h"

namespace ringtune {

/// A range of the device's memory.
struct DeviceRange {
  CudaAddress begin;
  std::size_t bytes;
};

/// Calls that all members put into their streams together.
struct AdasumCalls {
  /// Exchanges ranges with that member, which makes the same call.
  std::function<void(int peer, const DeviceRange& sent, const DeviceRange& received)> swap;
  /// Gathers equally many bytes of each member, in their order. `own` may lie at its place in the result.
  std::function<void(const DeviceRange& own, CudaAddress all)> gather;
};

/// Where it is computed.
struct AdasumPlace {
  DevicePacker& packer;
  CudaAddress scratch;  // adasum_scratch_bytes() of it, aligned to 256
  CudaStreamHandle stream;
  int rank;
  int ranks;  // a power of two, two at least
};

/// The same on all members.
[[nodiscard]] std::size_t adasum_scratch_bytes(const Operation& operation, int ranks);

/// Results have the same bits on all members, but not the host's bits, because products are added up in another order.
/// Throws DeviceError, and what the calls throw.
void put_adasum(const Operation& operation, const AdasumPlace& place, const AdasumCalls& calls,
                const BatchTimes& times);

}  // namespace ringtune
