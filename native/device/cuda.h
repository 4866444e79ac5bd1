// What the runtime keeps of a GPU: its primary context - the one that torch and CuPy use -, streams, events and pinned
// host memory. Objects borrow their device, which must outlive them; none is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda_driver.h"

namespace ringtune {

/// A GPU, by its number among the visible ones. Thread-safe. The context is retained as long as this lives.
class CudaDevice {
 public:
  /// Throws DeviceError when there is no such GPU.
  CudaDevice(const CudaDriver& driver, int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] const CudaDriver& driver() const noexcept { return driver_; }
  [[nodiscard]] const CudaFunctions& api() const noexcept { return driver_.api(); }
  void check(int code, const char* call) const { driver_.check(code, call); }
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }

  /// Makes the device's context the calling thread's as long as it lives, then the former one again.
  class Current {
   public:
    explicit Current(const CudaDevice& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaFunctions& api_;
  };

  /// Lets its kernels and copies read another device's memory, of this process. Needs its context to be current; throws
  /// DeviceError where the two cannot.
  void reach(const CudaDevice& peer) const;
  /// Throws InvalidArgument when the memory is not this device's; `what` names it.
  void check_owns(const void* memory, const std::string& what) const;
  /// Throws InvalidArgument while the stream records a CUDA graph; `what` names the operation.
  void check_not_capturing(CudaStreamHandle stream, const std::string& what) const;

 private:
  const CudaDriver& driver_;
  int ordinal_;
  int device_ = 0;
  CudaContextHandle context_ = nullptr;
};

// From here on, every function but destructors needs the device's context to be current, and throws DeviceError.

/// What an event is for.
enum class CudaEventUse {
  kOrder,  // without a time; a thread that waits for it sleeps
  kTimed,  // knows when it was reached; a thread that waits for it sleeps
  kClock,  // knows when it was reached; a thread that waits for it spins, unless the context is set to sleep
};

class CudaEvent {
 public:
  explicit CudaEvent(const CudaDevice& device, CudaEventUse use = CudaEventUse::kOrder);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  [[nodiscard]] CudaEventHandle handle() const noexcept { return handle_; }
  /// It stands for what is in that stream now.
  void record(CudaStreamHandle stream);
  /// Blocks the calling thread until that is done. At once if it was never recorded.
  void synchronize() const;
  /// Whether synchronize() would return at once.
  [[nodiscard]] bool reached() const;
  /// From one event to this one, both timed and reached. The driver's resolution is a float of milliseconds.
  [[nodiscard]] double elapsed_ns_since(const CudaEvent& begin) const;

 private:
  const CudaDevice& device_;
  CudaEventHandle handle_ = nullptr;
};

/// A stream of our own, which waits for no other one unless asked to.
class CudaStream {
 public:
  explicit CudaStream(const CudaDevice& device);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  [[nodiscard]] CudaStreamHandle handle() const noexcept { return handle_; }
  /// What is put in from now on waits for what the event stands for now.
  void wait(const CudaEvent& event);
  /// The host's side is pinned. Neither blocks.
  void copy_to_host(std::byte* host, const std::byte* device, std::size_t bytes);
  void copy_to_device(std::byte* device, const std::byte* host, std::size_t bytes);

 private:
  const CudaDevice& device_;
  CudaStreamHandle handle_ = nullptr;
};

/// Memory of one operation, from a pool.
struct MemoryBlock {
  explicit MemoryBlock(const CudaDevice& device) : last_use(device) {}
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // at least as many as were asked for
  CudaEvent last_use;     // by a stream: the next one to use it waits for that
};
using PinnedBlock = MemoryBlock;

/// Blocks of memory that are used again. Grows to what is in use at once, and keeps it: to allocate takes milliseconds
/// and may wait for the device. One thread at a time.
class MemoryPool {
 public:
  enum class Kind : std::uint8_t { kPinned, kDevice };
  MemoryPool(const CudaDevice& device, Kind kind) : device_(device), kind_(kind) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  [[nodiscard]] MemoryBlock& take(std::size_t bytes);
  /// One that no stream uses any more: the host may write into it at once.
  [[nodiscard]] MemoryBlock& take_idle(std::size_t bytes);
  void give_back(MemoryBlock& block) { free_[block.bytes].push_back(&block); }
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_; }

 private:
  MemoryBlock& make(std::size_t size);
  std::byte* allocate(std::size_t bytes);
  std::byte* carve(std::size_t bytes);

  const CudaDevice& device_;
  Kind kind_;
  std::vector<std::byte*> slabs_;
  std::vector<std::unique_ptr<MemoryBlock>> blocks_;
  std::map<std::size_t, std::vector<MemoryBlock*>> free_;  // by size: few different ones
  std::byte* carved_ = nullptr;
  std::size_t left_ = 0;  // of the slab that small blocks are cut from
  std::size_t held_bytes_ = 0;
};

/// Of pinned host memory.
class PinnedPool : public MemoryPool {
 public:
  explicit PinnedPool(const CudaDevice& device) : MemoryPool(device, Kind::kPinned) {}
};

/// Of the device's memory.
class DevicePool : public MemoryPool {
 public:
  explicit DevicePool(const CudaDevice& device) : MemoryPool(device, Kind::kDevice) {}
};

}  // namespace ringtune
