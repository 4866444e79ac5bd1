#include "transport/store_connection.h"

#include <utility>

#include "base/error.h"
#include "transport/tls.h"

namespace ringtune {
namespace {

std::string process_of(const StoreConnection& connection) {
  const std::string& host = connection.host;
  return "process " + std::to_string(connection.claim.pid) + (host.empty() ? "" : " at " + host);
}

}  // namespace

StoreConnection::StoreConnection(Fd socket)
    : host(peer_host(socket.get())), in(kStoreMaxFrameBytes, kMaxUnprovenBytes) {
  detect_silence(socket.get());
  fd =
      encrypt(std::move(socket), Side::kListener, "a client of the store" + (host.empty() ? "" : " at " + host), until);
}

void StoreConnection::wait(std::uint32_t request) {
  if (waiting) throw Protocol("a get before the answer to its last one");
  waiting = request;
}

void StoreConnection::keep_for_end(ByteReader& fields) {
  const std::string key = fields.string();
  const ByteView value = fields.blob();
  fields.expect_end();
  check_sentence(key.size() + value.size());
  at_end.emplace(key, Bytes(value.begin(), value.end()));
}

void StoreConnection::answer(std::uint32_t request, StoreStatus status, ByteView value) {
  if (waiting == request) waiting.reset();
  ByteWriter writer;
  writer.u32(request);
  writer.u8(static_cast<std::uint8_t>(status));
  writer.blob(value);
  out.push_frame(writer.bytes());
}

std::string clash_of(const StoreConnection& first, const StoreConnection& late) {
  if (!first.proven || !first.refusal.empty() || !first.claim.clashes(late.claim) || has_ended(first.fd.get()))
    return "";
  return "two processes claim to be rank " + std::to_string(late.claim.rank) + " of this job: " + process_of(first) +
         " came first, and " + process_of(late) +
         " is refused. Give each rank a number of its own (RANK, RINGTUNE_RANK or the launcher's)";
}

bool prove(StoreConnection& connection, const Secret& secret) {
  if (!connection.handshake) {
    if (!connection.greeted) {  // whoever speaks another protocol is turned away at its first word
      const std::optional<ByteView> magic = connection.in.take_raw(sizeof(kStoreMagic));
      if (!magic) return false;
      if (ByteReader(*magic).u32() != kStoreMagic) throw Protocol("it does not speak the protocol of the store");
      connection.greeted = true;
    }
    const std::optional<ByteView> hello = connection.in.take_raw(sizeof(Nonce) + StoreClaim::kBytes);
    if (!hello) return false;
    ByteReader reader(*hello);
    connection.handshake.emplace(Handshake{.listener = fresh_nonce()});
    reader.raw(connection.handshake->caller);
    connection.claim = StoreClaim::decode(hello->subspan(sizeof(Nonce)));
    ByteWriter challenge;
    challenge.u32(kStoreMagic);
    challenge.raw(connection.handshake->listener);
    challenge.raw(connection.handshake->proof(secret, Side::kListener, store_purpose(connection.claim)));
    connection.out.push_raw(challenge.bytes());
  }
  const std::optional<ByteView> proof = connection.in.take_raw(sizeof(Digest));
  if (!proof) return false;
  if (!connection.handshake->holds(secret, Side::kCaller, store_purpose(connection.claim), *proof)) {
    throw Protocol("it does not know the secret of this job");
  }
  connection.proven = true;
  connection.in.lift_limit(most_asked(connection.claim.role));
  return true;
}

}  // namespace ringtune
