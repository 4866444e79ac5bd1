// What the fake driver knows. Guarded by one lock, which every function of the driver takes.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace fake_cuda {

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidImage = 200;
constexpr int kInvalidContext = 201;
constexpr int kMappingFailed = 205;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;
constexpr int kIllegalAddress = 700;

constexpr std::size_t kDeviceBytes = std::size_t{1} << 30;
constexpr int kMostDevices = 8;

struct Context {
  int device = 0;
  int retained = 0;
};

/// A moment in a stream.
struct Moment {
  struct Stream* stream = nullptr;
  bool reached = false;
  double at_ns = 0;  // on the device's clock
};

/// Work of several streams: done when each of them has come to it.
struct Joint {
  std::size_t streams = 0;                        // how many have a part in it
  std::vector<std::shared_ptr<Moment>> arrivals;  // of those that have it already
  std::function<void()> work;
  bool done = false;
};

/// Where memory really is, for such as is mapped from a file; else its address.
struct FilePlace {
  std::uint64_t file = 0;
  std::uint64_t offset = 0;
  friend bool operator==(const FilePlace&, const FilePlace&) = default;
};

struct Task {
  std::function<void()> work = {};            // empty: nothing
  std::shared_ptr<Moment> awaited = nullptr;  // null: nothing
  std::shared_ptr<Moment> reached = nullptr;  // null: nothing
  bool gate = false;
  std::atomic<std::uint32_t>* word = nullptr;  // null: none; waited for or, with `reached`, written
  FilePlace place = {};                        // of the word: it may be mapped at several addresses
  std::uint32_t value = 0;
  /// Nothing but a gate is in the way.
  [[nodiscard]] bool ready() const;
  std::shared_ptr<Joint> joint = nullptr;  // null: nothing
};

struct Stream {
  int device = 0;
  std::deque<Task> tasks;
  int open_gates = 0;
  bool capturing = false;
  bool stuck = false;  // somebody waits for a word of its first task
};

struct Event {
  int device = 0;
  bool timed = false;
  std::shared_ptr<Moment> last;
};

struct Registered {
  std::size_t bytes = 0;
  FilePlace place = {};
};

struct Failure {
  std::string function;
  int calls_left = 0;
  int code = 0;
};

/// As large as the driver's.
struct IpcHandle {
  pid_t process;
  int file;
  std::uint64_t offset;
  std::uint64_t bytes;
  char rest[40];
};
static_assert(sizeof(IpcHandle) == 64);

/// Addresses of registered host memory are so much higher on the device.
constexpr std::uint64_t kRegisteredShift = std::uint64_t{1} << 56;

class __attribute__((visibility("default"))) World {  // other fakes put work into its streams
 public:
  static World& get();

  std::mutex mutex;
  std::condition_variable changed;
  int devices = 2;
  int version = 12040;
  bool eager = false;
  double clock_rate = 1.0;  // seconds of the devices' clock in one of the host's
  int broken = 0;           // the code that every call gives from now on
  std::map<std::string, int> calls;
  std::vector<Failure> failures;
  Context contexts[kMostDevices];
  Stream default_streams[kMostDevices];
  std::set<Stream*> streams;
  std::set<Event*> events;
  std::map<std::uint64_t, std::size_t> memory;     // device address -> bytes
  std::map<const std::byte*, std::size_t> pinned;  // host address -> bytes
  std::map<std::byte*, Registered> registered;     // by host address
  std::set<void*> modules;

  void reset();
  /// Counts the call; a code other than 0 is its answer.
  int enter(const char* function);

  // Memory.
  [[nodiscard]] std::uint64_t allocate(int device, std::size_t bytes);
  [[nodiscard]] int device_of(std::uint64_t address) const;
  /// Where the bytes really are; null when they are not in one allocation.
  [[nodiscard]] std::byte* behind(std::uint64_t address, std::size_t bytes) const;
  [[nodiscard]] bool is_pinned(const void* host, std::size_t bytes) const;
  /// The word of registered memory at that address of the device; null when there is none.
  [[nodiscard]] std::atomic<std::uint32_t>* word_at(std::uint64_t address, FilePlace* place = nullptr) const;
  [[nodiscard]] static FilePlace place_of(const void* host);

  // Memory of other processes.
  [[nodiscard]] int export_memory(std::uint64_t address, IpcHandle& handle) const;
  [[nodiscard]] int open_memory(const IpcHandle& handle, int device, std::uint64_t& address);
  [[nodiscard]] int close_memory(std::uint64_t address);

  // Streams.
  [[nodiscard]] Stream* stream_at(void* handle, const Context* current);
  void put(Stream& stream, Task task);
  void put_joint(Stream& stream, const std::shared_ptr<Joint>& joint);
  /// The context that is current in this thread; null: none.
  [[nodiscard]] static Context* current();
  /// Blocks while a gate is in the way; lets go of the lock then.
  void reach(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Moment>& moment);
  void drain_all();
  /// Of the devices: it runs at its rate and began somewhere.
  [[nodiscard]] double clock_ns() const;

 private:
  World();
  bool drain(Stream& stream);
  void meet(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Joint>& joint);
  void run_first(Stream& stream);
  void await_word(std::unique_lock<std::mutex>& lock, Stream& stream);
  std::byte* base_ = nullptr;  // what the addresses of devices are in
  int file_ = -1;              // what the bytes behind them are in, for other processes
  pid_t owner_ = 0;
  std::map<std::uint64_t, std::pair<std::byte*, std::size_t>> opened_;  // other processes': address -> pages of it here
  std::byte* backing_ = nullptr;                                        // what is behind them
  std::size_t used_[kMostDevices] = {};
};

}  // namespace fake_cuda
