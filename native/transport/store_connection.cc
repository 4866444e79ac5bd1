#include "transport/store_connection.h"

#include "base/error.h"

namespace ringtune {

bool prove(StoreConnection& connection, const Secret& secret) {
  if (!connection.handshake) {
    if (!connection.greeted) {  // whoever speaks another protocol is turned away at its first word
      const std::optional<ByteView> magic = connection.in.take_raw(sizeof(kStoreMagic));
      if (!magic) return false;
      if (ByteReader(*magic).u32() != kStoreMagic) throw Protocol("it does not speak the protocol of the store");
      connection.greeted = true;
    }
    const std::optional<ByteView> nonce = connection.in.take_raw(sizeof(Nonce));
    if (!nonce) return false;
    ByteReader reader(*nonce);
    connection.handshake.emplace(Handshake{.listener = fresh_nonce()});
    reader.raw(connection.handshake->caller);
    ByteWriter challenge;
    challenge.u32(kStoreMagic);
    challenge.raw(connection.handshake->listener);
    challenge.raw(connection.handshake->proof(secret, Side::kListener, store_purpose()));
    connection.out.push_raw(challenge.bytes());
  }
  const std::optional<ByteView> proof = connection.in.take_raw(sizeof(Digest));
  if (!proof) return false;
  if (!connection.handshake->holds(secret, Side::kCaller, store_purpose(), *proof)) {
    throw Protocol("it does not know the secret of this job");
  }
  connection.proven = true;
  return true;
}

}  // namespace ringtune
