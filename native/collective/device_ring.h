// A ring between GPUs without NCCL: for ranks of one host, also such that share a GPU. Every rank takes from the memory
// of the one before it, by kernels and copies in its own stream; streams wait for each other by words of the host's
// memory, so no kernel spins, and ranks on one GPU cannot keep each other from running. The host only puts work in.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "base/clock.h"
#include "base/dtype.h"
#include "collective/device_ring_schedule.h"
#include "device/cuda_ipc.h"
#include "device/device_kernels.h"

namespace ringtune {

/// What a rank has of the ring. All of it outlives the ring.
struct DeviceRingPlace {
  int rank;  // position
  int size;
  CudaAddress buffer;    // own; what goes round is in it before and after
  CudaAddress previous;  // the previous rank's, as it is seen here
  // How many steps they have done: words of this rank, and of those before and behind it. All are equal
  // when the ring is made, and a rank's is read then.
  StreamWord done;
  StreamWord previous_done;
  StreamWord next_done;
};

/// One thread at a time but for what is said. All ranks call the same functions in the same order, with matching
/// arguments. None of them blocks; results are there for what is put into the stream afterwards. Always the same
/// stream. The device's context is current. Throws DeviceError.
class DeviceRing {
 public:
  /// `segment_bytes`: handed over at once, a multiple of 64.
  DeviceRing(const CudaDevice& device, DeviceKernels& kernels, const DeviceRingPlace& place, CudaStreamHandle stream,
             std::size_t segment_bytes);
  ~DeviceRing();  // after finish(), if anything was begun
  DeviceRing(const DeviceRing&) = delete;
  DeviceRing& operator=(const DeviceRing&) = delete;

  /// Before every collective, and before anything is put into the buffer for it: the next rank may still read the last
  /// one.
  void take_buffer();

  /// Of the first elements of the buffer. kSum, kMin, kMax, kProduct; bitwise equal on all ranks.
  void allreduce(std::size_t count, DType dtype, ReduceOp op);
  /// As device_allgather_plan() says.
  void allgather(std::span<const std::size_t> block_bytes);
  /// Of the first bytes of the buffer.
  void broadcast(std::size_t bytes, int root);

  /// When a rank is lost: from now on the stream runs to its end, on whatever data. Any thread; does not block, and
  /// needs no context. Idempotent.
  void abort() noexcept;
  /// The ring is not used any more: blocks until the stream has run to its end and the next rank has read the buffer;
  /// aborts at the deadline. Whether it was aborted: then the next rank's stream may still read the buffer.
  bool finish(Deadline deadline);

 private:
  class Overtaking;
  void run(const DeviceRingPlan& plan, DType dtype, ReduceOp op);
  [[nodiscard]] DeviceRingShape shape() const noexcept { return {place_.rank, place_.size, segment_bytes_}; }

  const CudaDevice& device_;
  DeviceKernels& kernels_;
  DeviceRingPlace place_;
  CudaStreamHandle stream_;
  std::size_t segment_bytes_;
  bool taken_ = false;
  std::atomic<std::uint32_t> count_;  // of all ranks, when all that was begun is done
  std::mutex mutex_;                  // of the next
  std::unique_ptr<Overtaking> overtaking_;
};

}  // namespace ringtune
