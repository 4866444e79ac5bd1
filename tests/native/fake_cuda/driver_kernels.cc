// The driver's functions for modules, launches, memory of other processes, and words that streams wait for.
#include <cstring>

#include "call.h"
#include "host_kernels.h"

using namespace fake_cuda;

namespace {

int put_word(const char* function, void* stream, std::uint64_t address, std::uint32_t value, bool written) {
  Call call(function);
  Stream* const found = call.stream(stream);
  if (found == nullptr) return call.code;
  Task task{.value = value};
  task.word = call.world.word_at(address, &task.place);
  if (task.word == nullptr) return kInvalidValue;
  if (written) task.reached = std::make_shared<Moment>(found);
  call.world.put(*found, std::move(task));
  return 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int cuDeviceGetAttribute(int* value, int attribute, int) {
  const Call call("cuDeviceGetAttribute");
  *value = attribute == 16 ? 4 : attribute == 75 ? 9 : 0;  // processors, compute capability 9.0
  return call.code;
}
int cuModuleLoadData(void** module, const void* image) {
  const Call call("cuModuleLoadData");
  if (call.code != 0 || call.context() == nullptr) return call.code != 0 ? call.code : kInvalidContext;
  if (std::memcmp(image,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return kInvalidImage;
  auto* const made = new Context*(call.context());
  call.world.modules.insert(made);
  *module = made;
  return 0;
}
int cuModuleUnload(void* module) {
  const Call call("cuModuleUnload");
  if (call.world.modules.erase(module) == 0) return kInvalidHandle;
  delete static_cast<Context**>(module);
  return call.code;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  const Call call("cuModuleGetFunction");
  if (call.code != 0) return call.code;
  if (!call.world.modules.contains(module)) return kInvalidHandle;
  *function = const_cast<HostKernel*>(find_kernel(name));
  return *function == nullptr ? kNotFound : 0;
}
int cuLaunchKernel(void* function, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned, unsigned,
                   void* stream, void** parameters, void**) {
  Call call("cuLaunchKernel");
  Stream* const found = call.stream(stream);
  if (found == nullptr) return call.code;
  if (grid == 0 || block == 0) return kInvalidValue;
  World& world = call.world;
  world.put(*found, {.work = [&world, grid, block, body = static_cast<HostKernel*>(function)->bind(parameters)] {
    if (world.broken != 0) return;
    try {
      run_kernel(body, grid, block,
                 [&world](std::uint64_t address, std::size_t bytes) { return world.behind(address, bytes); });
    } catch (const IllegalAddress&) {
      world.broken = kIllegalAddress;
    }
  }});
  return 0;
}
int cuIpcGetMemHandle(IpcHandle* handle, std::uint64_t address) {
  const Call call("cuIpcGetMemHandle");
  return call.code != 0 ? call.code : call.world.export_memory(address, *handle);
}
int cuIpcOpenMemHandle_v2(std::uint64_t* address, IpcHandle handle, unsigned) {
  const Call call("cuIpcOpenMemHandle_v2");
  if (call.code != 0 || call.context() == nullptr) return call.code != 0 ? call.code : kInvalidContext;
  return call.world.open_memory(handle, call.context()->device, *address);
}
int cuIpcCloseMemHandle(std::uint64_t address) {
  const Call call("cuIpcCloseMemHandle");
  const int code = call.world.close_memory(address);
  return call.code != 0 ? call.code : code;
}
int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned) {
  const Call call("cuMemHostRegister_v2");
  if (call.code == 0) call.world.registered[static_cast<std::byte*>(memory)] = {bytes, World::place_of(memory)};
  return call.code;
}
int cuMemHostUnregister(void* memory) {
  const Call call("cuMemHostUnregister");
  if (call.world.registered.erase(static_cast<std::byte*>(memory)) == 0) return kInvalidValue;
  return call.code;
}
int cuMemHostGetDevicePointer_v2(std::uint64_t* address, void* memory, unsigned) {
  const Call call("cuMemHostGetDevicePointer_v2");
  *address = reinterpret_cast<std::uint64_t>(memory) + kRegisteredShift;
  return call.code != 0 ? call.code : call.world.word_at(*address) == nullptr ? kInvalidValue : 0;
}
int cuStreamWaitValue32_v2(void* stream, std::uint64_t address, std::uint32_t value, unsigned) {
  return put_word("cuStreamWaitValue32_v2", stream, address, value, false);
}
int cuStreamWriteValue32_v2(void* stream, std::uint64_t address, std::uint32_t value, unsigned) {
  return put_word("cuStreamWriteValue32_v2", stream, address, value, true);
}
}
#pragma GCC visibility pop
