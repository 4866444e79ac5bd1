#include "device/cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/symbols.h"

namespace ringtune {
namespace {

constexpr const char* kCudaLibrary = "libcuda.so.1";

struct Advice {
  int code;
  const char* text;
};

/// What to do about the errors that a user can do something about.
constexpr std::array<Advice, 8> kAdvice{{
    {2, "the machine has no memory left that can be pinned, or the GPU none: use smaller batches or fewer ranks"},
    {3,
     "the driver is not in a state to work: was this process forked after CUDA had been used? Start it with 'spawn'"},
    {4, "the program is ending: call shutdown() before the interpreter goes"},
    {100, "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {101, "there is no such GPU: look at CUDA_VISIBLE_DEVICES and at the device's number"},
    {700,
     "a kernel of this process has used memory that is not its own, and the GPU's context is lost: run with "
     "CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer to find it"},
    {719,
     "a kernel of this process has failed, and the GPU's context is lost: run with CUDA_LAUNCH_BLOCKING=1 or "
     "compute-sanitizer to find it"},
    {803, "driver and kernel module do not belong together: restart the machine after an update of the driver"},
}};

/// Names of what the library lacks.
std::string load_all(void* library, CudaFunctions& api) {
  std::string missing;
  load(library, "cuInit", api.init, missing);
  load(library, "cuDriverGetVersion", api.driver_version, missing);
  load(library, "cuGetErrorName", api.get_error_name, missing);
  load(library, "cuGetErrorString", api.get_error_string, missing);
  load(library, "cuDeviceGetCount", api.device_count, missing);
  load(library, "cuDeviceGet", api.device_get, missing);
  load(library, "cuDeviceGetName", api.device_name, missing);
  load(library, "cuDeviceGetPCIBusId", api.device_bus_id, missing);
  load(library, "cuDeviceCanAccessPeer", api.device_can_access_peer, missing);
  load(library, "cuDevicePrimaryCtxRetain", api.primary_context_retain, missing);
  load(library, "cuDevicePrimaryCtxRelease_v2", api.primary_context_release, missing);
  load(library, "cuCtxPushCurrent_v2", api.context_push, missing);
  load(library, "cuCtxPopCurrent_v2", api.context_pop, missing);
  load(library, "cuCtxEnablePeerAccess", api.context_reach, missing);
  load(library, "cuStreamCreate", api.stream_create, missing);
  load(library, "cuStreamDestroy_v2", api.stream_destroy, missing);
  load(library, "cuStreamWaitEvent", api.stream_wait_event, missing);
  load(library, "cuStreamIsCapturing", api.stream_is_capturing, missing);
  load(library, "cuEventCreate", api.event_create, missing);
  load(library, "cuEventDestroy_v2", api.event_destroy, missing);
  load(library, "cuEventRecord", api.event_record, missing);
  load(library, "cuEventSynchronize", api.event_synchronize, missing);
  load(library, "cuEventQuery", api.event_query, missing);
  load(library, "cuEventElapsedTime", api.event_elapsed, missing);
  load(library, "cuMemHostAlloc", api.host_alloc, missing);
  load(library, "cuMemFreeHost", api.host_free, missing);
  load(library, "cuMemcpyDtoHAsync_v2", api.copy_to_host, missing);
  load(library, "cuMemcpyHtoDAsync_v2", api.copy_to_device, missing);
  load(library, "cuPointerGetAttribute", api.pointer_attribute, missing);
  load(library, "cuDeviceGetAttribute", api.device_attribute, missing);
  load(library, "cuMemAlloc_v2", api.memory_alloc, missing);
  load(library, "cuMemFree_v2", api.memory_free, missing);
  load(library, "cuMemcpyDtoDAsync_v2", api.copy_on_device, missing);
  load(library, "cuModuleLoadData", api.module_load, missing);
  load(library, "cuModuleUnload", api.module_unload, missing);
  load(library, "cuModuleGetFunction", api.module_function, missing);
  load(library, "cuLaunchKernel", api.launch, missing);
  load(library, "cuIpcGetMemHandle", api.ipc_export, missing);
  load(library, "cuIpcOpenMemHandle_v2", api.ipc_open, missing);
  load(library, "cuIpcCloseMemHandle", api.ipc_close, missing);
  load(library, "cuMemHostRegister_v2", api.host_register, missing);
  load(library, "cuMemHostUnregister", api.host_unregister, missing);
  load(library, "cuMemHostGetDevicePointer_v2", api.host_device_address, missing);
  std::string optional;
  load(library, "cuThreadExchangeStreamCaptureMode", api.thread_capture_mode, optional);
  load(library, "cuStreamWaitValue32_v2", api.stream_wait_value, optional);
  load(library, "cuStreamWriteValue32_v2", api.stream_write_value, optional);
  return missing;
}

}  // namespace

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CudaDriver::CudaDriver(const std::string& path) : path_(path.empty() ? kCudaLibrary : path) {
  void* const library = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    throw DeviceError("tensors on a GPU need NVIDIA's driver, which cannot be opened (" +
                      std::string(why == nullptr ? path_.c_str() : why) +
                      "): install it, in a container with --gpus, or keep the tensors on the CPU");
  }
  if (const std::string missing = load_all(library, api_); !missing.empty()) {
    throw DeviceError("the CUDA driver " + path_ + " lacks " + missing + ": install one of CUDA " +
                      cuda_version_text(kOldestVersion) + " or newer");
  }
  check(api_.init(0), "cuInit");
  check(api_.driver_version(&version_), "cuDriverGetVersion");
  if (version_ < kOldestVersion) {
    throw DeviceError("the CUDA driver " + path_ + " is of CUDA " + cuda_version_text(version_) +
                      ", expected at least " + cuda_version_text(kOldestVersion) + ": install a newer one");
  }
}

const CudaDriver& CudaDriver::open(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const CudaDriver>> opened;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const CudaDriver>& driver = opened[path];
  if (driver == nullptr) driver.reset(new CudaDriver(path));  // after a failure the next call tries again
  return *driver;
}

int CudaDriver::device_count() const {
  int count = 0;
  check(api_.device_count(&count), "cuDeviceGetCount");
  return count;
}

std::string CudaDriver::device_name(int ordinal) const {
  int device = 0;
  check(api_.device_get(&device, ordinal), "cuDeviceGet");
  std::array<char, 256> name{};
  check(api_.device_name(name.data(), static_cast<int>(name.size()) - 1, device), "cuDeviceGetName");
  return name.data();
}

std::string CudaDriver::bus_id(int ordinal) const {
  int device = 0;
  check(api_.device_get(&device, ordinal), "cuDeviceGet");
  std::array<char, 32> id{};
  check(api_.device_bus_id(id.data(), static_cast<int>(id.size()) - 1, device), "cuDeviceGetPCIBusId");
  return id.data();
}

int CudaDriver::compute_capability(int ordinal) const {
  int device = 0;
  int major = 0;
  int minor = 0;
  check(api_.device_get(&device, ordinal), "cuDeviceGet");
  check(api_.device_attribute(&major, kCudaComputeCapabilityMajor, device), "cuDeviceGetAttribute");
  check(api_.device_attribute(&minor, kCudaComputeCapabilityMinor, device), "cuDeviceGetAttribute");
  return 10 * major + minor;
}

std::optional<int> CudaDriver::owner_of(const void* memory) const noexcept {
  constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
  int owner = -1;
  const int code = api_.pointer_attribute(&owner, kDeviceOrdinal, reinterpret_cast<CudaAddress>(memory));
  return code == kCudaSuccess && owner >= 0 ? std::optional(owner) : std::nullopt;
}

bool CudaDriver::can_access_peer(int ordinal, int peer) const {
  int can = 0;
  check(api_.device_can_access_peer(&can, ordinal, peer), "cuDeviceCanAccessPeer");
  return can != 0;
}

void CudaDriver::fail(int code, const char* call) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api_.get_error_name(code, &name) != kCudaSuccess) name = nullptr;
  if (api_.get_error_string(code, &text) != kCudaSuccess) text = nullptr;
  std::string message = std::string(call) + " failed: " + (text == nullptr ? "unknown error" : text) + " (" +
                        (name == nullptr ? "" : std::string(name) + ", ") + "error " + std::to_string(code) + ")";
  for (const Advice& advice : kAdvice) {
    if (advice.code == code) message += std::string("; ") + advice.text;
  }
  throw DeviceError(message);
}

}  // namespace ringtune
