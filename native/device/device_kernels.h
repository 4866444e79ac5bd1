// What ringtune's kernels (core/gpu/cuda) do with memory of a GPU: many tensors moved, scaled and cast in one launch,
// two buffers reduced, the steps of Adasum. Nothing here waits for the device.
//
// Bits are those of the loops over host memory (cpu_kernels.h), but for the payload of a NaN. Every function needs the
// device's context to be current, and throws DeviceError. One thread at a time.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "device/cuda_module.h"

namespace ringtune {

/// Part of a batch: a tensor on its way into the fusion buffer or back, or the two operands of a dot product. Addresses
/// are multiples of the element's size; fastest when both are multiples of 16.
struct DeviceMove {
  CudaAddress from;
  CudaAddress to;
  std::size_t count;  // elements
  friend bool operator==(const DeviceMove&, const DeviceMove&) = default;
};

/// What a batch's elements become on their way: to[i] = from[i] * factor.
struct DeviceCast {
  DType from;
  DType to;
  double factor = 1.0;
  friend bool operator==(const DeviceCast&, const DeviceCast&) = default;
};

/// What a kernel knows of a batch: its tensors cut into chunks, so that blocks have equal work however uneven the
/// tensors are. In device memory; uploaded when it is not what it was. Of one stream: the next upload is behind the
/// last launch.
class BatchTable {
 public:
  explicit BatchTable(const CudaDevice& device) : memory_(device), parts_(device) {}

 private:
  friend class DeviceKernels;
  DeviceMemory memory_;
  DeviceMemory parts_;             // dot products of chunks
  std::vector<DeviceMove> moves_;  // what it was made of
  DeviceCast cast_{DType::kUint8, DType::kUint8};
  bool of_dots_ = false;
  unsigned chunks_ = 0;
};

class DeviceKernels {
 public:
  /// `cubin`: the kernels compiled for the device; copied.
  DeviceKernels(const CudaDevice& device, std::span<const std::byte> cubin);

  /// Floating dtypes become each other; others stay what they are, and a bool has no factor but 1 (InvariantError). One
  /// launch, none for an empty batch.
  void move(BatchTable& table, std::span<const DeviceMove> moves, const DeviceCast& cast, CudaStreamHandle stream);

  struct Operands {
    CudaAddress out;
    CudaAddress a;
    CudaAddress b;
    std::size_t count;  // elements
  };
  /// out[i] = a[i] op b[i]; out may be a or b. kSum, kMin, kMax, kProduct (else InvariantError).
  void reduce(const Operands& what, DType dtype, ReduceOp op, CudaStreamHandle stream);

  /// For each pair (from, to): three doubles at `products`, <a, b>, <a, a>, <b, b>, added up in an order that depends
  /// on its number of elements alone. Floating dtypes (else InvariantError). Two launches.
  void dot_products(BatchTable& table, std::span<const DeviceMove> pairs, DType dtype, CudaAddress products,
                    CudaStreamHandle stream);
  static constexpr std::size_t kProductsBytes = 3 * sizeof(double);

  /// Adasum of two vectors: out[i] = (1 - <a, b> / 2 <a, a>) a[i] + (1 - <a, b> / 2 <b, b>) b[i], a zero vector's
  /// factor being 1. Their products are the sum of `parts` of them at `products`, one after the other; added up in an
  /// order that depends on `parts` alone. Floating dtypes (else InvariantError). One launch.
  void combine(const Operands& what, DType dtype, CudaAddress products, unsigned parts, CudaStreamHandle stream);

 private:
  void fill(BatchTable& table, std::span<const DeviceMove> moves, std::size_t chunk_elements, CudaStreamHandle stream);

  const CudaDevice& device_;
  CudaModule module_;
  PinnedPool pinned_;
  std::size_t processors_;
};

}  // namespace ringtune
