#include "collective/exchange.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "collective/progress.h"

namespace ringtune {
namespace {

struct Sending {
  Link* link;
  std::span<const std::byte> rest;
};

struct Receiving {
  Link* link;
  std::span<std::byte> rest;
};

bool send_some(Sending& sending) {
  if (sending.rest.empty()) return false;
  const std::size_t sent = sending.link->try_send(sending.rest);
  sending.rest = sending.rest.subspan(sent);
  return sent > 0;
}

bool receive_some(Receiving& receiving) {
  if (receiving.rest.empty()) return false;
  const std::size_t received = receiving.link->try_receive(receiving.rest);
  receiving.rest = receiving.rest.subspan(received);
  return received > 0;
}

[[noreturn]] void throw_timeout(std::span<const Sending> sends, std::span<const Receiving> receives,
                                std::int64_t idle_timeout_ns, std::string_view what) {
  std::ostringstream out;
  out << what << ": no byte moved for " << static_cast<double>(idle_timeout_ns) * 1e-9 << " s while waiting for";
  const char* separator = " ";
  for (const Receiving& receiving : receives) {
    if (receiving.rest.empty()) continue;
    out << separator << "rank " << receiving.link->peer() << " to send";
    separator = " and ";
  }
  for (const Sending& sending : sends) {
    if (sending.rest.empty()) continue;
    out << separator << "rank " << sending.link->peer() << " to receive";
    separator = " and ";
  }
  out << "; is that process stopped, or the network down?";
  throw Timeout(out.str());
}

}  // namespace

void exchange(Mesh& mesh, std::span<const OutgoingParcel> outgoing, std::span<const IncomingParcel> incoming,
              std::string_view what) {
  std::vector<int> peers;
  for (const OutgoingParcel& parcel : outgoing) peers.push_back(parcel.peer);
  for (const IncomingParcel& parcel : incoming) peers.push_back(parcel.peer);
  mesh.prepare(peers);
  std::vector<Sending> sends;
  std::vector<Receiving> receives;
  for (const OutgoingParcel& parcel : outgoing) sends.push_back({&mesh.link(parcel.peer), parcel.bytes});
  for (const IncomingParcel& parcel : incoming) receives.push_back({&mesh.link(parcel.peer), parcel.bytes});
  const auto done = [](const auto& transfer) { return transfer.rest.empty(); };
  advance_until(
      mesh.waker(), mesh.idle_timeout_ns(),
      [&] {
        return std::all_of(sends.begin(), sends.end(), done) && std::all_of(receives.begin(), receives.end(), done);
      },
      [&] {
        bool moved = false;
        for (Sending& sending : sends) moved = send_some(sending) || moved;
        for (Receiving& receiving : receives) moved = receive_some(receiving) || moved;
        return moved;
      },
      [&] { throw_timeout(sends, receives, mesh.idle_timeout_ns(), what); });
}

}  // namespace ringtune
