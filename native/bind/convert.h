// From what Python passes to what the runtime takes, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "device/cuda_driver.h"
#include "runtime/stall_report.h"
#include "runtime/submission.h"

namespace ringtune::bind {

using Shape = std::vector<std::int64_t>;

inline std::size_t elements_of(const Shape& shape) {
  std::size_t elements = 1;
  for (const std::int64_t extent : shape) elements *= static_cast<std::size_t>(extent);
  return elements;
}

inline CudaStreamHandle stream_at(std::uintptr_t stream) { return reinterpret_cast<CudaStreamHandle>(stream); }

inline ReduceOp to_reduce_op(int value) {
  if (value < 0 || value > 5) throw InvalidArgument("unknown reduction " + std::to_string(value) + ", expected 0 to 5");
  return static_cast<ReduceOp>(value);
}

inline DType to_dtype(int value) {
  if (value < 0 || value >= kDTypeCount) throw InvalidArgument("unknown dtype number " + std::to_string(value));
  return static_cast<DType>(value);
}

/// The dtype to travel as: the tensor's own for -1, and where nothing is to be cast (Horovod's rule: only floating
/// tensors are compressed).
inline std::optional<DType> to_wire(int value, int dtype) {
  if (value == -1 || value == dtype || !is_floating(to_dtype(dtype))) return std::nullopt;
  return to_dtype(value);
}

/// Of a tensor on the GPU of that number, in that stream (CUstream as a number); -1: in host memory.
inline std::optional<DevicePlace> to_place(int device, std::uintptr_t stream) {
  if (device < 0) return std::nullopt;
  return DevicePlace{device, reinterpret_cast<CudaStreamHandle>(stream)};
}

using StalledOperation = std::tuple<std::string, std::string, std::int64_t, std::vector<int>>;

/// When a stall was seen, by the monotonic clock in ns, and of what waits in it title, name, age in ns and missing
/// ranks; 0 and nothing of none.
inline std::tuple<std::int64_t, std::vector<StalledOperation>> to_tuples(const std::optional<ReportedStall>& reported) {
  std::vector<StalledOperation> operations;
  if (!reported) return {0, operations};
  for (const StalledTensor& tensor : reported->stall.tensors) {
    operations.emplace_back(tensor.title, tensor.name, tensor.age_ns, tensor.missing);
  }
  return {reported->at_ns, operations};
}

// Addresses are those of tensors that the caller keeps alive.
inline const void* input_at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }
inline void* output_at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace ringtune::bind
