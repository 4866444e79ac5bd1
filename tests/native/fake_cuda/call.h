// One call of the driver.
#pragma once

#include <mutex>
#include <vector>

#include "world.h"

namespace fake_cuda {

inline thread_local std::vector<Context*> t_contexts;

/// Counted, under the lock.
struct Call {
  explicit Call(const char* function) : world(World::get()), lock(world.mutex), code(world.enter(function)) {}
  [[nodiscard]] Context* context() const { return t_contexts.empty() ? nullptr : t_contexts.back(); }
  /// Null, and the code set, when there is no such stream here.
  [[nodiscard]] Stream* stream(void* handle) {
    if (context() == nullptr) code = kInvalidContext;
    Stream* const found = world.stream_at(handle, context());
    if (found == nullptr && code == 0) code = kInvalidHandle;
    return code == 0 ? found : nullptr;
  }
  World& world;
  std::unique_lock<std::mutex> lock;
  int code;
};

}  // namespace fake_cuda
