#include "world.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <utility>

namespace fake_cuda {
namespace {

constexpr std::size_t kAllBytes = kDeviceBytes * kMostDevices;

std::byte* map(int protection, int flags, int file) {
  void* const memory = ::mmap(nullptr, kAllBytes, protection, flags | MAP_NORESERVE, file, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(memory);
}

int make_file() {
  const int file = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(kAllBytes)) != 0) std::abort();
  return file;
}

}  // namespace

World& World::get() {
  static World* const world = new World;  // never destroyed: threads may use it until the process is gone
  return *world;
}

bool Task::ready() const {
  if (awaited != nullptr && !awaited->reached) return false;
  if (joint != nullptr && !joint->done) {
    const auto come = [](const std::shared_ptr<Moment>& arrival) { return arrival->reached; };
    if (joint->arrivals.size() < joint->streams) return false;
    return std::all_of(joint->arrivals.begin(), joint->arrivals.end(), come);
  }
  // Counters may wrap around, so which is ahead is told by the sign of the difference.
  return word == nullptr || reached != nullptr || static_cast<std::int32_t>(word->load() - value) >= 0;
}

World::World()
    : base_(map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1)),
      file_(make_file()),
      owner_(::getpid()),
      backing_(map(PROT_READ | PROT_WRITE, MAP_SHARED, file_)) {
  for (int i = 0; i < kMostDevices; ++i) contexts[i].device = default_streams[i].device = i;
}

void World::reset() {
  // A child of fork() has memory of its own.
  if (owner_ != ::getpid()) {
    owner_ = ::getpid();
    file_ = make_file();
    (void)::mmap(backing_, kAllBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_, 0);
    opened_.clear();
  }
  devices = 2;
  version = 12040;
  eager = false;
  clock_rate = 1.0;
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
  registered.clear();
  modules.clear();
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

FilePlace World::place_of(const void* host) {
  const auto address = reinterpret_cast<std::uint64_t>(host);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0, offset = 0, file = 0;
    const int read = std::sscanf(line.c_str(), "%llx-%llx %*s %llx %*s %llu", &begin, &end, &offset, &file);
    if (read == 4 && begin <= address && address < end && file != 0) return {file, offset + (address - begin)};
  }
  return {0, address};
}

std::atomic<std::uint32_t>* World::word_at(std::uint64_t address, FilePlace* place) const {
  auto* const host = reinterpret_cast<std::byte*>(address - kRegisteredShift);
  auto found = registered.upper_bound(host);
  if (found == registered.begin()) return nullptr;
  --found;
  const Registered& range = found->second;
  const auto offset = static_cast<std::size_t>(host - found->first);
  const bool inside = offset + sizeof(std::uint32_t) <= range.bytes;
  if (place != nullptr) *place = {range.place.file, range.place.offset + offset};
  return inside && address % 4 == 0 ? reinterpret_cast<std::atomic<std::uint32_t>*>(host) : nullptr;
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
  changed.notify_all();  // it may be what a stream waits for
}

double World::clock_ns() const {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return 7e12 + clock_rate * (static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec));
}

void World::put_joint(Stream& stream, const std::shared_ptr<Joint>& joint) {
  const auto arrival = std::make_shared<Moment>(&stream);
  joint->arrivals.push_back(arrival);
  stream.tasks.push_back({.reached = arrival});
  put(stream, {.joint = joint});
  changed.notify_all();
}

/// One step towards it: the caller looks again afterwards.
void World::meet(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Joint>& joint) {
  if (joint->arrivals.size() < joint->streams) {
    changed.wait(lock);
    return;
  }
  for (const std::shared_ptr<Moment>& arrival : joint->arrivals) {
    if (!arrival->reached) return reach(lock, std::shared_ptr<Moment>(arrival));
  }
  joint->done = true;
  joint->work();
  changed.notify_all();
}

void World::reach(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Moment>& moment) {
  while (!moment->reached) {
    Stream& stream = *moment->stream;
    const Task& next = stream.tasks.front();
    if (next.awaited != nullptr && !next.awaited->reached) {
      reach(lock, std::shared_ptr<Moment>(next.awaited));
      continue;  // another thread may have gone on with the stream meanwhile
    }
    if (next.joint != nullptr && !next.joint->done) {
      meet(lock, std::shared_ptr<Joint>(next.joint));
      continue;
    }
    if (!next.ready()) {
      await_word(lock, stream);
      continue;
    }
    if (next.gate && stream.open_gates == 0) {
      changed.wait(lock);
      continue;
    }
    run_first(stream);
  }
}

/// Does what somebody has put into a stream to write the word that the first task waits for; blocks for a while when
/// nobody has, or when that is in the way of itself: then it can only come from the host or another process.
void World::await_word(std::unique_lock<std::mutex>& lock, Stream& stream) {
  const FilePlace word = stream.tasks.front().place;
  const std::uint32_t value = stream.tasks.front().value;
  const auto writer_in = [&](Stream& other) -> std::shared_ptr<Moment> {
    if (other.stuck || &other == &stream) return nullptr;
    for (const Task& task : other.tasks) {
      const bool writes = task.word != nullptr && task.place == word && task.reached != nullptr;
      if (writes && static_cast<std::int32_t>(task.value - value) >= 0) return task.reached;
    }
    return nullptr;
  };
  std::shared_ptr<Moment> writer;
  for (Stream& other : default_streams) {
    if (writer == nullptr) writer = writer_in(other);
  }
  for (Stream* const other : streams) {
    if (writer == nullptr) writer = writer_in(*other);
  }
  stream.stuck = true;
  if (writer != nullptr) {
    reach(lock, writer);
  } else {
    changed.wait_for(lock, std::chrono::milliseconds(1));
  }
  stream.stuck = false;
}

void World::run_first(Stream& stream) {
  const Task task = std::move(stream.tasks.front());
  stream.tasks.pop_front();
  if (task.gate) --stream.open_gates;
  if (task.work) task.work();
  if (task.reached == nullptr) return;
  if (task.word != nullptr) task.word->store(task.value);
  task.reached->at_ns = clock_ns();
  task.reached->reached = true;
  if (task.word != nullptr) changed.notify_all();
}

/// As far as it goes without anybody; whether that was a step.
bool World::drain(Stream& stream) {
  bool moved = false;
  while (!stream.tasks.empty()) {
    const Task& next = stream.tasks.front();
    if (!next.ready() || (next.gate && stream.open_gates == 0)) return moved;
    if (next.joint != nullptr && !std::exchange(next.joint->done, true)) next.joint->work();
    run_first(stream);
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
