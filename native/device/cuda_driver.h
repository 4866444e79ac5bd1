// NVIDIA's driver (libcuda.so.1), opened at run time: nothing of CUDA is needed to build ringtune or to run it on a
// machine without a GPU, and nothing here happens before a tensor on a GPU is submitted.
//
// The types and numbers are those of cuda.h, which keeps them; a function that changed its signature got a suffix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace ringtune {

using CudaContextHandle = CUctx_st*;
using CudaStreamHandle = CUstream_st*;  // null: the device's legacy default stream
using CudaEventHandle = CUevent_st*;
using CudaModuleHandle = CUmod_st*;
using CudaFunctionHandle = CUfunc_st*;
using CudaAddress = std::uint64_t;
inline CudaAddress address_of(const void* memory) noexcept { return reinterpret_cast<CudaAddress>(memory); }

/// What names a device allocation to other processes.
struct CudaIpcHandle {
  char bytes[64];
};

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaNotReady = 600;

// Attributes of devices.
inline constexpr int kCudaMultiprocessors = 16;
inline constexpr int kCudaComputeCapabilityMajor = 75;
inline constexpr int kCudaComputeCapabilityMinor = 76;

/// The functions that ringtune calls. Thread-safe, as the driver is; handles belong to the context that is current.
struct CudaFunctions {
  int (*init)(unsigned flags);
  int (*driver_version)(int* version);
  int (*get_error_name)(int code, const char** name);
  int (*get_error_string)(int code, const char** text);
  int (*device_count)(int* count);
  int (*device_get)(int* device, int ordinal);
  int (*device_name)(char* name, int length, int device);
  int (*device_bus_id)(char* id, int length, int device);
  int (*device_can_access_peer)(int* can, int device, int peer);
  int (*primary_context_retain)(CudaContextHandle* context, int device);
  int (*primary_context_release)(int device);
  int (*context_push)(CudaContextHandle context);
  int (*context_pop)(CudaContextHandle* context);
  int (*context_reach)(CudaContextHandle peer, unsigned flags);
  int (*stream_create)(CudaStreamHandle* stream, unsigned flags);
  int (*stream_destroy)(CudaStreamHandle stream);
  int (*stream_wait_event)(CudaStreamHandle stream, CudaEventHandle event, unsigned flags);
  int (*stream_is_capturing)(CudaStreamHandle stream, int* status);
  int (*event_create)(CudaEventHandle* event, unsigned flags);
  int (*event_destroy)(CudaEventHandle event);
  int (*event_record)(CudaEventHandle event, CudaStreamHandle stream);
  int (*event_synchronize)(CudaEventHandle event);
  int (*event_query)(CudaEventHandle event);
  int (*event_elapsed)(float* milliseconds, CudaEventHandle begin, CudaEventHandle end);
  int (*host_alloc)(void** memory, std::size_t bytes, unsigned flags);
  int (*host_free)(void* memory);
  int (*copy_to_host)(void* host, CudaAddress device, std::size_t bytes, CudaStreamHandle stream);
  int (*copy_to_device)(CudaAddress device, const void* host, std::size_t bytes, CudaStreamHandle stream);
  int (*pointer_attribute)(void* value, int attribute, CudaAddress pointer);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*memory_alloc)(CudaAddress* address, std::size_t bytes);
  int (*memory_free)(CudaAddress address);
  int (*copy_on_device)(CudaAddress to, CudaAddress from, std::size_t bytes, CudaStreamHandle stream);
  int (*module_load)(CudaModuleHandle* module, const void* image);
  int (*module_unload)(CudaModuleHandle module);
  int (*module_function)(CudaFunctionHandle* function, CudaModuleHandle module, const char* name);
  int (*launch)(CudaFunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, CudaStreamHandle stream, void** parameters,
                void** extra);
  int (*ipc_export)(CudaIpcHandle* handle, CudaAddress address);
  int (*ipc_open)(CudaAddress* address, CudaIpcHandle handle, unsigned flags);
  int (*ipc_close)(CudaAddress address);
  int (*host_register)(void* memory, std::size_t bytes, unsigned flags);
  int (*host_unregister)(void* memory);
  int (*host_device_address)(CudaAddress* address, void* memory, unsigned flags);
  int (*thread_capture_mode)(int* mode);  // null with a driver that lacks it
  // Null with drivers older than CUDA 11.7.
  int (*stream_wait_value)(CudaStreamHandle stream, CudaAddress address, std::uint32_t value, unsigned flags);
  int (*stream_write_value)(CudaStreamHandle stream, CudaAddress address, std::uint32_t value, unsigned flags);
};

/// One opened library. Immutable, and never closed: threads of the driver may run in it.
class CudaDriver {
 public:
  static constexpr int kOldestVersion = 11000;  // CUDA 11.0, as the driver counts

  /// The driver at `path`; empty: libcuda.so.1. The same for every call with that path. Any thread; the first call
  /// blocks while the driver starts. Throws DeviceError: no such library, none that works, or one too old.
  static const CudaDriver& open(const std::string& path);

  [[nodiscard]] const CudaFunctions& api() const noexcept { return api_; }
  [[nodiscard]] int version() const noexcept { return version_; }
  [[nodiscard]] int device_count() const;
  [[nodiscard]] std::string device_name(int ordinal) const;
  /// "0000:3b:00.0": where the device is in its host.
  [[nodiscard]] std::string bus_id(int ordinal) const;
  /// 90 of compute capability 9.0.
  [[nodiscard]] int compute_capability(int ordinal) const;
  /// Whose memory that is; none for the host's. Needs no context.
  [[nodiscard]] std::optional<int> owner_of(const void* memory) const noexcept;
  /// Whether a kernel on one device can read the other's memory.
  [[nodiscard]] bool can_access_peer(int ordinal, int peer) const;

  /// Throws DeviceError for anything but success: which call, what the driver says, and what to do.
  void check(int code, const char* call) const {
    if (code != kCudaSuccess) [[unlikely]]
      fail(code, call);
  }

 private:
  explicit CudaDriver(const std::string& path);
  [[noreturn]] void fail(int code, const char* call) const;

  std::string path_;
  CudaFunctions api_{};
  int version_ = 0;
};

/// "12.4" of 12040.
[[nodiscard]] std::string cuda_version_text(int version);

}  // namespace ringtune
