// Which data path the tensors on GPUs take: NCCL where all ranks can, NCCL within hosts where those of each host can,
// ringtune's own ring where NCCL cannot and the ranks are of one host, else the host-staged path.
//
// An operation takes the same data path on all its ranks. A ready request names the best path that its rank could take
// (data_path_of). Where the requests of the ranks differ, the coordinator refuses the better path, and the ranks submit
// again. What no single request can show, the members of a process set find out together, in front of their first batch
// on a path (prepare). In both cases the refused operation has not run, its process set does not take that path again
// (refuse), and the operation takes the next path, on all ranks.
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

#include "runtime/gpu/device_operation.h"
#include "runtime/gpu/nccl_path.h"
#include "runtime/gpu/peer_ring_path.h"

namespace ringtune {

enum class GpuDataPath : std::uint8_t {
  kAuto = 0,      // the best path that all ranks can take
  kNccl = 1,      // what NCCL can carry and is refused is an error
  kRing = 2,      // what the ring can carry and is refused is an error
  kStaged = 3,    // through the host
  kNcclHost = 4,  // as kNccl, but within hosts only; the links of the runtime cross hosts
};

struct DevicePathsOptions {
  GpuDataPath setting = GpuDataPath::kAuto;
  std::vector<std::string> nccl_libraries;  // paths, the best first
  KernelsForGpu kernels;
  std::size_t ring_buffer_bytes = 0;
  std::int64_t timeout_ns = 0;  // of connecting, and of what a path does on the host
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
  /// The path by which this rank would send it to its peers. Throws DeviceError where the setting demands a path that
  /// this rank cannot take.
  [[nodiscard]] DataPath data_path_of(const Request& request, HostSpread spread);
  /// Operations of that set do not take that path from now on. Throws DeviceError where the setting demands it.
  void refuse(DataPath data_path, std::uint32_t process_set, const std::string& why);
  /// Throws the error that has ended that path, if one has.
  void check(DataPath data_path);
  /// The same, if the error came before that event.
  void check_arrival(DataPath data_path, const CudaEvent& copied);
  /// Ends what is in streams, with results that mean nothing; every later batch fails with `error`. Idempotent.
  void abort(const std::exception_ptr& error) noexcept;

  /// Whether any set goes by NCCL.
  [[nodiscard]] bool uses_nccl() { return nccl_.connected(); }

  /// What carries batches by that path, which is not kStaged.
  [[nodiscard]] StreamPath& of(DataPath data_path) noexcept {
    return data_path == DataPath::kRing ? static_cast<StreamPath&>(rings_) : nccl_;
  }

  // Driving thread.
  /// The next batches of NCCL are dealt to so many streams of a GPU; all ranks switch between the same two batches.
  void use_streams(std::size_t count) noexcept { nccl_.use_streams(count); }
  /// The set is gone; what it has in streams goes on. Does not block.
  void removed(std::uint32_t process_set);

  /// When nothing is launched any more, and before the lanes go: waits for what is in streams, at most `timeout`.
  void close(Deadline timeout) noexcept;

 private:
  [[nodiscard]] bool must_go(DataPath data_path) const noexcept;
  [[nodiscard]] bool may_go(DataPath data_path, const Request& request, HostSpread spread) const noexcept;
  std::string refusal_of(DataPath data_path, const Request& request);

  GpuDataPath setting_;
  std::vector<std::string> hosts_;
  KernelCache kernels_;
  NcclPath nccl_;
  PeerRingPath rings_;
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, DataPath>, std::string> refused_;  // the reason, by process set and path
  std::map<std::uint32_t, HostSpread> spreads_;                        // by process set
};

}  // namespace ringtune
