// Which way tensors on GPUs go: by NCCL where all ranks can, by NCCL within hosts where those of each host can, by
// ringtune's own ring where NCCL cannot and the ranks are of one host, else through the host.
//
// The way of an operation is the same on all its ranks. A rank reports an operation with the best way that it could
// take itself (data_path_of); ranks that report different ways are told by the coordinator that the better of them is
// out, and submit again. What no single request can show, the members of a process set find out together, in front of
// the first batch of theirs that is to go some way (prepare). Either way an operation that was refused has not run,
// its process set does not go that way again (refuse), and it takes the next one, on all ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device_operation.h"
#include "runtime/nccl_path.h"
#include "runtime/peer_ring_path.h"

namespace ringtune {

enum class GpuDataPath : std::uint8_t {
  kAuto = 0,      // the best way that all ranks can go
  kNccl = 1,      // what NCCL can carry and is refused is an error
  kRing = 2,      // what the ring can carry and is refused is an error
  kStaged = 3,    // through the host
  kNcclHost = 4,  // as kNccl, but within hosts only: what is to cross hosts goes as the ranks there can
};

struct DevicePathsOptions {
  GpuDataPath plane = GpuDataPath::kAuto;
  std::vector<std::string> nccl_libraries;  // paths, the best first
  KernelsForGpu kernels;
  std::size_t ring_buffer_bytes = 0;
  std::int64_t timeout_ns = 0;  // of connecting, and of what a way does on the host
};

/// Opens nothing before the first tensor that could go from GPU to GPU. Thread-safe where said.
class DevicePaths {
 public:
  explicit DevicePaths(const DevicePathsOptions& options);
  DevicePaths(const DevicePaths&) = delete;
  DevicePaths& operator=(const DevicePaths&) = delete;

  /// `hosts`: of all ranks. `on_failure` is called, on a thread of our own, when something fails in a stream.
  void begin(const std::vector<std::string>& hosts, int rank, std::function<void(std::exception_ptr)> on_failure);

  // Any thread.
  /// How the members of that set lie on hosts.
  [[nodiscard]] HostSpread spread_of(std::uint32_t process_set, std::span<const int> members);
  /// How this rank would send it, of two members or more. Throws DeviceError where it must go a way that it cannot.
  [[nodiscard]] DataPath data_path_of(const Request& request, HostSpread spread);
  /// Operations of that set do not go that way from now on. Throws DeviceError where they must.
  void refuse(DataPath data_path, std::uint32_t process_set, const std::string& why);
  /// Throws what has ended that way, if something did.
  void check(DataPath data_path);
  /// The same, if it did before that event came.
  void check_arrival(DataPath data_path, const CudaEvent& copied);
  /// Ends what is in streams, with results that mean nothing; every later batch fails with `error`. Idempotent.
  void abort(const std::exception_ptr& error) noexcept;

  /// Whether any set goes by NCCL.
  [[nodiscard]] bool uses_nccl() { return nccl_.connected(); }

  // Driving thread. All operations of a batch go the same way; the members of its set come by in the same order.
  /// NCCL's batches to come are dealt to so many streams of a GPU; all ranks switch between the same two batches.
  void use_streams(std::size_t count) noexcept { nccl_.use_streams(count); }
  /// Connects the set. Blocks the first time. Throws DataPathRefused, on all members, when they cannot go that way;
  /// PeerLost.
  void prepare(std::span<const OperationPtr> batch, const BatchContext& context);
  /// Puts the batch into a stream. `about`: what the timeline says of it, once the GPU has told when it ran; none while
  /// nothing is recorded. Throws DeviceError, Timeout; what abort() was given.
  void launch(std::span<const OperationPtr> batch, const BatchContext& context, const std::optional<Span>& about);
  /// The set is gone; what it has in streams goes on. Does not block.
  void removed(std::uint32_t process_set);

  /// When nothing is launched any more, and before the lanes go: waits for what is in streams, at most `timeout`.
  void close(Deadline timeout) noexcept;

 private:
  [[nodiscard]] bool must_go(DataPath data_path) const noexcept;
  [[nodiscard]] bool may_go(DataPath data_path, const Request& request, HostSpread spread) const noexcept;
  std::string refusal_of(DataPath data_path, const Request& request);

  GpuDataPath plane_;
  std::vector<std::string> hosts_;
  KernelCache kernels_;
  NcclPath nccl_;
  PeerRingPath rings_;
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, DataPath>, std::string> refused_;  // by process set: and why
  std::map<std::uint32_t, HostSpread> spreads_;                        // likewise
};

}  // namespace ringtune
