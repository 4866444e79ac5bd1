// One rank's end of an NCCL communicator. None of NCCL's calls blocks (ncclConfig_t::blocking = 0): what a call has
// begun goes on, and is asked for until it has settled, so that no thread is lost in NCCL when a peer dies.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "device/nccl_library.h"

namespace ringtune {

/// Borrows the library. Thread-safe: calls follow one another, and abort() may come at any time. Those that need a GPU
/// use the context that is current in the thread which made it.
class NcclCommunicator {
 public:
  /// Begins to connect: to be settled before it is used. Throws DeviceError.
  NcclCommunicator(const NcclLibrary& library, const NcclUniqueId& id, int rank, int size);
  ~NcclCommunicator() { abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Whether all that was begun has been put into streams. Does not block. Throws DeviceError: what went wrong, now or
  /// in a stream since; or that it was aborted.
  [[nodiscard]] bool settled();
  /// Blocks until then; throws Timeout too.
  void settle(Deadline deadline);
  /// Makes the calls as one group, and settles. Blocks while NCCL connects what it has not connected before. Throws
  /// DeviceError, Timeout.
  void group(const std::function<void(const NcclFunctions&, NcclHandle)>& calls, Deadline deadline);
  /// The operation "times `factor`, then summed up" for a floating dtype that NCCL knows. Made once for each. Throws
  /// DeviceError.
  [[nodiscard]] int scaled_sum(DType dtype, double factor);
  void check(int code, const char* call) const { library_.check(code, call); }

  /// Waits for what is in its streams, and closes it; aborts at the deadline or when it has failed. All members do so.
  void finish(Deadline deadline) noexcept;
  /// What is in streams ends at once, with results that mean nothing. Any thread. Idempotent.
  void abort() noexcept;

 private:
  [[nodiscard]] NcclHandle alive() const;
  [[nodiscard]] bool settled_locked();

  const NcclLibrary& library_;
  std::mutex mutex_;
  NcclHandle handle_ = nullptr;  // null: closed or aborted
  std::map<std::pair<DType, double>, int> scaled_sums_;
};

}  // namespace ringtune
