// The ring of one process set: a stream, a buffer that the next member reads, and a page of words that all share.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "collective/device_ring.h"
#include "device/cuda.h"
#include "runtime/gpu/packed_reduction.h"
#include "runtime/operation.h"
#include "transport/memory.h"

namespace ringtune {

/// The process that a rank lives in. Ranks of one process use each other's addresses as they are.
struct ProcessMark {
  std::int32_t pid = 0;
  std::uint64_t number = 0;  // of this process alone, whatever host or container it is in
  friend bool operator==(const ProcessMark&, const ProcessMark&) = default;
};
[[nodiscard]] ProcessMark own_process();

/// What a member offers to the others; sent byte by byte as it lies in memory.
struct RingOffer {
  ProcessMark process;
  std::int32_t device = 0;  // its number in that process
  CudaAddress buffer = 0;   // in that process
  CudaIpcHandle memory{};   // for other processes, if `exported`
  std::uint8_t exported = 0;
  std::int32_t words = -1;             // of the first member: the descriptor of the page of words
  std::array<char, 256> refusal{};     // why it offers nothing; empty where it does
  std::array<char, 256> unexported{};  // why the buffer is not exported
};

/// One thread at a time unless a method says otherwise. The device's context is current.
class DeviceRingSet {
 public:
  struct Seat {
    int rank;  // position
    int size;
    std::size_t buffer_bytes;  // a multiple of kFusionAlignment, the same on all members
  };

  /// Borrows device and kernels. Throws DeviceError, Error.
  DeviceRingSet(const CudaDevice& device, DeviceKernels& kernels, const Seat& seat);
  ~DeviceRingSet();  // after finish()
  DeviceRingSet(const DeviceRingSet&) = delete;
  DeviceRingSet& operator=(const DeviceRingSet&) = delete;

  [[nodiscard]] RingOffer offer();
  /// Opens what the others have offered, by position. Throws DeviceError, Error.
  void connect(std::span<const RingOffer> offers);
  /// When all have connected.
  void all_connected() { words_fd_.reset(); }

  [[nodiscard]] CudaStream& stream() noexcept { return stream_; }
  /// All operations of the batch have the same kind, dtypes and reduction. The stream waits for their data already.
  void allreduce(std::span<const OperationPtr> batch, const BatchTimes& times);
  void reducescatter(OperationPtr operation, const BatchTimes& times);
  void broadcast(const Operation& operation, int root);
  /// `bytes`: of all members, by position; this member's are the input. All come to `gathered`, one behind the other.
  void allgather(const Operation& operation, std::span<const std::size_t> bytes, std::byte* gathered,
                 const BatchTimes& times);

  /// As DeviceRing: any thread, does not block.
  void abort() noexcept { ring_->abort(); }
  /// Blocks until the stream has run to its end and nobody reads the buffer, at most until then.
  void finish(Deadline deadline);

 private:
  void reduce(std::span<const OperationPtr> batch, const BatchTimes& times, std::optional<Elements> kept);
  void open_words(const RingOffer& first);
  void give_own_part(const Operation& operation, std::span<const PackedPart> parts);
  void take_parts(std::span<const PackedPart> parts, std::span<const std::size_t> bytes, std::byte* gathered);
  [[nodiscard]] std::atomic<std::uint32_t>& ended_word(int position) const;

  const CudaDevice& device_;
  Seat seat_;
  CudaStream stream_;
  DeviceMemory buffer_;
  DeviceKernels& kernels_;
  PackedReduction reduction_;
  Fd words_fd_;  // the first member's, until all have opened it
  Mapping words_;
  std::unique_ptr<RegisteredMemory> registered_;
  std::unique_ptr<CudaDevice> neighbour_;  // the previous one's in this process
  std::unique_ptr<PeerMemory> previous_;   // in another process
  std::unique_ptr<DeviceRing> ring_;       // when connected
};

}  // namespace ringtune
