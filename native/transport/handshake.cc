#include "transport/handshake.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "transport/memory.h"

namespace ringtune {

Secret::Secret(std::string text) : text_(std::move(text)) {
  if (text_.empty()) throw InvalidArgument("a job of several ranks needs a secret");
}

Nonce fresh_nonce() {
  Nonce nonce;
  for (std::size_t at = 0; at < nonce.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t token = random_token();
    std::memcpy(nonce.data() + at, &token, sizeof(token));
  }
  return nonce;
}

Digest Handshake::proof(const Secret& secret, Side side, ByteView purpose) const {
  ByteWriter message;
  message.string("ringtune handshake 1");
  message.u8(static_cast<std::uint8_t>(side));
  message.blob(caller);
  message.blob(listener);
  message.blob(purpose);
  return hmac_sha256(secret.bytes(), message.bytes());
}

}  // namespace ringtune
