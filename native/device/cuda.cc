#include "device/cuda.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace ringtune {
namespace {

constexpr unsigned kNonBlockingStream = 1;    // CU_STREAM_NON_BLOCKING: not behind the legacy default stream
constexpr unsigned kSleepingWait = 1;         // CU_EVENT_BLOCKING_SYNC
constexpr unsigned kNoTiming = 2;             // CU_EVENT_DISABLE_TIMING
constexpr unsigned kPortable = 1;             // CU_MEMHOSTALLOC_PORTABLE: pinned for all devices
constexpr std::size_t kSlabBytes = 16 << 20;  // what is allocated at once for blocks that are smaller
constexpr std::size_t kLargestCarved = 4 << 20;
constexpr std::size_t kSmallestBlock = 4 << 10;

}  // namespace

CudaDevice::CudaDevice(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {
  check(api().device_get(&device_, ordinal), "cuDeviceGet");
  check(api().primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

// Destructors, here and below, do not look at codes: at the end of the process the driver may be gone already.
CudaDevice::~CudaDevice() { (void)api().primary_context_release(device_); }

CudaDevice::Current::Current(const CudaDevice& device) : api_(device.api()) {
  device.check(api_.context_push(device.context_), "cuCtxPushCurrent");
}

CudaDevice::Current::~Current() {
  CudaContextHandle popped = nullptr;
  (void)api_.context_pop(&popped);
}

void CudaDevice::reach(const CudaDevice& peer) const {
  constexpr int kAlready = 704;  // CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
  const int code = api().context_reach(peer.context_, 0);
  if (code != kAlready) check(code, "cuCtxEnablePeerAccess");
}

void CudaDevice::check_owns(const void* memory, const std::string& what) const {
  const std::optional<int> owner = driver_.owner_of(memory);
  if (owner == ordinal_) return;
  throw InvalidArgument(what + ": its memory is " + (owner ? "that of GPU " + std::to_string(*owner) : "no GPU's") +
                        ", expected that of GPU " + std::to_string(ordinal_));
}

void CudaDevice::check_not_capturing(CudaStreamHandle stream, const std::string& what) const {
  int status = 0;
  check(api().stream_is_capturing(stream, &status), "cuStreamIsCapturing");
  if (status == 0) return;
  throw InvalidArgument(what +
                        " cannot be part of a CUDA graph, which the current stream is recording: the ranks agree "
                        "on every collective on the host; call it outside of torch.cuda.graph()");
}

CudaEvent::CudaEvent(const CudaDevice& device, CudaEventUse use) : device_(device) {
  const unsigned flags =
      (use == CudaEventUse::kClock ? 0U : kSleepingWait) | (use == CudaEventUse::kOrder ? kNoTiming : 0U);
  device.check(device.api().event_create(&handle_, flags), "cuEventCreate");
}
CudaEvent::~CudaEvent() { (void)device_.api().event_destroy(handle_); }
void CudaEvent::record(CudaStreamHandle stream) {
  device_.check(device_.api().event_record(handle_, stream), "cuEventRecord");
}
void CudaEvent::synchronize() const { device_.check(device_.api().event_synchronize(handle_), "cuEventSynchronize"); }

bool CudaEvent::reached() const {
  const int code = device_.api().event_query(handle_);
  if (code != kCudaNotReady) device_.check(code, "cuEventQuery");
  return code != kCudaNotReady;
}

double CudaEvent::elapsed_ns_since(const CudaEvent& begin) const {
  float milliseconds = 0.0F;
  device_.check(device_.api().event_elapsed(&milliseconds, begin.handle(), handle_), "cuEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e6;
}

CudaStream::CudaStream(const CudaDevice& device) : device_(device) {
  device.check(device.api().stream_create(&handle_, kNonBlockingStream), "cuStreamCreate");
}
CudaStream::~CudaStream() { (void)device_.api().stream_destroy(handle_); }
void CudaStream::wait(const CudaEvent& event) {
  device_.check(device_.api().stream_wait_event(handle_, event.handle(), 0), "cuStreamWaitEvent");
}
void CudaStream::copy_to_host(std::byte* host, const std::byte* device, std::size_t bytes) {
  if (bytes == 0) return;
  device_.check(device_.api().copy_to_host(host, address_of(device), bytes, handle_), "cuMemcpyDtoHAsync");
}
void CudaStream::copy_to_device(std::byte* device, const std::byte* host, std::size_t bytes) {
  if (bytes == 0) return;
  device_.check(device_.api().copy_to_device(address_of(device), host, bytes, handle_), "cuMemcpyHtoDAsync");
}

MemoryPool::~MemoryPool() {
  for (std::byte* const slab : slabs_) {
    (void)(kind_ == Kind::kPinned ? device_.api().host_free(slab) : device_.api().memory_free(address_of(slab)));
  }
}

namespace {

/// Eight sizes from one power of two to the next, or none between.
std::size_t block_size(std::size_t bytes, bool fine) noexcept {
  const std::size_t power = std::bit_ceil(std::max(bytes, kSmallestBlock));
  const std::size_t step = fine ? std::max(power / 8, kSmallestBlock) : power;
  return (std::max(bytes, kSmallestBlock) + step - 1) / step * step;
}

}  // namespace

MemoryBlock& MemoryPool::take(std::size_t bytes) {
  const std::size_t size = block_size(bytes, kind_ == Kind::kDevice);
  std::vector<MemoryBlock*>& free = free_[size];
  if (free.empty()) return make(size);
  MemoryBlock& block = *free.back();
  free.pop_back();
  return block;
}

MemoryBlock& MemoryPool::take_idle(std::size_t bytes) {
  const std::size_t size = block_size(bytes, kind_ == Kind::kDevice);
  std::vector<MemoryBlock*>& free = free_[size];
  const auto found =
      std::find_if(free.begin(), free.end(), [](const MemoryBlock* block) { return block->last_use.reached(); });
  if (found == free.end()) return make(size);
  MemoryBlock& block = **found;
  free.erase(found);
  return block;
}

MemoryBlock& MemoryPool::make(std::size_t size) {
  auto block = std::make_unique<MemoryBlock>(device_);
  block->data = size <= kLargestCarved ? carve(size) : allocate(size);
  block->bytes = size;
  return *blocks_.emplace_back(std::move(block));
}

std::byte* MemoryPool::carve(std::size_t bytes) {
  if (left_ < bytes) {
    carved_ = allocate(kSlabBytes);
    left_ = kSlabBytes;
  }
  std::byte* const memory = carved_;
  carved_ += bytes;
  left_ -= bytes;
  return memory;
}

std::byte* MemoryPool::allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (kind_ == Kind::kPinned) {
    device_.check(device_.api().host_alloc(&memory, bytes, kPortable), "cuMemHostAlloc");
  } else {
    CudaAddress address = 0;
    device_.check(device_.api().memory_alloc(&address, bytes), "cuMemAlloc");
    memory = reinterpret_cast<void*>(address);
  }
  slabs_.push_back(static_cast<std::byte*>(memory));
  held_bytes_ += bytes;
  return slabs_.back();
}

}  // namespace ringtune
