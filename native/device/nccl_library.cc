#include "device/nccl_library.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/symbols.h"

namespace ringtune {
namespace {

constexpr const char* kNcclLibrary = "libnccl.so.2";

/// Names of what the library lacks.
std::string load_all(void* library, NcclFunctions& api) {
  std::string missing;
  load(library, "ncclGetVersion", api.get_version, missing);
  load(library, "ncclGetUniqueId", api.get_unique_id, missing);
  load(library, "ncclCommInitRankConfig", api.comm_init_rank_config, missing);
  load(library, "ncclCommGetAsyncError", api.comm_get_async_error, missing);
  load(library, "ncclCommFinalize", api.comm_finalize, missing);
  load(library, "ncclCommDestroy", api.comm_destroy, missing);
  load(library, "ncclCommAbort", api.comm_abort, missing);
  load(library, "ncclGetErrorString", api.get_error_string, missing);
  load(library, "ncclGetLastError", api.get_last_error, missing);
  load(library, "ncclGroupStart", api.group_start, missing);
  load(library, "ncclGroupEnd", api.group_end, missing);
  load(library, "ncclAllReduce", api.all_reduce, missing);
  load(library, "ncclBroadcast", api.broadcast, missing);
  load(library, "ncclReduce", api.reduce, missing);
  load(library, "ncclAllGather", api.all_gather, missing);
  load(library, "ncclReduceScatter", api.reduce_scatter, missing);
  load(library, "ncclSend", api.send, missing);
  load(library, "ncclRecv", api.recv, missing);
  load(library, "ncclRedOpCreatePreMulSum", api.red_op_create_pre_mul_sum, missing);
  return missing;
}

/// Null, and why, when it cannot be opened.
void* open_one(const std::string& path, std::string& why) {
  const char* const name = path.empty() ? kNcclLibrary : path.c_str();
  // One copy of NCCL in a process is enough: that of the framework, if it has brought one.
  if (path.empty()) {
    if (void* const loaded = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return loaded;
  }
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* const error = ::dlerror();
  why += (why.empty() ? "" : "; ") + std::string(error == nullptr ? name : error);
  return nullptr;
}

}  // namespace

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

int nccl_op(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kProduct:
      return 1;
    case ReduceOp::kMax:
      return 2;
    case ReduceOp::kMin:
      return 3;
    default:
      return 0;
  }
}

std::optional<int> nccl_dtype(DType dtype) noexcept {
  switch (dtype) {
    case DType::kInt8:
      return 0;
    case DType::kUint8:
      return 1;
    case DType::kInt32:
      return 2;
    case DType::kInt64:
      return 4;
    case DType::kFloat16:
      return 6;
    case DType::kFloat32:
      return 7;
    case DType::kFloat64:
      return 8;
    case DType::kBfloat16:
      return 9;
    case DType::kInt16:
    case DType::kBool:
    case DType::kUint16:
    case DType::kUint32:
    case DType::kUint64:
    case DType::kComplex64:
    case DType::kComplex128:
      return std::nullopt;
  }
  return std::nullopt;
}

NcclLibrary::NcclLibrary(const std::vector<std::string>& paths) {
  std::string why;
  void* library = nullptr;
  for (const std::string& path : paths) {
    library = open_one(path, why);
    if (library == nullptr) continue;
    path_ = path.empty() ? kNcclLibrary : path;
    break;
  }
  if (library == nullptr) {
    throw DeviceError("NCCL cannot be opened (" + why +
                      "): install nvidia-nccl-cu12 or nvidia-nccl-cu13, or say where it is with RINGTUNE_NCCL_LIBRARY");
  }
  const std::string wanted = "install NCCL " + nccl_version_text(kOldestVersion) + " or newer";
  const std::string missing = load_all(library, api_);
  if (api_.get_version != nullptr) check(api_.get_version(&version_), "ncclGetVersion");
  if (api_.get_version != nullptr && version_ < kOldestVersion) {
    throw DeviceError("the NCCL in " + path_ + " is version " + nccl_version_text(version_) + ": " + wanted);
  }
  if (!missing.empty()) throw DeviceError("the NCCL in " + path_ + " lacks " + missing + ": " + wanted);
}

const NcclLibrary& NcclLibrary::open(const std::vector<std::string>& paths) {
  static std::mutex mutex;
  static std::map<std::vector<std::string>, std::unique_ptr<const NcclLibrary>> opened;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const NcclLibrary>& library = opened[paths];
  if (library == nullptr) library.reset(new NcclLibrary(paths));  // after a failure the next call tries again
  return *library;
}

std::string NcclLibrary::complaint(int code, const char* call, NcclHandle comm) const {
  const char* const text = api_.get_error_string == nullptr ? nullptr : api_.get_error_string(code);
  const char* const last = api_.get_last_error == nullptr ? nullptr : api_.get_last_error(comm);
  std::string message = std::string(call) + " failed: " + (text == nullptr ? "unknown error" : text) + " (NCCL error " +
                        std::to_string(code) + ")";
  if (last != nullptr && *last != '\0') message += ": " + std::string(last);
  return message + "; NCCL_DEBUG=WARN says more";
}

void NcclLibrary::fail(int code, const char* call, NcclHandle comm) const {
  throw DeviceError(complaint(code, call, comm));
}

}  // namespace ringtune
