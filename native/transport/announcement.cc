#include "transport/announcement.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <optional>

#include "base/error.h"

namespace ringtune {
namespace {

constexpr std::uint32_t kMagic = 0x41475452;  // "RTGA" on the wire
constexpr std::uint32_t kVersion = 4;

std::string read_line(const char* path) {
  std::string line;
  std::ifstream(path) >> line;
  return line;
}

std::string read_link(const char* path) {
  std::array<char, 256> text;
  const ssize_t length = ::readlink(path, text.data(), text.size());
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : std::string();
}

std::string store_key(const std::string& job, int rank) { return job + "/rank/" + std::to_string(rank); }

[[noreturn]] void throw_missing(const FabricOptions& options, const std::vector<int>& missing) {
  std::string ranks;
  for (const int rank : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  throw Timeout("rank " + std::to_string(options.rank) + " waited in vain for " +
                (missing.size() == 1 ? "rank " : "ranks ") + ranks + " of " + std::to_string(options.size) + " (job '" +
                options.job +
                "'): did those processes start, and reach this point? RINGTUNE_START_TIMEOUT is the time "
                "to wait in seconds");
}

}  // namespace

Announcement describe_process() {
  Announcement own;
  own.boot_id = read_line("/proc/sys/kernel/random/boot_id");
  own.pid_namespace = read_link("/proc/self/ns/pid");
  own.user = ::geteuid();
  own.cores = usable_cores();
  return own;
}

Bytes encode(const Announcement& announcement) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u32(kVersion);
  writer.i32(announcement.rank);
  writer.string(announcement.host);
  writer.string(announcement.boot_id);
  writer.string(announcement.pid_namespace);
  writer.u32(announcement.user);
  writer.u8(static_cast<std::uint8_t>(announcement.transport));
  writer.i32(announcement.sockets);
  write_cores(writer, announcement.cores);
  writer.i32(announcement.waker.pid);
  writer.i32(announcement.waker.memory_fd);
  writer.i32(announcement.waker.doorbell_fd);
  writer.u64(announcement.waker.token);
  writer.string(announcement.address);
  writer.u32(announcement.port);
  return writer.take();
}

Announcement decode_announcement(ByteView bytes) {
  ByteReader reader(bytes);
  if (reader.u32() != kMagic) throw Protocol("a rank's announcement in the store is not one of ringtune");
  if (const std::uint32_t version = reader.u32(); version != kVersion) {
    throw Protocol("a rank announces itself with wire version " + std::to_string(version) + ", this one has " +
                   std::to_string(kVersion) + ": install the same ringtune on all hosts");
  }
  Announcement announcement;
  announcement.rank = reader.i32();
  announcement.host = reader.string();
  announcement.boot_id = reader.string();
  announcement.pid_namespace = reader.string();
  announcement.user = reader.u32();
  announcement.transport = static_cast<TransportChoice>(reader.u8());
  announcement.sockets = reader.i32();
  announcement.cores = read_cores(reader);
  announcement.waker.pid = reader.i32();
  announcement.waker.memory_fd = reader.i32();
  announcement.waker.doorbell_fd = reader.i32();
  announcement.waker.token = reader.u64();
  announcement.address = reader.string();
  announcement.port = static_cast<std::uint16_t>(reader.u32());
  reader.expect_end();
  return announcement;
}

std::string why_not_shared(const Announcement& a, const Announcement& b) {
  if (a.host != b.host) return "they run on hosts '" + a.host + "' and '" + b.host + "'";
  if (a.boot_id.empty() || b.boot_id.empty() || a.pid_namespace.empty() || b.pid_namespace.empty()) {
    return "/proc is not readable";
  }
  if (a.boot_id != b.boot_id) return "both call their host '" + a.host + "' but run on different machines";
  if (a.pid_namespace != b.pid_namespace) return "they run in different containers (pid namespaces)";
  if (a.user != b.user) return "they belong to different users";
  return "";
}

std::string name_of(const Announcement& announcement) {
  return "rank " + std::to_string(announcement.rank) + " on host " + announcement.host;
}

std::vector<Announcement> exchange_announcements(const FabricOptions& options, const Announcement& own,
                                                 StoreClient& store, Deadline deadline) {
  store.set(store_key(options.job, options.rank), encode(own));
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.size; ++rank) keys.push_back(store_key(options.job, rank));
  std::vector<Announcement> all;
  std::vector<int> missing;
  // One request for all: the store hears as many as there are ranks, not pairs of ranks.
  for (const std::optional<Bytes>& found : store.get_all(keys, deadline)) {
    const int rank = static_cast<int>(all.size() + missing.size());
    if (!found) {
      missing.push_back(rank);
      continue;
    }
    all.push_back(decode_announcement(*found));
    if (all.back().rank != rank) {
      throw Protocol("the announcement of rank " + std::to_string(rank) + " comes from rank " +
                     std::to_string(all.back().rank));
    }
  }
  if (!missing.empty()) throw_missing(options, missing);
  return all;
}

}  // namespace ringtune
