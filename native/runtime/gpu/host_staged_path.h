// Collectives on tensors in GPUs' memory: from GPU to GPU where all ranks can (data_paths.h), else through the host.
// The host-staged path works with any driver, without NCCL, and with several ranks that share a GPU.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "runtime/gpu/lane.h"

namespace ringtune {

/// Borrows the data paths. Thread-safe. Tickets are its own, told apart by a bit. Addresses are borrowed until the
/// operation is done; its result is complete for what a stream does after join().
class HostStagedPath {
 public:
  /// `driver`: path of the library, empty: the usual one. Nothing is opened before the first submission.
  HostStagedPath(std::string driver, HostDataPath host, DevicePaths& data_paths);
  ~HostStagedPath();  // close()
  HostStagedPath(const HostStagedPath&) = delete;
  HostStagedPath& operator=(const HostStagedPath&) = delete;

  /// Before the first submission.
  void use_parts(std::size_t bytes) noexcept { shared_.part_bytes = bytes; }
  [[nodiscard]] static bool owns(Ticket ticket) noexcept { return (ticket & kMark) != 0; }

  /// `members`: of the process set; `rank`: this one. The submission was checked. Does not block but for what it opens
  /// the first time. Throws InvalidArgument, DeviceError, ShutDown after close().
  Ticket submit(Submission submission, std::span<const int> members, int rank);
  [[nodiscard]] bool poll(Ticket ticket);
  /// Blocks until the result is on its way to the device; false at the deadline.
  [[nodiscard]] bool attend(Ticket ticket, Deadline deadline);
  /// The operation of a ticket, which holds its outcome once it is done. Throws InvalidArgument for a ticket that is
  /// none.
  [[nodiscard]] DeviceOperation& find(Ticket ticket);
  /// Makes the stream wait for the result of a finished operation. Does not block.
  void join(Ticket ticket, CudaStreamHandle stream);
  /// Copies the result of a finished allgather or alltoall, in the stream, to memory of the operation's device.
  void deliver(Ticket ticket, std::byte* memory, CudaStreamHandle stream);
  void release(Ticket ticket);
  /// Blocks until the timeline holds the spans of the operations that have ended, at most until the deadline.
  void settle_times(Deadline deadline);
  /// Call when the runtime takes no operation any more. Blocks until all operations have ended.
  void close();

 private:
  static constexpr Ticket kMark = Ticket{1} << 62;

  DeviceLane& lane_of(int device, std::uint8_t& place);
  DeviceOperation& at(Ticket ticket);
  DeviceOperation* look_up(Ticket ticket) noexcept;

  std::string driver_path_;
  DevicePaths& data_paths_;
  HostStagedShared shared_;
  std::vector<std::unique_ptr<DeviceLane>> lanes_;  // in the order in which they were needed
  Ticket generation_ = 1;
  bool closed_ = false;
};

}  // namespace ringtune
