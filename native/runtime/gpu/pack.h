// Batches of tensors on a GPU, in and out of one buffer of bounded size, by the kernels.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "device/device_kernels.h"

namespace ringtune {

/// As much of a tensor as is in the buffer at once.
struct PackedPart {
  std::size_t tensor;  // of the batch
  std::size_t begin;   // elements
  std::size_t count;   // elements
  std::size_t at;      // bytes from the begin of the buffer
  friend bool operator==(const PackedPart&, const PackedPart&) = default;
};

/// What is in the buffer at once.
struct PackedRound {
  std::vector<PackedPart> parts;
  std::size_t bytes = 0;
  friend bool operator==(const PackedRound&, const PackedRound&) = default;
};

/// Tensors of so many elements of `item_bytes` through a buffer of `capacity` bytes, a multiple of kFusionAlignment, as
/// every part's begin is. No round is empty.
[[nodiscard]] std::vector<PackedRound> cut_rounds(std::span<const std::size_t> counts, std::size_t item_bytes,
                                                  std::size_t capacity);

/// Members' blocks of so many bytes through a buffer of `capacity` bytes, of which each member has the same share: what
/// of each is in the buffer at once, by member, one behind the other, those without bytes left out. Every part's begin
/// in the buffer is a multiple of kFusionAlignment. No round is empty.
[[nodiscard]] std::vector<std::vector<PackedPart>> cut_shares(std::span<const std::size_t> bytes, std::size_t capacity);

/// One of the moves of a batch: to[i] = from[i] * factor.
struct ScaledMove {
  DeviceMove move;
  double factor = 1.0;
};

/// Launches moves and dot products; what the kernels need to know of those that come again stays on the device. Of one
/// stream. As DeviceKernels, which it borrows as the device.
class DevicePacker {
 public:
  DevicePacker(const CudaDevice& device, DeviceKernels& kernels) : device_(device), kernels_(kernels) {}

  /// One launch for moves in a row that have the same factor: for a batch, as a rule. Throws DeviceError.
  void move(std::span<const ScaledMove> moves, DType from, DType to, CudaStreamHandle stream);
  /// As DeviceKernels::dot_products().
  void dot_products(std::span<const DeviceMove> pairs, DType dtype, CudaAddress products, CudaStreamHandle stream);
  [[nodiscard]] DeviceKernels& kernels() const noexcept { return kernels_; }

 private:
  static constexpr std::size_t kTables = 128;  // two of a batch: so many batches of a step as half of that

  BatchTable& table_of(std::span<const DeviceMove> moves, const DeviceCast& cast);

  const CudaDevice& device_;
  DeviceKernels& kernels_;
  std::unordered_map<std::size_t, std::size_t> places_;  // by hash
  std::array<std::unique_ptr<BatchTable>, kTables> tables_;
  std::array<std::size_t, kTables> hashes_{};
  std::size_t next_ = 0;  // the one that is used anew
  std::vector<DeviceMove> run_;
};

}  // namespace ringtune
