// A collective on a tensor in a GPU's memory. A direct one is one operation of the runtime, which puts the transfer
// from GPU to GPU into a stream. Where it is direct within hosts only, a second operation reduces across hosts what the
// first has left in pinned memory, and puts the last stage into a stream. A staged one is copied into pinned memory,
// carried by the runtime as one or several operations on that memory, and copied back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result_memory.h"
#include "device/cuda.h"
#include "runtime/operation.h"
#include "runtime/submission.h"

namespace ringtune {

class DeviceLane;
struct DeviceOperation;
struct DeviceTimes;

/// How the members of a process set lie on hosts.
enum class HostSpread : std::uint8_t {
  kOneMember,  // which NCCL can carry, and a ring of itself cannot
  kOneHost,
  kLevels,   // several hosts with equally many of them, two at least
  kUnequal,  // any other layout
};

/// As much of a tensor as is copied, reduced and copied back at once: all of it, or some MiB of an allreduce, so that
/// the copies of one part go on while another is reduced.
struct DevicePart final : FinishListener {
  void finished(Operation& operation) noexcept override;  // by the engine's thread

  DeviceOperation* whole = nullptr;
  std::size_t index = 0;
  std::size_t begin = 0;         // bytes from the begin of the tensor
  std::size_t count = 0;         // elements
  std::size_t sent = 0;          // bytes that are copied to the host
  std::size_t returned = 0;      // bytes that are copied back
  PinnedBlock* block = nullptr;  // where they are on the host, before and after
  Operation* host = nullptr;     // when it is done
  // Why it was to be submitted again. Kept, since the engine drops its reference only when it goes on, and the owner of
  // the last reference destroys it.
  std::exception_ptr refusal;
};

/// How much of a tensor is copied to the host and back.
struct StagedShape {
  bool sends = false;        // this rank contributes it
  bool divides = false;      // it may go in parts
  std::size_t returned = 0;  // bytes of the result that belong into the output
};
/// `members`: of the process set; `rank`: this one.
[[nodiscard]] StagedShape staged_shape(const Submission& submission, std::span<const int> members, int rank);

/// What a rank reduces across hosts of a tensor that goes by NCCL within them: an equal share for each rank of the
/// host, and what is left at the end, which all of them reduce alike. In elements.
struct HostSlice {
  std::size_t begin = 0;
  std::size_t share = 0;
  std::size_t rest_begin = 0;
  std::size_t rest = 0;
  [[nodiscard]] std::size_t count() const noexcept { return share + rest; }
};
/// `rank` of `size` on the host.
[[nodiscard]] HostSlice host_slice(std::size_t count, int rank, int size) noexcept;

/// Guarded by the lock of its HostStagedPath but for what is said. Pooled, with the events in it.
struct DeviceOperation {
  explicit DeviceOperation(DeviceLane& on);

  /// Cuts it into parts that are staged, or the one that is not: all ranks cut alike. A larger allreduce is copied and
  /// reduced by so many bytes at once.
  void lay_out(std::size_t part_bytes);

  /// Whether it travels from GPU to GPU, everywhere or within hosts.
  [[nodiscard]] bool direct() const noexcept { return data_path != DataPath::kStaged; }
  [[nodiscard]] bool done() const noexcept {
    // Acquire: a thread that sees it sees the result and the error as well.
    return state.load(std::memory_order_acquire) == Operation::kDone;
  }

  DeviceLane& lane;
  std::uint32_t slot = 0;
  Ticket ticket = 0;  // 0 = in the pool
  Submission what;
  std::shared_ptr<const Prepared> prepared;
  StagedShape shape;
  DataPath data_path = DataPath::kStaged;
  std::vector<std::unique_ptr<DevicePart>> parts;  // `part_count` of them are in use
  std::size_t part_count = 0;
  std::size_t staged = 0;     // parts whose bytes have come to the host
  std::size_t submitted = 0;  // parts that the runtime was given
  std::size_t ended = 0;      // of those, parts that are done
  bool all_staged = false;    // no copy from the device is under way any more
  bool abandoned = false;     // released before it was done

  // NCCL within hosts. Written by the engine's thread, while it has the operation.
  HostSpread spread = HostSpread::kOneHost;
  HostSlice slice;
  MemoryBlock* scattered =
      nullptr;           // the slice on the device before it crosses hosts; in host memory it is in the part's block
  bool crosses = false;  // the slice is on the host, or on its way across hosts

  CudaEvent ready;               // in the caller's stream: the tensor is what is to be reduced
  CudaEvent copied;              // in the lane's: the result is in the tensor, or on the device where it is gathered
  DeviceTimes* times = nullptr;  // while it is in flight and recorded

  // Written before `state` becomes kDone, read afterwards.
  std::exception_ptr error;
  ResultMemory gathered;            // allgather, alltoall: the result, still on the host
  MemoryBlock* received = nullptr;  // or on the device, where it went from GPU to GPU
  std::size_t received_bytes = 0;
  std::vector<std::int64_t> gathered_shape;
  std::vector<std::int64_t> splits;                       // alltoall: rows from each rank
  std::atomic<std::uint32_t> state{Operation::kPending};  // futex word
};

/// The operation on a GPU's tensor behind a direct operation of the runtime.
[[nodiscard]] inline DeviceOperation& device_operation_of(const Operation& operation) noexcept {
  // Only tensors on GPUs are direct, and their listener is the part that was submitted.
  return *static_cast<DevicePart*>(operation.listener)->whole;
}
[[nodiscard]] inline DeviceLane& lane_of(const Operation& operation) noexcept {
  return device_operation_of(operation).lane;
}

}  // namespace ringtune
