// Memory that processes of a host share with a GPU: device memory of other processes, and words of the host's memory
// that streams of all of them wait for. Objects borrow their device; every function but destructors needs its context
// to be current.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "device/cuda.h"

namespace ringtune {

/// Names the allocation at `address` (its begin) to other processes. None, and why not in `refusal`, where the driver
/// cannot: in some containers and virtual machines, and on integrated GPUs.
[[nodiscard]] std::optional<CudaIpcHandle> export_memory(const CudaDevice& device, CudaAddress address,
                                                         std::string& refusal);

/// Another process's allocation, as long as this lives and that process keeps it.
class PeerMemory {
 public:
  /// Throws DeviceError: the process is gone, it is this one, or its GPU's memory cannot be reached from this device.
  PeerMemory(const CudaDevice& device, const CudaIpcHandle& handle);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  [[nodiscard]] CudaAddress address() const noexcept { return address_; }

 private:
  const CudaDevice& device_;
  CudaAddress address_ = 0;
};

/// A word of the host's memory that streams wait for and write. Counts up and may wrap around: the sign of their
/// difference says which of two values is ahead.
struct StreamWord {
  std::atomic<std::uint32_t>* host;
  CudaAddress device;
};

/// Host memory, possibly shared with other processes, in reach of the device as long as this lives.
class RegisteredMemory {
 public:
  /// Borrowed. Throws DeviceError.
  RegisteredMemory(const CudaDevice& device, std::span<std::byte> memory);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  /// The 32-bit word at that offset, a multiple of 4.
  [[nodiscard]] StreamWord word(std::size_t offset) const;

 private:
  const CudaDevice& device_;
  std::span<std::byte> memory_;
  CudaAddress address_ = 0;
};

/// Why streams of this device's driver cannot wait for words; empty when they can.
[[nodiscard]] std::string stream_word_refusal(const CudaDevice& device);
/// What is put into the stream from now on waits until the word has come to `value`. Throws DeviceError, as the next.
void wait_for_word(const CudaDevice& device, CudaStreamHandle stream, const StreamWord& word, std::uint32_t value);
/// Behind what is in the stream, whose writes are seen by who sees the value.
void write_word(const CudaDevice& device, CudaStreamHandle stream, const StreamWord& word, std::uint32_t value);

}  // namespace ringtune
