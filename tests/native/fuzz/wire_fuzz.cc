// What peers send, taken apart: whatever the bytes are, the answer is a value or Protocol. The first byte chooses what
// reads the rest. Links with libFuzzer, or with mutate.cc, which needs nothing but the compiler.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "control/aggregator.h"
#include "control/coordinator.h"
#include "control/messages.h"
#include "transport/peer_info.h"
#include "transport/wire.h"

namespace ringtune {
namespace {

void require(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "wire fuzz: %s\n", what);
  std::abort();
}

/// A message that was understood is written as the same bytes every time.
void read_message(ByteView bytes) {
  const Bytes written = encode(decode(bytes));
  require(encode(decode(written)) == written, "a control message changes when it is written and read again");
}

void read_peer_info(ByteView bytes) {
  const Bytes written = encode(decode_peer_info(bytes));
  require(encode(decode_peer_info(written)) == written, "a peer info changes when it is written and read again");
}

/// A coordinator reads messages of three ranks: frames of {u8 rank, blob}.
void negotiate(ByteView bytes) {
  Coordinator coordinator({.size = 4, .fan_out = 3, .knobs = {}, .stall = {}, .schedules = true});
  ByteReader in(bytes);
  std::vector<Action> actions;
  for (std::int64_t now_ns = 0; in.remaining() > 0; now_ns += 1'000'000'000) {
    const int from = in.u8() % 4;
    const ControlMessage message = decode(in.blob());
    const auto* news = std::get_if<WorkerNews>(&message);
    if (news == nullptr) throw Protocol("not from a worker");
    coordinator.announced(from, *news, now_ns);
    coordinator.tick(now_ns, actions);
    if (const auto decisions = coordinator.take_decisions()) (void)encode(*decisions);
    coordinator.validate_state();
  }
}

/// The same messages, but ranks 2 and 3 send through rank 1, which says to the coordinator what it has gathered.
void gather(ByteView bytes) {
  const TreePlace place{0, RankSet::range(1, 4), {{2, RankSet::one(2)}, {3, RankSet::one(3)}}};
  Aggregator aggregator(1, place);
  Coordinator coordinator({.size = 4, .fan_out = 1, .knobs = {}, .stall = {}, .schedules = true});
  ByteReader in(bytes);
  for (std::int64_t now_ns = 0; in.remaining() > 0; now_ns += Aggregator::kHoldNs / 3) {
    const int from = in.u8() % 4;
    const ControlMessage message = decode(in.blob());
    const auto* news = std::get_if<WorkerNews>(&message);
    if (news == nullptr) throw Protocol("not from a worker");
    if (from == 0) {
      coordinator.announced(0, *news, now_ns);
    } else {
      aggregator.announced(from, *news, now_ns);
    }
    if (const auto merged = aggregator.take(now_ns)) coordinator.announced(1, *merged, now_ns);
    aggregator.validate_state();
    if (const auto decisions = coordinator.take_decisions()) aggregator.decided(*decisions);
    aggregator.validate_state();
    coordinator.validate_state();
    require(aggregator.next_wake_ns() > 0 || aggregator.take(now_ns).has_value(), "news are due but there are none");
  }
}

/// The stream of a socket, cut into frames, as the store and the monitor read it.
void cut_frames(ByteView bytes) {
  FrameAssembler frames(1 << 16);
  while (!bytes.empty()) {
    const std::span<std::byte> space = frames.space();
    const std::size_t count = std::min(space.size(), bytes.size());
    std::copy_n(bytes.begin(), count, space.begin());
    frames.filled(count);
    bytes = bytes.subspan(count);
    while (const auto frame = frames.next()) {
      ByteReader request(*frame);
      (void)request.u8();
      (void)request.u32();
      (void)request.string();
      (void)request.blob();
    }
  }
}

}  // namespace
}  // namespace ringtune

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using Reader = void (*)(ringtune::ByteView);
  constexpr Reader kReaders[] = {ringtune::read_message, ringtune::negotiate, ringtune::read_peer_info,
                                 ringtune::cut_frames, ringtune::gather};
  if (size == 0) return 0;
  try {
    kReaders[data[0] % std::size(kReaders)](std::as_bytes(std::span(data + 1, size - 1)));
  } catch (const ringtune::Protocol&) {  // what a peer that sends nonsense must come to; anything else is a bug
  }
  return 0;
}
