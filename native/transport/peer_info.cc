#include "transport/peer_info.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <optional>

#include "base/error.h"

namespace ringtune {
namespace {

constexpr std::uint32_t kPeerInfoMagic = 0x41475452;  // "RTGA" on the wire
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

}  // namespace

void throw_waited_in_vain(const std::string& job, int rank, int size, const std::vector<int>& missing) {
  std::string ranks;
  for (const int one : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(one);
  throw Timeout("rank " + std::to_string(rank) + " waited in vain for " + (missing.size() == 1 ? "rank " : "ranks ") +
                ranks + " of " + std::to_string(size) + " (job '" + job +
                "'): did those processes start, and reach this point? RINGTUNE_START_TIMEOUT is the time to wait in "
                "seconds");
}

PeerInfo describe_process() {
  PeerInfo own;
  own.boot_id = read_line("/proc/sys/kernel/random/boot_id");
  own.pid_namespace = read_link("/proc/self/ns/pid");
  own.user = ::geteuid();
  own.cores = usable_cores();
  return own;
}

Bytes encode(const PeerInfo& peer_info) {
  ByteWriter writer;
  writer.u32(kPeerInfoMagic);
  writer.u32(kVersion);
  writer.i32(peer_info.rank);
  writer.string(peer_info.host);
  writer.string(peer_info.boot_id);
  writer.string(peer_info.pid_namespace);
  writer.u32(peer_info.user);
  writer.u8(static_cast<std::uint8_t>(peer_info.transport));
  writer.i32(peer_info.sockets);
  write_cores(writer, peer_info.cores);
  writer.i32(peer_info.waker.pid);
  writer.i32(peer_info.waker.memory_fd);
  writer.i32(peer_info.waker.doorbell_fd);
  writer.u64(peer_info.waker.token);
  writer.string(peer_info.address);
  writer.u32(peer_info.port);
  return writer.take();
}

PeerInfo decode_peer_info(ByteView bytes) {
  ByteReader reader(bytes);
  if (reader.u32() != kPeerInfoMagic) throw Protocol("a rank's peer info in the store is not one of ringtune");
  if (const std::uint32_t version = reader.u32(); version != kVersion) {
    throw Protocol("a rank's peer info has wire version " + std::to_string(version) + ", this one has " +
                   std::to_string(kVersion) + ": install the same ringtune on all hosts");
  }
  PeerInfo peer_info;
  peer_info.rank = reader.i32();
  peer_info.host = reader.string();
  peer_info.boot_id = reader.string();
  peer_info.pid_namespace = reader.string();
  peer_info.user = reader.u32();
  peer_info.transport = static_cast<TransportChoice>(reader.u8());
  peer_info.sockets = reader.i32();
  peer_info.cores = read_cores(reader);
  peer_info.waker.pid = reader.i32();
  peer_info.waker.memory_fd = reader.i32();
  peer_info.waker.doorbell_fd = reader.i32();
  peer_info.waker.token = reader.u64();
  peer_info.address = reader.string();
  peer_info.port = static_cast<std::uint16_t>(reader.u32());
  reader.expect_end();
  return peer_info;
}

std::string why_not_shared(const PeerInfo& a, const PeerInfo& b) {
  if (a.host != b.host) return "they run on hosts '" + a.host + "' and '" + b.host + "'";
  if (a.boot_id.empty() || b.boot_id.empty() || a.pid_namespace.empty() || b.pid_namespace.empty()) {
    return "/proc is not readable";
  }
  if (a.boot_id != b.boot_id) return "both call their host '" + a.host + "' but run on different machines";
  if (a.pid_namespace != b.pid_namespace) return "they run in different containers (pid namespaces)";
  if (a.user != b.user) return "they belong to different users";
  return "";
}

bool is_stopped(int pid) {
  std::string text;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
  const std::size_t name_ends = text.rfind(')');  // the name may hold brackets and spaces
  const std::string state = name_ends == std::string::npos ? "" : text.substr(name_ends + 1, 2);
  return state == " T" || state == " t";
}

std::string name_of(const PeerInfo& peer_info) {
  return "rank " + std::to_string(peer_info.rank) + " on host " + peer_info.host;
}

std::vector<PeerInfo> exchange_peer_infos(const FabricOptions& options, const PeerInfo& own, StoreClient& store,
                                          Deadline deadline) {
  store.set(store_key(options.job, options.rank), encode(own));
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.size; ++rank) keys.push_back(store_key(options.job, rank));
  std::vector<PeerInfo> all;
  std::vector<int> missing;
  // One request for all: the store gets as many requests as there are ranks, not pairs of ranks.
  for (const std::optional<Bytes>& found : store.get_all(keys, deadline)) {
    const int rank = static_cast<int>(all.size() + missing.size());
    if (!found) {
      missing.push_back(rank);
      continue;
    }
    all.push_back(decode_peer_info(*found));
    if (all.back().rank != rank) {
      throw Protocol("the peer info of rank " + std::to_string(rank) + " comes from rank " +
                     std::to_string(all.back().rank));
    }
  }
  if (!missing.empty()) throw_waited_in_vain(options.job, options.rank, options.size, missing);
  return all;
}

}  // namespace ringtune
