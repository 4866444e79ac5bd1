// NCCL, opened at run time: nothing of it is needed to build ringtune, and nothing here happens before a tensor on a
// GPU is submitted that could travel by it.
//
// Types and numbers are those of nccl.h, whose ABI is stable within libnccl.so.2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/cuda_driver.h"

struct ncclComm;

namespace ringtune {

using NcclHandle = ncclComm*;

/// How the ranks of a communicator find one another; made by one of them, sent to the others. Passed by value in C.
struct NcclUniqueId {
  std::array<char, 128> bytes{};
};

/// ncclConfig_t as NCCL 2.18 has it: a newer library reads from `version` what is not there.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;  // calls come back at once, and what they began goes on (ncclInProgress)
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  static constexpr int kUndefined = INT32_MIN;
};

inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;

/// The functions that ringtune calls. Thread-safe, but for one communicator by one thread at a time.
struct NcclFunctions {
  int (*get_version)(int* version);
  int (*get_unique_id)(NcclUniqueId* id);
  int (*comm_init_rank_config)(NcclHandle* comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config);
  int (*comm_get_async_error)(NcclHandle comm, int* error);
  int (*comm_finalize)(NcclHandle comm);
  int (*comm_destroy)(NcclHandle comm);
  int (*comm_abort)(NcclHandle comm);
  const char* (*get_error_string)(int code);
  const char* (*get_last_error)(NcclHandle comm);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* in, void* out, std::size_t count, int dtype, int op, NcclHandle, CudaStreamHandle);
  int (*broadcast)(const void* in, void* out, std::size_t count, int dtype, int root, NcclHandle, CudaStreamHandle);
  int (*reduce)(const void* in, void* out, std::size_t count, int dtype, int op, int root, NcclHandle,
                CudaStreamHandle);
  int (*all_gather)(const void* in, void* out, std::size_t count, int dtype, NcclHandle, CudaStreamHandle);
  int (*reduce_scatter)(const void* in, void* out, std::size_t count, int dtype, int op, NcclHandle, CudaStreamHandle);
  int (*send)(const void* in, std::size_t count, int dtype, int peer, NcclHandle, CudaStreamHandle);
  int (*recv)(void* out, std::size_t count, int dtype, int peer, NcclHandle, CudaStreamHandle);
  int (*red_op_create_pre_mul_sum)(int* op, void* scalar, int dtype, int residence, NcclHandle comm);
};

/// One opened library. Immutable, and never closed: its threads may run.
class NcclLibrary {
 public:
  static constexpr int kOldestVersion = 21800;  // 2.18.0, as ncclGetVersion counts

  /// The first of `paths` that can be opened; an empty one: libnccl.so.2, of the process if it has one already (torch
  /// brings one), else of the system. The same for every call with those paths. Throws DeviceError: none of them, or
  /// the one that was found lacks something or is too old.
  static const NcclLibrary& open(const std::vector<std::string>& paths);

  [[nodiscard]] const NcclFunctions& api() const noexcept { return api_; }
  [[nodiscard]] int version() const noexcept { return version_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Throws DeviceError for anything but success and "in progress": which call, and what NCCL says.
  void check(int code, const char* call, NcclHandle comm = nullptr) const {
    if (code != kNcclSuccess && code != kNcclInProgress) [[unlikely]]
      fail(code, call, comm);
  }
  [[nodiscard]] std::string complaint(int code, const char* call, NcclHandle comm) const;

 private:
  explicit NcclLibrary(const std::vector<std::string>& paths);
  [[noreturn]] void fail(int code, const char* call, NcclHandle comm) const;

  std::string path_;
  NcclFunctions api_{};
  int version_ = 0;
};

/// "2.18.5" of 21805.
[[nodiscard]] std::string nccl_version_text(int version);
/// ncclRedOp_t of a reduction without factors: of an average the sum.
[[nodiscard]] int nccl_op(ReduceOp op) noexcept;
/// ncclDataType_t; none for what NCCL cannot reduce.
[[nodiscard]] std::optional<int> nccl_dtype(DType dtype) noexcept;
inline constexpr int kNcclBytes = 1;  // ncclUint8: what is only moved is moved as bytes

}  // namespace ringtune
