#include "device/nccl_communicator.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <thread>

#include "base/error.h"
#include "device/cpu_kernels.h"

namespace ringtune {
namespace {

constexpr int kScalarOnHost = 1;  // ncclScalarHostImmediate: read before the call returns

/// NCCL has nothing to wait on: it is asked again and again. False at the deadline.
template <typename Done>
bool poll_until(Deadline deadline, const Done& done) {
  constexpr std::chrono::microseconds kLongest(1000);
  std::chrono::microseconds pause(10);
  while (!done()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
  return true;
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclLibrary& library, const NcclUniqueId& id, int rank, int size)
    : library_(library) {
  NcclConfig config;
  library.check(library.api().comm_init_rank_config(&handle_, size, id, rank, &config), "ncclCommInitRankConfig");
}

NcclHandle NcclCommunicator::alive() const {
  if (handle_ == nullptr) throw DeviceError("the NCCL communicator was aborted");
  return handle_;
}

bool NcclCommunicator::settled_locked() {
  int state = kNcclSuccess;
  library_.check(library_.api().comm_get_async_error(alive(), &state), "ncclCommGetAsyncError", handle_);
  library_.check(state, "an operation of NCCL", handle_);
  return state == kNcclSuccess;
}

bool NcclCommunicator::settled() {
  const std::lock_guard lock(mutex_);
  return settled_locked();
}

void NcclCommunicator::settle(Deadline deadline) {
  if (poll_until(deadline, [this] { return settled(); })) return;
  throw Timeout(
      "NCCL did not finish what it had begun: is a rank stuck, or a network interface not reachable?"
      " NCCL_DEBUG=INFO says more");
}

void NcclCommunicator::group(const std::function<void(const NcclFunctions&, NcclHandle)>& calls, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    const NcclHandle handle = alive();
    library_.check(library_.api().group_start(), "ncclGroupStart", handle);
    try {
      calls(library_.api(), handle);
    } catch (...) {
      (void)library_.api().group_end();  // else every later call of this thread would join the group
      throw;
    }
    library_.check(library_.api().group_end(), "ncclGroupEnd", handle);
  }
  settle(deadline);
}

int NcclCommunicator::scaled_sum(DType dtype, double factor) {
  const std::lock_guard lock(mutex_);
  const auto known = scaled_sums_.find({dtype, factor});
  if (known != scaled_sums_.end()) return known->second;
  std::array<std::byte, 8> scalar{};
  convert_copy(scalar.data(), dtype, reinterpret_cast<const std::byte*>(&factor), DType::kFloat64, 1, 1.0);
  int op = 0;
  library_.check(
      library_.api().red_op_create_pre_mul_sum(&op, scalar.data(), nccl_dtype(dtype).value(), kScalarOnHost, alive()),
      "ncclRedOpCreatePreMulSum", handle_);
  return scaled_sums_[{dtype, factor}] = op;  // goes with the communicator
}

void NcclCommunicator::finish(Deadline deadline) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      library_.check(library_.api().comm_finalize(alive()), "ncclCommFinalize", handle_);
    }
    settle(deadline);
    const std::lock_guard lock(mutex_);
    library_.check(library_.api().comm_destroy(alive()), "ncclCommDestroy");
    handle_ = nullptr;
  } catch (const std::exception&) {  // it has failed before, or the others are gone: nothing is lost that was promised
    abort();
  }
}

void NcclCommunicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (handle_ != nullptr) (void)library_.api().comm_abort(handle_);
  handle_ = nullptr;
}

}  // namespace ringtune
