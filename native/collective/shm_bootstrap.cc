#include "collective/shm_bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/log.h"
#include "collective/collectives.h"
#include "transport/shared_waker.h"

namespace ringtune {
namespace {

bool shares_memory(const Fabric& fabric, const std::vector<int>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return fabric.share_memory(fabric.rank(), rank); });
}

/// Everyone's record, by position.
std::vector<Bytes> gather_records(const Group& ring, ByteView own) {
  const auto size = static_cast<std::size_t>(ring.size);
  Bytes all(own.size() * size);
  std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(own.size()) * ring.rank);
  ring_allgather(ring, all, std::vector<std::size_t>(size, own.size()), {});
  std::vector<Bytes> records;
  for (std::size_t member = 0; member < size; ++member) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(member * own.size());
    records.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(own.size()));
  }
  return records;
}

bool everyone_says_yes(const Group& ring, bool own) {
  const std::byte word{static_cast<unsigned char>(own ? 1 : 0)};
  const std::vector<Bytes> votes = gather_records(ring, ByteView(&word, 1));
  return std::all_of(votes.begin(), votes.end(), [](const Bytes& vote) { return vote.front() == std::byte{1}; });
}

std::optional<ShmRegion> make_region(bool usable, const ShmGroupOptions& options) {
  if (!usable) return std::nullopt;
  try {
    return ShmRegion::create(options.slot_bytes, options.slots);
  } catch (const Error& error) {
    log(LogLevel::kWarning, "no shared memory for collectives: ", error.what());
    return std::nullopt;
  }
}

}  // namespace

ShmGroupOptions default_shm_group() {
  ShmGroupOptions options;
  options.spin_ns = ShmGroupOptions::kAsCoresAllow;
  return options;
}

std::shared_ptr<ShmGroup> connect_shm_group(Fabric& fabric, const Group& ring, const std::vector<int>& ranks,
                                            ShmGroupOptions options) {
  if (ring.size == 1) return nullptr;
  std::optional<ShmRegion> own = make_region(shares_memory(fabric, ranks), options);
  ByteWriter record;
  record.i32(own ? 1 : 0);
  write_cores(record, usable_cores());
  record.i32(::getpid());
  record.i32(own ? own->fd() : -1);
  record.u64(own ? own->token() : 0);
  std::vector<ShmRegion> regions;
  std::vector<CoreSet> cores;
  bool all = true;
  const std::vector<Bytes> records = gather_records(ring, record.bytes());
  for (int member = 0; member < ring.size; ++member) {
    ByteReader reader(records[static_cast<std::size_t>(member)]);
    all = all && reader.i32() == 1;
    if (!all) break;
    cores.push_back(read_cores(reader));
    if (member == ring.rank) {
      regions.push_back(std::move(*own));
      continue;
    }
    const int pid = reader.i32();
    const int fd = reader.i32();
    try {
      regions.push_back(ShmRegion::attach(pid, fd, reader.u64()));
    } catch (const Error& error) {
      log(LogLevel::kWarning, "no shared memory for collectives with rank ", ranks[static_cast<std::size_t>(member)],
          ": ", error.what());
      all = false;
    }
  }
  // A second exchange: only when everyone has mapped everything may anyone use it (or close its descriptor).
  if (!everyone_says_yes(ring, all)) return nullptr;
  regions[static_cast<std::size_t>(ring.rank)].detach_fd();
  // By what all have published: how they wait decides how slots are used, so it must be the same for all of them.
  if (options.spin_ns == ShmGroupOptions::kAsCoresAllow) options.spin_ns = default_spin_ns(cores);
  auto shm_group = std::make_shared<ShmGroup>(ring.rank, std::move(regions), ranks, std::move(options));
  fabric.add_abortable(shm_group);
  return shm_group;
}

}  // namespace ringtune
