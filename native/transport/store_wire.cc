#include "transport/store_wire.h"

#include <unistd.h>

#include <span>

#include "base/error.h"
#include "transport/memory.h"

namespace ringtune {

StoreClaim StoreClaim::of(const StoreIdentity& who) {
  static const auto process = static_cast<std::uint32_t>(random_token());
  const Digest job = Sha256().add(std::as_bytes(std::span(who.job))).finish();
  // The number is asked for each time: a forked child is another process.
  return {who.role, who.rank, job, static_cast<std::uint32_t>(::getpid()), process};
}

Bytes StoreClaim::encode() const {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(role));
  out.i32(rank);
  out.raw(job);
  out.u32(pid);
  out.u32(process);
  return out.take();
}

StoreClaim StoreClaim::decode(ByteView bytes) {
  ByteReader in(bytes);
  StoreClaim claim;
  claim.role = static_cast<StoreRole>(in.u8());
  claim.rank = in.i32();
  in.raw(claim.job);
  claim.pid = in.u32();
  claim.process = in.u32();
  return claim;
}

Bytes store_purpose(const StoreClaim& claim) {
  ByteWriter out;
  out.string("store");
  out.raw(claim.encode());
  return out.take();
}

void check_sentence(std::size_t bytes) {
  if (bytes <= kMaxSentenceBytes) return;
  throw Protocol("a sentence of " + std::to_string(bytes) + " bytes; the limit is " +
                 std::to_string(kMaxSentenceBytes));
}

}  // namespace ringtune
