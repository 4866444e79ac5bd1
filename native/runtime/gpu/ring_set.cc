#include "runtime/gpu/ring_set.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "collective/reducescatter.h"
#include "fusion/plan.h"
#include "runtime/bootstrap.h"
#include "runtime/rows.h"

namespace ringtune {
namespace {

// A segment is large enough that its launch costs little beside it, and small enough that ranks work side by side.
constexpr std::size_t kMostSegmentBytes = 4 << 20;
constexpr std::size_t kSegments = 8;  // of a buffer, at least

// The page of words begins with its owner's mark, and then has a cache line for each member. A line holds the word of
// the ring, and one that is not 0 once the member's stream has ended.
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kEndedAt = 4;

std::size_t words_bytes(int size) {
  const std::size_t bytes = kLineBytes * (static_cast<std::size_t>(size) + 1);
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

std::size_t segment_of(std::size_t buffer_bytes) {
  return std::clamp(buffer_bytes / kSegments / kLineBytes * kLineBytes, kLineBytes, kMostSegmentBytes);
}

}  // namespace

ProcessMark own_process() {
  static const std::uint64_t number = random_token();
  return {::getpid(), number};
}

DeviceRingSet::DeviceRingSet(const CudaDevice& device, DeviceKernels& kernels, const Seat& seat)
    : device_(device), seat_(seat), stream_(device), buffer_(device), kernels_(kernels), reduction_(device, kernels) {
  (void)buffer_.reserve(seat.buffer_bytes);
  if (seat.rank != 0) return;
  const std::size_t bytes = words_bytes(seat.size);
  words_fd_ = create_segment("ringtune-gpu-words", bytes);
  words_ = map_segment(words_fd_.get(), 0, bytes);
  const ProcessMark mark = own_process();
  std::memcpy(words_.data(), &mark, sizeof mark);
}

DeviceRingSet::~DeviceRingSet() = default;

RingOffer DeviceRingSet::offer() {
  RingOffer offer;
  offer.process = own_process();
  offer.device = device_.ordinal();
  offer.buffer = buffer_.address();
  offer.words = words_fd_ ? words_fd_.get() : -1;
  std::string unexported;
  if (const auto handle = export_memory(device_, buffer_.address(), unexported)) {
    offer.memory = *handle;
    offer.exported = 1;
  }
  write(offer.unexported, unexported);
  return offer;
}

/// Maps the page that the first member has made.
void DeviceRingSet::open_words(const RingOffer& first) {
  if (words_.data() != nullptr) return;
  const std::size_t bytes = words_bytes(seat_.size);
  const Fd fd = open_peer_fd(first.process.pid, first.words, O_RDWR | O_CLOEXEC);
  if (segment_bytes(fd.get()) != bytes) throw Error("the page of words of a ring is another one than was offered");
  words_ = map_segment(fd.get(), 0, bytes);
  ProcessMark mark;
  std::memcpy(&mark, words_.data(), sizeof mark);
  if (!(mark == first.process)) throw Error("the page of words of a ring is of another process than it was offered by");
}

void DeviceRingSet::connect(std::span<const RingOffer> offers) {
  const auto size = static_cast<std::size_t>(seat_.size);
  const auto rank = static_cast<std::size_t>(seat_.rank);
  const std::size_t before = (rank + size - 1) % size;
  open_words(offers.front());
  registered_ = std::make_unique<RegisteredMemory>(device_, std::span(words_.data(), words_.bytes()));
  const RingOffer& previous = offers[before];
  CudaAddress from = previous.buffer;
  if (!(previous.process == own_process())) {
    if (previous.exported == 0) throw DeviceError(previous.unexported.data());
    previous_ = std::make_unique<PeerMemory>(device_, previous.memory);
    from = previous_->address();
  } else if (previous.device != device_.ordinal()) {
    neighbour_ = std::make_unique<CudaDevice>(device_.driver(), previous.device);
    device_.reach(*neighbour_);
  }
  const auto word = [&](std::size_t position) { return registered_->word(kLineBytes * (position + 1)); };
  const DeviceRingPlace place{seat_.rank, seat_.size,   buffer_.address(),      from,
                              word(rank), word(before), word((rank + 1) % size)};
  ring_ = std::make_unique<DeviceRing>(device_, kernels_, place, stream_.handle(), segment_of(seat_.buffer_bytes));
}

std::atomic<std::uint32_t>& DeviceRingSet::ended_word(int position) const {
  const std::size_t line = kLineBytes * (static_cast<std::size_t>(position) + 1);
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(words_.data() + line + kEndedAt);
}

void DeviceRingSet::finish(Deadline deadline) {
  bool aborted = true;
  std::exception_ptr failure;
  try {
    aborted = ring_->finish(deadline);
  } catch (const DeviceError&) {
    failure = std::current_exception();
  }
  // Release, acquire: what the stream has read was read before the memory goes.
  ended_word(seat_.rank).store(1, std::memory_order_release);
  const std::atomic<std::uint32_t>& next = ended_word((seat_.rank + 1) % seat_.size);
  while (aborted && next.load(std::memory_order_acquire) == 0 && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (failure) std::rethrow_exception(failure);
}

void DeviceRingSet::allreduce(std::span<const OperationPtr> batch, const BatchTimes& times) {
  reduce(batch, times, std::nullopt);
}

void DeviceRingSet::reducescatter(OperationPtr operation, const BatchTimes& times) {
  const Request& request = operation->request();
  const std::vector<std::int64_t> rows = cut_rows(request.shape.front(), seat_.size);
  const std::size_t row = row_bytes_of(request) / size_of(request.dtype);
  Elements own{0, 0};
  for (int member = 0; member <= seat_.rank; ++member) {
    own.begin = own.end;
    own.end += static_cast<std::size_t>(rows[static_cast<std::size_t>(member)]) * row;
  }
  reduce({&operation, 1}, times, own);
}

void DeviceRingSet::reduce(std::span<const OperationPtr> batch, const BatchTimes& times, std::optional<Elements> kept) {
  PackedTarget target;
  target.buffer = buffer_.address();
  target.bytes = seat_.buffer_bytes;
  target.stream = stream_.handle();
  target.ranks = seat_.size;
  target.take = [this] { ring_->take_buffer(); };
  target.reduce = [this](std::size_t count, DType dtype, ReduceOp op) { ring_->allreduce(count, dtype, op); };
  reduction_.run(batch, target, times, kept);
}

/// In a round every member gives its share of the buffer.
void DeviceRingSet::allgather(const Operation& operation, std::span<const std::size_t> bytes, std::byte* gathered,
                              const BatchTimes& times) {
  const std::vector<std::vector<PackedPart>> rounds = cut_shares(bytes, seat_.buffer_bytes);
  if (rounds.empty()) return times.piece(Stage::kCommunicate, stream_.handle()).end();
  RoundTimes timed(times, stream_.handle());
  std::vector<std::size_t> blocks(bytes.size());
  for (const std::vector<PackedPart>& parts : rounds) {
    std::ranges::fill(blocks, 0);
    for (const PackedPart& part : parts) blocks[part.tensor] = fused_size(part.count);
    ring_->take_buffer();
    timed.pack([&] { give_own_part(operation, parts); });
    ring_->allgather(blocks);
    timed.unpack(&parts == &rounds.back(), [&] { take_parts(parts, bytes, gathered); });
  }
}

void DeviceRingSet::give_own_part(const Operation& operation, std::span<const PackedPart> parts) {
  const auto own = std::ranges::find(parts, static_cast<std::size_t>(seat_.rank), &PackedPart::tensor);
  if (own == parts.end()) return;
  const ScaledMove moves[] = {{{address_of(operation.input) + own->begin, buffer_.address() + own->at, own->count}}};
  reduction_.packer().move(moves, DType::kUint8, DType::kUint8, stream_.handle());
}

void DeviceRingSet::take_parts(std::span<const PackedPart> parts, std::span<const std::size_t> bytes,
                               std::byte* gathered) {
  std::vector<std::size_t> firsts(bytes.size());
  std::exclusive_scan(bytes.begin(), bytes.end(), firsts.begin(), std::size_t{0});
  std::vector<ScaledMove> moves;
  for (const PackedPart& part : parts) {
    const CudaAddress to = address_of(gathered) + firsts[part.tensor] + part.begin;
    moves.push_back({{buffer_.address() + part.at, to, part.count}});
  }
  reduction_.packer().move(moves, DType::kUint8, DType::kUint8, stream_.handle());
}

void DeviceRingSet::broadcast(const Operation& operation, int root) {
  const std::size_t bytes[] = {operation.prepared->bytes};
  const bool gives = root == seat_.rank;
  for (const PackedRound& round : cut_rounds(bytes, 1, seat_.buffer_bytes)) {
    const PackedPart& part = round.parts.front();
    const CudaAddress input = address_of(operation.input) + part.begin;
    const CudaAddress output = address_of(operation.output) + part.begin;
    const CudaAddress buffer = buffer_.address();
    ring_->take_buffer();
    const auto move = [&](CudaAddress from, CudaAddress to) {
      const ScaledMove moves[] = {{{from, to, part.count}}};
      reduction_.packer().move(moves, DType::kUint8, DType::kUint8, stream_.handle());
    };
    if (gives) move(input, buffer);
    ring_->broadcast(round.bytes, root);
    if (!gives || input != output) move(buffer, output);
  }
}

}  // namespace ringtune
