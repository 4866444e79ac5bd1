#include "world.h"

#include <sys/mman.h>

#include <cstdlib>

namespace fake_cuda {
namespace {

std::byte* map(int protection) {
  void* const memory =
      ::mmap(nullptr, kDeviceBytes * kMostDevices, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(memory);
}

}  // namespace

World& World::get() {
  static World* const world = new World;  // never destroyed: threads may use it until the process is gone
  return *world;
}

World::World() : base_(map(PROT_NONE)), backing_(map(PROT_READ | PROT_WRITE)) {
  for (int i = 0; i < kMostDevices; ++i) contexts[i].device = default_streams[i].device = i;
}

void World::reset() {
  devices = 2;
  version = 12040;
  eager = false;
  broken = 0;
  calls.clear();
  failures.clear();
  for (int i = 0; i < kMostDevices; ++i) {
    default_streams[i] = Stream{};
    default_streams[i].device = i;
    contexts[i].retained = 0;
    used_[i] = 0;
  }
  for (Stream* const stream : streams) delete stream;
  for (Event* const event : events) delete event;
  for (const auto& [host, bytes] : pinned) std::free(const_cast<std::byte*>(host));
  streams.clear();
  events.clear();
  memory.clear();
  pinned.clear();
}

int World::enter(const char* function) {
  ++calls[function];
  if (broken != 0) return broken;
  for (Failure& failure : failures) {
    if (failure.function == function && failure.calls_left-- == 0) return failure.code;
  }
  return 0;
}

std::uint64_t World::allocate(int device, std::size_t bytes) {
  std::size_t& used = used_[device];
  if (used + bytes > kDeviceBytes) return 0;
  const auto address = reinterpret_cast<std::uint64_t>(base_ + static_cast<std::size_t>(device) * kDeviceBytes + used);
  used += (bytes + 511) / 256 * 256;  // something is always between two allocations
  memory[address] = bytes;
  return address;
}

int World::device_of(std::uint64_t address) const {
  const auto base = reinterpret_cast<std::uint64_t>(base_);
  if (address < base || address >= base + kDeviceBytes * kMostDevices) return -1;
  return static_cast<int>((address - base) / kDeviceBytes);
}

std::byte* World::behind(std::uint64_t address, std::size_t bytes) const {
  auto found = memory.upper_bound(address);
  if (found == memory.begin()) return nullptr;
  --found;
  if (address + bytes > found->first + found->second) return nullptr;
  return backing_ + (address - reinterpret_cast<std::uint64_t>(base_));
}

bool World::is_pinned(const void* host, std::size_t bytes) const {
  const auto* const address = static_cast<const std::byte*>(host);
  auto found = pinned.upper_bound(address);
  if (found == pinned.begin()) return false;
  --found;
  return address + bytes <= found->first + found->second;
}

Stream* World::stream_at(void* handle, const Context* current) {
  if (current == nullptr) return nullptr;
  if (reinterpret_cast<std::uintptr_t>(handle) <= 1) return &default_streams[current->device];
  auto* const stream = static_cast<Stream*>(handle);
  return streams.contains(stream) ? stream : nullptr;
}

void World::put(Stream& stream, Task task) {
  stream.tasks.push_back(std::move(task));
  if (eager) drain_all();
}

void World::reach(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Moment>& moment) {
  while (!moment->reached) {
    Stream& stream = *moment->stream;
    Task& next = stream.tasks.front();
    if (next.awaited != nullptr && !next.awaited->reached) {
      reach(lock, std::shared_ptr<Moment>(next.awaited));
      continue;  // another thread may have gone on with the stream meanwhile
    }
    if (next.gate && stream.open_gates == 0) {
      changed.wait(lock);
      continue;
    }
    if (next.gate) --stream.open_gates;
    const Task task = std::move(next);
    stream.tasks.pop_front();
    if (task.work) task.work();
    if (task.reached != nullptr) task.reached->reached = true;
  }
}

/// As far as it goes without anybody; whether that was a step.
bool World::drain(Stream& stream) {
  bool moved = false;
  while (!stream.tasks.empty()) {
    Task& next = stream.tasks.front();
    if ((next.awaited != nullptr && !next.awaited->reached) || (next.gate && stream.open_gates == 0)) return moved;
    if (next.gate) --stream.open_gates;
    const Task task = std::move(next);
    stream.tasks.pop_front();
    if (task.work) task.work();
    if (task.reached != nullptr) task.reached->reached = true;
    moved = true;
  }
  return moved;
}

void World::drain_all() {
  bool moved = true;
  while (moved) {
    moved = false;
    for (Stream& stream : default_streams) moved = drain(stream) || moved;
    for (Stream* const stream : streams) moved = drain(*stream) || moved;
  }
}

}  // namespace fake_cuda
