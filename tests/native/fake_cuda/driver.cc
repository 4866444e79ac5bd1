// The driver's functions under their names, and those that direct it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "call.h"
#include "fake_cuda.h"

namespace {

using namespace fake_cuda;

/// A copy of bytes between device memory and elsewhere; memory that is freed before it is done breaks everything.
int put_copy(Call& call, void* stream, std::uint64_t device, std::size_t bytes,
             const std::function<void(std::byte*)>& copy) {
  Stream* const found = call.stream(stream);
  if (found == nullptr) return call.code;
  if (call.world.behind(device, bytes) == nullptr) return kInvalidValue;
  World& world = call.world;
  world.put(*found, {.work = [&world, device, bytes, copy] {
    std::byte* const memory = world.behind(device, bytes);
    if (memory == nullptr) {
      world.broken = kIllegalAddress;
    } else if (world.broken == 0) {
      copy(memory);
    }
  }});
  return 0;
}

}  // namespace

fake_cuda::Context* fake_cuda::World::current() { return t_contexts.empty() ? nullptr : t_contexts.back(); }

#pragma GCC visibility push(default)
extern "C" {

void fake_cuda_reset() { World::get().reset(); }
void fake_cuda_set_devices(int count) { World::get().devices = count; }
void fake_cuda_set_version(int version) { World::get().version = version; }
void fake_cuda_set_eager(int eager) { World::get().eager = eager != 0; }
void fake_cuda_set_clock_drift(int ppb) {
  const std::lock_guard lock(World::get().mutex);
  World::get().clock_rate = 1.0 + 1e-9 * ppb;
}
void fake_cuda_fail(const char* function, int index, int code) {
  const std::lock_guard lock(World::get().mutex);
  World::get().failures.push_back({function, index, code});
}
int fake_cuda_calls(const char* function) {
  const std::lock_guard lock(World::get().mutex);
  return World::get().calls[function];
}
void fake_cuda_hold(void* stream) {
  const std::lock_guard lock(World::get().mutex);
  static_cast<Stream*>(stream)->tasks.push_back({.gate = true});
}
void fake_cuda_release(void* stream) {
  World& world = World::get();
  const std::lock_guard lock(world.mutex);
  ++static_cast<Stream*>(stream)->open_gates;
  if (world.eager) world.drain_all();
  world.changed.notify_all();
}
void fake_cuda_capture(void* stream, int on) {
  const std::lock_guard lock(World::get().mutex);
  static_cast<Stream*>(stream)->capturing = on != 0;
}
int fake_cuda_alive() {
  World& world = World::get();
  const std::lock_guard lock(world.mutex);
  std::size_t alive = world.streams.size() + world.events.size() + world.memory.size() + world.pinned.size() +
                      world.modules.size() + world.registered.size();
  for (const Context& context : world.contexts) alive += static_cast<std::size_t>(context.retained);
  return static_cast<int>(alive);
}

void* fake_cuda_behind(unsigned long long address) {
  World& world = World::get();
  const std::lock_guard lock(world.mutex);
  return world.behind(address, 0);
}

int cuInit(unsigned) { return Call("cuInit").code; }
int cuDriverGetVersion(int* version) {
  const Call call("cuDriverGetVersion");
  *version = call.world.version;
  return call.code;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OF_THE_FAKE";
  return 0;
}
int cuGetErrorString(int code, const char** text) {
  *text = code == kIllegalAddress ? "an illegal memory access was encountered" : "the fake was told to fail";
  return 0;
}
int cuDeviceGetCount(int* count) {
  const Call call("cuDeviceGetCount");
  *count = call.world.devices;
  return call.code;
}
int cuDeviceGet(int* device, int ordinal) {
  const Call call("cuDeviceGet");
  *device = ordinal;
  return ordinal < 0 || ordinal >= call.world.devices ? kInvalidDevice : call.code;
}
int cuDeviceGetName(char* name, int length, int device) {
  const Call call("cuDeviceGetName");
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU %d", device);
  return call.code;
}
int cuDeviceGetPCIBusId(char* id, int length, int device) {
  const Call call("cuDeviceGetPCIBusId");
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
  return call.code;
}
int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return Call("cuDeviceCanAccessPeer").code;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  const Call call("cuDevicePrimaryCtxRetain");
  if (call.code != 0) return call.code;
  ++call.world.contexts[device].retained;
  *context = &call.world.contexts[device];
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  const Call call("cuDevicePrimaryCtxRelease_v2");
  --call.world.contexts[device].retained;
  return call.code;
}
int cuCtxPushCurrent_v2(void* context) {
  const Call call("cuCtxPushCurrent_v2");
  if (call.code == 0) t_contexts.push_back(static_cast<Context*>(context));
  return call.code;
}
int cuCtxPopCurrent_v2(void** context) {
  const Call call("cuCtxPopCurrent_v2");
  if (t_contexts.empty()) return kInvalidContext;
  *context = t_contexts.back();
  t_contexts.pop_back();
  return call.code;
}
int cuCtxEnablePeerAccess(void*, unsigned) {
  const Call call("cuCtxEnablePeerAccess");
  return call.code != 0 || call.context() != nullptr ? call.code : kInvalidContext;
}
int cuStreamCreate(void** stream, unsigned) {
  const Call call("cuStreamCreate");
  if (call.code != 0 || call.context() == nullptr) return call.code != 0 ? call.code : kInvalidContext;
  auto* const made = new Stream;
  made->device = call.context()->device;
  call.world.streams.insert(made);
  *stream = made;
  return 0;
}
int cuStreamDestroy_v2(void* stream) {
  Call call("cuStreamDestroy_v2");
  auto* const gone = static_cast<Stream*>(stream);
  if (!call.world.streams.contains(gone)) return kInvalidHandle;
  const auto end = std::make_shared<Moment>(gone);
  gone->tasks.push_back({.reached = end});
  call.world.reach(call.lock, end);
  call.world.streams.erase(gone);
  delete gone;
  return call.code;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  Call call("cuStreamWaitEvent");
  Stream* const found = call.stream(stream);
  auto* const awaited = static_cast<Event*>(event);
  if (found == nullptr) return call.code;
  if (!call.world.events.contains(awaited)) return kInvalidHandle;
  if (awaited->last != nullptr) call.world.put(*found, {.awaited = awaited->last});
  return 0;
}
int cuStreamSynchronize(void* stream) {
  Call call("cuStreamSynchronize");
  Stream* const found = call.stream(stream);
  if (found == nullptr) return call.code;
  const auto end = std::make_shared<Moment>(found);
  found->tasks.push_back({.reached = end});
  call.world.reach(call.lock, end);
  return call.world.broken;
}
int cuStreamIsCapturing(void* stream, int* status) {
  Call call("cuStreamIsCapturing");
  const Stream* const found = call.stream(stream);
  if (found != nullptr) *status = found->capturing ? 1 : 0;
  return call.code;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  const Call call("cuThreadExchangeStreamCaptureMode");
  *mode = 0;
  return call.code;
}
int cuEventCreate(void** event, unsigned flags) {
  const Call call("cuEventCreate");
  if (call.code != 0 || call.context() == nullptr) return call.code != 0 ? call.code : kInvalidContext;
  auto* const made = new Event{call.context()->device, (flags & 2) == 0, nullptr};
  call.world.events.insert(made);
  *event = made;
  return 0;
}
int cuEventDestroy_v2(void* event) {
  const Call call("cuEventDestroy_v2");
  auto* const gone = static_cast<Event*>(event);
  if (call.world.events.erase(gone) == 0) return kInvalidHandle;
  delete gone;
  return call.code;
}
int cuEventRecord(void* event, void* stream) {
  Call call("cuEventRecord");
  Stream* const found = call.stream(stream);
  auto* const recorded = static_cast<Event*>(event);
  if (found == nullptr) return call.code;
  if (!call.world.events.contains(recorded) || recorded->device != found->device) return kInvalidHandle;
  recorded->last = std::make_shared<Moment>(found);
  call.world.put(*found, {.reached = recorded->last});
  return 0;
}
int cuEventSynchronize(void* event) {
  Call call("cuEventSynchronize");
  if (call.code != 0) return call.code;
  if (!call.world.events.contains(static_cast<Event*>(event))) return kInvalidHandle;
  const std::shared_ptr<Moment> moment = static_cast<Event*>(event)->last;
  if (moment != nullptr) call.world.reach(call.lock, moment);
  return call.world.broken;
}
int cuEventQuery(void* event) {
  const Call call("cuEventQuery");
  if (call.code != 0) return call.code;
  if (!call.world.events.contains(static_cast<Event*>(event))) return kInvalidHandle;
  const std::shared_ptr<Moment> moment = static_cast<Event*>(event)->last;
  return moment == nullptr || moment->reached ? 0 : kNotReady;
}
int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  const Call call("cuEventElapsedTime");
  if (call.code != 0) return call.code;
  for (void* const handle : {begin, end}) {
    const auto* const event = static_cast<Event*>(handle);
    if (!call.world.events.contains(static_cast<Event*>(handle)) || !event->timed) return kInvalidHandle;
    if (event->last == nullptr) return kInvalidHandle;
    if (!event->last->reached) return kNotReady;
  }
  const double ns = static_cast<Event*>(end)->last->at_ns - static_cast<Event*>(begin)->last->at_ns;
  constexpr double kResolutionNs = 500;
  *milliseconds = static_cast<float>(std::round(ns / kResolutionNs) * kResolutionNs * 1e-6);
  return 0;
}
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  const Call call("cuMemHostAlloc");
  if (call.code != 0) return call.code;
  *memory = std::malloc(bytes);
  std::memset(*memory, 0x5a, bytes);
  call.world.pinned[static_cast<std::byte*>(*memory)] = bytes;
  return 0;
}
int cuMemFreeHost(void* memory) {
  const Call call("cuMemFreeHost");
  if (call.world.pinned.erase(static_cast<std::byte*>(memory)) == 0) return kInvalidValue;
  std::free(memory);
  return call.code;
}
int cuMemcpyDtoHAsync_v2(void* host, std::uint64_t device, std::size_t bytes, void* stream) {
  Call call("cuMemcpyDtoHAsync_v2");
  if (call.code != 0) return call.code;
  if (!call.world.is_pinned(host, bytes)) return kInvalidValue;
  return put_copy(call, stream, device, bytes, [=](std::byte* memory) { std::memcpy(host, memory, bytes); });
}
int cuMemcpyHtoDAsync_v2(std::uint64_t device, const void* host, std::size_t bytes, void* stream) {
  Call call("cuMemcpyHtoDAsync_v2");
  if (call.code != 0) return call.code;
  if (!call.world.is_pinned(host, bytes)) return kInvalidValue;
  return put_copy(call, stream, device, bytes, [=](std::byte* memory) { std::memcpy(memory, host, bytes); });
}
int cuPointerGetAttribute(void* value, int, std::uint64_t pointer) {
  const Call call("cuPointerGetAttribute");
  const int device = call.world.device_of(pointer);
  if (device < 0) return kInvalidValue;
  *static_cast<int*>(value) = device;
  return call.code;
}

int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  const Call call("cuMemAlloc_v2");
  if (call.context() == nullptr) return kInvalidContext;
  if (call.code != 0) return call.code;
  *address = call.world.allocate(call.context()->device, bytes);
  return *address == 0 ? kOutOfMemory : 0;
}
int cuMemFree_v2(std::uint64_t address) {
  const Call call("cuMemFree_v2");
  return call.world.memory.erase(address) == 0 ? kInvalidValue : call.code;
}

// What only programs with kernels need: the tests themselves.

int cuMemsetD32Async(std::uint64_t device, unsigned value, std::size_t count, void* stream) {
  Call call("cuMemsetD32Async");
  return put_copy(call, stream, device, 4 * count, [=](std::byte* memory) {
    for (std::size_t i = 0; i < count; ++i) std::memcpy(memory + 4 * i, &value, 4);
  });
}
int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* stream) {
  Call call("cuMemcpyDtoDAsync_v2");
  World& world = call.world;
  return put_copy(call, stream, to, bytes, [&world, from, bytes](std::byte* memory) {
    const std::byte* const source = world.behind(from, bytes);
    if (source == nullptr) world.broken = kIllegalAddress;
    if (source != nullptr) std::memmove(memory, source, bytes);
  });
}
int cuMemcpyHtoD_v2(std::uint64_t device, const void* host, std::size_t bytes) {
  const Call call("cuMemcpyHtoD_v2");
  std::byte* const memory = call.world.behind(device, bytes);
  if (memory == nullptr) return kInvalidValue;
  std::copy_n(static_cast<const std::byte*>(host), bytes, memory);
  return call.code;
}
int cuMemcpyDtoH_v2(void* host, std::uint64_t device, std::size_t bytes) {
  const Call call("cuMemcpyDtoH_v2");
  const std::byte* const memory = call.world.behind(device, bytes);
  if (memory == nullptr) return kInvalidValue;
  std::copy_n(memory, bytes, static_cast<std::byte*>(host));
  return call.code;
}
}
#pragma GCC visibility pop
