// Kernels move batches of tensors on a GPU into one buffer of bounded size and out of it.
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

/// The elements of a tensor that are in the buffer in one round.
struct PackedPart {
  std::size_t tensor;  // of the batch
  std::size_t begin;   // elements
  std::size_t count;   // elements
  std::size_t at;      // bytes from the begin of the buffer
  friend bool operator==(const PackedPart&, const PackedPart&) = default;
};

/// The contents of the buffer in one round.
struct PackedRound {
  std::vector<PackedPart> parts;
  std::size_t bytes = 0;
  friend bool operator==(const PackedRound&, const PackedRound&) = default;
};

/// Cuts tensors of so many elements of `item_bytes` into rounds through a buffer of `capacity` bytes. The capacity and
/// every part's begin are multiples of kFusionAlignment. No round is empty.
[[nodiscard]] std::vector<PackedRound> cut_rounds(std::span<const std::size_t> counts, std::size_t item_bytes,
                                                  std::size_t capacity);

/// Cuts members' blocks of so many bytes into rounds through a buffer of `capacity` bytes, of which each member has the
/// same share. A round lists the parts by member, one behind the other, without the empty ones. Every part's begin in
/// the buffer is a multiple of kFusionAlignment. No round is empty.
[[nodiscard]] std::vector<std::vector<PackedPart>> cut_shares(std::span<const std::size_t> bytes, std::size_t capacity);

/// One of the moves of a batch: to[i] = from[i] * factor.
struct ScaledMove {
  DeviceMove move;
  double factor = 1.0;
};

/// Launches moves and dot products in one stream. Tables of batches that repeat stay on the device. Borrows device and
/// kernels; threads and errors as DeviceKernels.
class DevicePacker {
 public:
  DevicePacker(const CudaDevice& device, DeviceKernels& kernels) : device_(device), kernels_(kernels) {}

  /// One launch for each run of moves with the same factor, which is usually the whole batch. Throws DeviceError.
  void move(std::span<const ScaledMove> moves, DType from, DType to, CudaStreamHandle stream);
  /// As DeviceKernels::dot_products().
  void dot_products(std::span<const DeviceMove> pairs, DType dtype, CudaAddress products, CudaStreamHandle stream);
  [[nodiscard]] DeviceKernels& kernels() const noexcept { return kernels_; }

 private:
  static constexpr std::size_t kTables = 128;  // a batch takes two, so half as many batches of a step are kept

  BatchTable& table_of(std::span<const DeviceMove> moves, const DeviceCast& cast);

  const CudaDevice& device_;
  DeviceKernels& kernels_;
  std::unordered_map<std::size_t, std::size_t> places_;  // by hash
  std::array<std::unique_ptr<BatchTable>, kTables> tables_;
  std::array<std::size_t, kTables> hashes_{};
  std::size_t next_ = 0;  // the table that is replaced next
  std::vector<DeviceMove> run_;
};

}  // namespace ringtune
