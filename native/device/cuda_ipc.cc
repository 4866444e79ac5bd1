#include "device/cuda_ipc.h"

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

constexpr unsigned kEnablePeerAccess = 1;       // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
constexpr unsigned kPortableAndMapped = 1 | 2;  // CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP
constexpr unsigned kAheadOrEqual = 0;           // CU_STREAM_WAIT_VALUE_GEQ
constexpr unsigned kAfterAllWrites = 0;         // CU_STREAM_WRITE_VALUE_DEFAULT: with a barrier for memory

}  // namespace

std::optional<CudaIpcHandle> export_memory(const CudaDevice& device, CudaAddress address, std::string& refusal) {
  CudaIpcHandle handle{};
  try {
    device.check(device.api().ipc_export(&handle, address), "cuIpcGetMemHandle");
  } catch (const DeviceError& error) {
    refusal = error.what();
    return std::nullopt;
  }
  return handle;
}

PeerMemory::PeerMemory(const CudaDevice& device, const CudaIpcHandle& handle) : device_(device) {
  device.check(device.api().ipc_open(&address_, handle, kEnablePeerAccess), "cuIpcOpenMemHandle");
}

PeerMemory::~PeerMemory() { (void)device_.api().ipc_close(address_); }

RegisteredMemory::RegisteredMemory(const CudaDevice& device, std::span<std::byte> memory)
    : device_(device), memory_(memory) {
  device.check(device.api().host_register(memory.data(), memory.size(), kPortableAndMapped), "cuMemHostRegister");
  const int code = device.api().host_device_address(&address_, memory.data(), 0);
  if (code != kCudaSuccess) (void)device.api().host_unregister(memory.data());
  device.check(code, "cuMemHostGetDevicePointer");
}

RegisteredMemory::~RegisteredMemory() { (void)device_.api().host_unregister(memory_.data()); }

StreamWord RegisteredMemory::word(std::size_t offset) const {
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
  RINGTUNE_CHECK(offset % 4 == 0 && offset + 4 <= memory_.size(), "a word at ", offset, " of ", memory_.size(),
                 " bytes");
  return {reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data() + offset), address_ + offset};
}

std::string stream_word_refusal(const CudaDevice& device) {
  if (device.api().stream_wait_value != nullptr && device.api().stream_write_value != nullptr) return {};
  return "the CUDA driver is of CUDA " + cuda_version_text(device.driver().version()) +
         ", whose streams cannot wait for words of memory: that needs 11.7 or newer";
}

void wait_for_word(const CudaDevice& device, CudaStreamHandle stream, const StreamWord& word, std::uint32_t value) {
  device.check(device.api().stream_wait_value(stream, word.device, value, kAheadOrEqual), "cuStreamWaitValue32");
}

void write_word(const CudaDevice& device, CudaStreamHandle stream, const StreamWord& word, std::uint32_t value) {
  device.check(device.api().stream_write_value(stream, word.device, value, kAfterAllWrites), "cuStreamWriteValue32");
}

}  // namespace ringtune
