// NCCL's functions under their names, and those that direct it.
#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "communicators.h"
#include "device/elements.h"
#include "fake_nccl.h"

namespace fake_nccl {

Library& Library::get() {
  static Library* const library = new Library;  // never destroyed: as the world
  return *library;
}

void enter(Communicator& communicator) {
  Clique& clique = *communicator.clique;
  fake_cuda::World& world = fake_cuda::World::get();
  std::shared_ptr<Round>& round = clique.rounds[communicator.next_round++];
  if (round == nullptr) {
    round = std::make_shared<Round>();
    round->calls.resize(static_cast<std::size_t>(clique.ranks));
    round->joint = std::make_shared<fake_cuda::Joint>();
    round->joint->streams = static_cast<std::size_t>(clique.ranks) + (Library::get().hang ? 1 : 0);
    std::weak_ptr<Clique> shared = communicator.clique;
    std::weak_ptr<Round> own = round;
    round->joint->work = [shared, own] {
      if (const auto now = shared.lock()) perform(*now, *own.lock());
    };
  }
  fake_cuda::Stream* const stream = communicator.waiting.front().stream;
  round->calls[static_cast<std::size_t>(communicator.rank)] = std::move(communicator.waiting);
  communicator.waiting.clear();
  communicator.entered.emplace_back(stream, round->joint);
  world.put_joint(*stream, round->joint);
}

namespace {

using World = fake_cuda::World;

thread_local int t_depth = 0;
thread_local std::vector<std::pair<Communicator*, Call>> t_calls;

/// A call: counted, under the lock. `code` is its answer unless it is 0.
struct Entry {
  explicit Entry(const char* function) : lock(World::get().mutex), library(Library::get()) {
    ++library.calls[function];
    for (Failure& failure : library.failures) {
      if (failure.function == function && failure.calls_left-- == 0) code = failure.code;
    }
  }
  std::unique_lock<std::mutex> lock;
  Library& library;
  int code = kSuccess;
};

/// Calls that were made together: they wait in their communicators.
int hand_over(Library& library) {
  int code = kSuccess;
  for (auto& [communicator, call] : std::exchange(t_calls, {})) {
    if (!library.alive.contains(communicator)) {
      code = library.misuse();
    } else {
      communicator->asked = 0;
      communicator->waiting.push_back(call);
      code = std::max(code, kInProgress);
    }
  }
  return code == kSuccess ? kSuccess : code;
}

int make_call(const char* function, Communicator* communicator, Call call, void* stream) {
  Entry entry(function);
  if (entry.code != kSuccess) return entry.code;
  Library& library = entry.library;
  if (!library.alive.contains(communicator)) return library.misuse();
  Clique& clique = *communicator->clique;
  const bool connected = clique.come == clique.ranks && clique.error == kSuccess && !communicator->hangs;
  if (!connected || communicator->finalizing || !communicator->waiting.empty()) return library.misuse();
  call.stream = World::get().stream_at(stream, World::current());
  const std::size_t item = bytes_of(call.dtype);
  if (call.stream == nullptr) return kCudaFailed;
  if (item == 0 || call.peer < 0 || call.peer >= clique.ranks) return kInvalidArgument;
  if (call.op > 4 && !communicator->scaled_sums.contains(call.op)) return kInvalidArgument;
  if (call.op > 4 && communicator->scaled_sums.at(call.op).first != call.dtype) return kInvalidArgument;
  t_calls.emplace_back(communicator, call);
  return t_depth > 0 ? kSuccess : hand_over(library);
}

void abandon(Communicator& communicator) {
  for (const auto& [stream, joint] : communicator.entered) {
    if (joint->done) continue;
    joint->streams = SIZE_MAX;  // the other members wait until they give it up themselves
    for (fake_cuda::Task& task : stream->tasks) {
      if (task.joint == joint) task.joint = nullptr;
    }
  }
  communicator.clique->members[static_cast<std::size_t>(communicator.rank)] = nullptr;
  World::get().changed.notify_all();
}

std::uint64_t address(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

}  // namespace
}  // namespace fake_nccl

using fake_nccl::Call;
using fake_nccl::Communicator;
using fake_nccl::Entry;
using fake_nccl::Kind;
using fake_nccl::Library;
using fake_nccl::World;

struct UniqueId {
  std::array<char, 128> bytes;
};

#pragma GCC visibility push(default)
extern "C" {

void fake_nccl_reset() {
  const std::lock_guard lock(World::get().mutex);
  for (Communicator* const left : Library::get().alive) delete left;
  Library::get() = Library{};
}
void fake_nccl_set_version(int version) { Library::get().version = version; }
void fake_nccl_fail(const char* function, int index, int code) {
  const std::lock_guard lock(World::get().mutex);
  Library::get().failures.push_back({function, index, code});
}
void fake_nccl_break(int rank, int code) {
  const std::lock_guard lock(World::get().mutex);
  for (Communicator* const one : Library::get().alive) {
    if (one->rank == rank) one->error = code;
  }
}
void fake_nccl_hang() {
  const std::lock_guard lock(World::get().mutex);
  Library::get().hang = true;
}
int fake_nccl_calls(const char* function) {
  const std::lock_guard lock(World::get().mutex);
  return Library::get().calls[function];
}
int fake_nccl_misuses() {
  const std::lock_guard lock(World::get().mutex);
  return Library::get().misuses;
}
int fake_nccl_alive() {
  const std::lock_guard lock(World::get().mutex);
  return static_cast<int>(Library::get().alive.size());
}
int fake_nccl_aborted() {
  const std::lock_guard lock(World::get().mutex);
  return Library::get().aborted;
}

int ncclGetVersion(int* version) {
  const Entry entry("ncclGetVersion");
  *version = entry.library.version;
  return entry.code;
}
int ncclGetUniqueId(UniqueId* id) {
  const Entry entry("ncclGetUniqueId");
  *id = {};
  const std::uint64_t number = entry.library.next_id++;
  std::memcpy(id->bytes.data(), &number, sizeof number);
  entry.library.cliques[number] = std::make_shared<fake_nccl::Clique>();
  return entry.code;
}
int ncclCommInitRankConfig(Communicator** comm, int ranks, UniqueId id, int rank, const void* config) {
  const Entry entry("ncclCommInitRankConfig");
  *comm = nullptr;
  if (entry.code != 0) return entry.code;
  if (World::current() == nullptr) return fake_nccl::kCudaFailed;
  unsigned magic = 0;
  std::memcpy(&magic, static_cast<const std::byte*>(config) + sizeof(std::size_t), sizeof magic);
  std::uint64_t number = 0;
  std::memcpy(&number, id.bytes.data(), sizeof number);
  const auto found = entry.library.cliques.find(number);
  if (magic != 0xcafebeef || found == entry.library.cliques.end() || rank < 0 || rank >= ranks) {
    return fake_nccl::kInvalidArgument;
  }
  fake_nccl::Clique& clique = *found->second;
  clique.ranks = ranks;
  clique.members.resize(static_cast<std::size_t>(ranks));
  if (clique.members[static_cast<std::size_t>(rank)] != nullptr) return entry.library.misuse();
  if (!clique.devices.insert(World::current()->device).second) clique.error = entry.library.misuse();
  auto* const made = new Communicator;
  made->clique = found->second;
  made->rank = rank;
  made->hangs = entry.library.hang;
  clique.members[static_cast<std::size_t>(rank)] = made;
  ++clique.come;
  entry.library.alive.insert(made);
  *comm = made;
  return fake_nccl::kInProgress;
}
int ncclCommGetAsyncError(Communicator* comm, int* state) {
  const Entry entry("ncclCommGetAsyncError");
  if (!entry.library.alive.contains(comm)) return entry.library.misuse();
  const fake_nccl::Clique& clique = *comm->clique;
  *state = comm->error != 0 ? comm->error : clique.error;
  if (*state != 0) return entry.code;
  *state = fake_nccl::kInProgress;
  if (comm->hangs || clique.come < clique.ranks) return entry.code;
  if (!comm->waiting.empty()) {
    if (comm->asked++ == 0) return entry.code;
    fake_nccl::enter(*comm);
  }
  if (comm->finalizing) {
    World::get().drain_all();
    const auto done = [](const auto& item) { return item.second->done; };
    if (!std::all_of(comm->entered.begin(), comm->entered.end(), done)) return entry.code;
  }
  *state = 0;
  return entry.code;
}
int ncclCommFinalize(Communicator* comm) {
  const Entry entry("ncclCommFinalize");
  if (entry.code != 0) return entry.code;
  if (!entry.library.alive.contains(comm) || comm->finalizing) return entry.library.misuse();
  comm->finalizing = true;
  return fake_nccl::kInProgress;
}
int ncclCommDestroy(Communicator* comm) {
  const Entry entry("ncclCommDestroy");
  if (!entry.library.alive.contains(comm) || !comm->finalizing) return entry.library.misuse();
  entry.library.alive.erase(comm);
  comm->clique->members[static_cast<std::size_t>(comm->rank)] = nullptr;
  delete comm;
  return entry.code;
}
int ncclCommAbort(Communicator* comm) {
  const Entry entry("ncclCommAbort");
  if (entry.library.alive.erase(comm) == 0) return entry.library.misuse();
  ++entry.library.aborted;
  fake_nccl::abandon(*comm);
  delete comm;
  return entry.code;
}
const char* ncclGetErrorString(int code) { return code == 3 ? "internal error" : "an error of the fake"; }
const char* ncclGetLastError(Communicator*) { return "the fake was told so"; }
int ncclGroupStart() {
  ++fake_nccl::t_depth;
  return Entry("ncclGroupStart").code;
}
int ncclGroupEnd() {
  const Entry entry("ncclGroupEnd");
  if (fake_nccl::t_depth == 0) return entry.library.misuse();
  if (--fake_nccl::t_depth > 0) return entry.code;
  if (entry.code != 0) {
    fake_nccl::t_calls.clear();
    return entry.code;
  }
  return fake_nccl::hand_over(entry.library);
}
int ncclAllReduce(const void* in, void* out, std::size_t count, int dtype, int op, Communicator* comm, void* stream) {
  const Call call{Kind::kAllReduce, fake_nccl::address(in), fake_nccl::address(out), count, dtype, op};
  return fake_nccl::make_call("ncclAllReduce", comm, call, stream);
}
int ncclBroadcast(const void* in, void* out, std::size_t count, int dtype, int root, Communicator* comm, void* stream) {
  const Call call{Kind::kBroadcast, fake_nccl::address(in), fake_nccl::address(out), count, dtype, 0, root};
  return fake_nccl::make_call("ncclBroadcast", comm, call, stream);
}
int ncclReduce(const void* in, void* out, std::size_t count, int dtype, int op, int root, Communicator* comm,
               void* stream) {
  const Call call{Kind::kReduce, fake_nccl::address(in), fake_nccl::address(out), count, dtype, op, root};
  return fake_nccl::make_call("ncclReduce", comm, call, stream);
}
int ncclAllGather(const void* in, void* out, std::size_t count, int dtype, Communicator* comm, void* stream) {
  const Call call{Kind::kAllGather, fake_nccl::address(in), fake_nccl::address(out), count, dtype};
  return fake_nccl::make_call("ncclAllGather", comm, call, stream);
}
int ncclReduceScatter(const void* in, void* out, std::size_t count, int dtype, int op, Communicator* comm,
                      void* stream) {
  const Call call{Kind::kReduceScatter, fake_nccl::address(in), fake_nccl::address(out), count, dtype, op};
  return fake_nccl::make_call("ncclReduceScatter", comm, call, stream);
}
int ncclSend(const void* in, std::size_t count, int dtype, int peer, Communicator* comm, void* stream) {
  return fake_nccl::make_call("ncclSend", comm, {Kind::kSend, fake_nccl::address(in), 0, count, dtype, 0, peer},
                              stream);
}
int ncclRecv(void* out, std::size_t count, int dtype, int peer, Communicator* comm, void* stream) {
  return fake_nccl::make_call("ncclRecv", comm, {Kind::kRecv, 0, fake_nccl::address(out), count, dtype, 0, peer},
                              stream);
}
int ncclRedOpCreatePreMulSum(int* op, const void* scalar, int dtype, int residence, Communicator* comm) {
  const Entry entry("ncclRedOpCreatePreMulSum");
  if (entry.code != 0) return entry.code;
  if (!entry.library.alive.contains(comm)) return entry.library.misuse();
  if (residence != 1 || dtype < 6 || dtype > 9) return fake_nccl::kInvalidArgument;
  constexpr ringtune::DType kTypes[] = {ringtune::DType::kFloat16, ringtune::DType::kFloat32, ringtune::DType::kFloat64,
                                        ringtune::DType::kBfloat16};
  *op = 5 + static_cast<int>(comm->scaled_sums.size());
  comm->scaled_sums[*op] = {dtype,
                            ringtune::elements::as_double(kTypes[dtype - 6], static_cast<const std::byte*>(scalar))};
  return 0;
}
}
#pragma GCC visibility pop
