// What a round of calls comes to: in double, rank by rank, rounded once.
#include <algorithm>
#include <cstring>
#include <deque>

#include "communicators.h"
#include "device/elements.h"

namespace fake_nccl {
namespace {

using ringtune::DType;

DType type_of(int dtype) {
  constexpr DType kTypes[] = {DType::kInt8,  DType::kUint8,   DType::kInt32,   DType::kInt32,   DType::kInt64,
                              DType::kInt64, DType::kFloat16, DType::kFloat32, DType::kFloat64, DType::kBfloat16};
  return kTypes[dtype];
}

std::byte* memory_at(std::uint64_t address, std::size_t bytes) {
  return fake_cuda::World::get().behind(address, bytes);
}

using Bytes = std::vector<std::byte>;

Bytes read(std::uint64_t address, std::size_t bytes) {
  const std::byte* const memory = bytes == 0 ? nullptr : memory_at(address, bytes);
  if (memory == nullptr) {
    if (bytes > 0) fake_cuda::World::get().broken = fake_cuda::kIllegalAddress;
    return Bytes(bytes);
  }
  return {memory, memory + bytes};
}

void write(std::uint64_t address, const std::byte* bytes, std::size_t count) {
  if (count == 0) return;
  std::byte* const memory = memory_at(address, count);
  if (memory == nullptr) {
    fake_cuda::World::get().broken = fake_cuda::kIllegalAddress;
  } else {
    std::memcpy(memory, bytes, count);
  }
}

double combine(int op, double a, double b) {
  constexpr int kProduct = 1;
  constexpr int kMax = 2;
  constexpr int kMin = 3;
  if (op == kProduct) return a * b;
  if (op == kMax) return std::max(a, b);
  return op == kMin ? std::min(a, b) : a + b;
}

/// The reduction over the calls of all ranks at one place of their groups.
Bytes reduced(const Clique& clique, const std::vector<const Call*>& calls, std::size_t count) {
  constexpr int kAverage = 4;
  const Call& first = *calls.front();
  const std::size_t item = bytes_of(first.dtype);
  const DType dtype = type_of(first.dtype);
  std::vector<double> sum(count);
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const Bytes in = read(calls[rank]->in, count * item);
    double factor = 1.0;
    int op = calls[rank]->op;
    if (op > kAverage) {
      factor = clique.members[rank]->scaled_sums.at(op).second;
      op = 0;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const double value = ringtune::elements::as_double(dtype, in.data() + i * item) * factor;
      sum[i] = rank == 0 ? value : combine(op, sum[i], value);
    }
  }
  Bytes out(count * item);
  const double divisor = first.op == kAverage ? static_cast<double>(calls.size()) : 1.0;
  for (std::size_t i = 0; i < count; ++i) {
    ringtune::elements::from_double(dtype, out.data() + i * item, sum[i] / divisor);
  }
  return out;
}

/// All ranks at one place of their groups, which ask for the same.
void collective(const Clique& clique, const std::vector<const Call*>& calls) {
  const Call& first = *calls.front();
  const std::size_t bytes = first.count * bytes_of(first.dtype);
  const auto root = static_cast<std::size_t>(first.peer);
  if (first.kind == Kind::kBroadcast) {
    const Bytes data = read(calls[root]->in, bytes);
    for (const Call* const call : calls) write(call->out, data.data(), bytes);
  } else if (first.kind == Kind::kAllGather) {
    std::vector<Bytes> parts;  // all are read before one is written: an input may be part of an output
    for (const Call* const call : calls) parts.push_back(read(call->in, bytes));
    for (const Call* const call : calls) {
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        write(call->out + rank * bytes, parts[rank].data(), bytes);
      }
    }
  } else if (first.kind == Kind::kReduce) {
    const Bytes sum = reduced(clique, calls, first.count);
    write(calls[root]->out, sum.data(), bytes);
  } else if (first.kind == Kind::kReduceScatter) {
    const Bytes sum = reduced(clique, calls, first.count * calls.size());
    for (std::size_t rank = 0; rank < calls.size(); ++rank) {
      write(calls[rank]->out, sum.data() + rank * bytes, bytes);
    }
  } else {
    const Bytes sum = reduced(clique, calls, first.count);
    for (const Call* const call : calls) write(call->out, sum.data(), bytes);
  }
}

bool same(const Call& a, const Call& b) {
  const bool scaled = a.op > 4 && b.op > 4;  // numbers of one's own
  return a.kind == b.kind && a.count == b.count && a.dtype == b.dtype && (a.op == b.op || scaled) && a.peer == b.peer;
}

bool is_pair(Kind kind) { return kind == Kind::kSend || kind == Kind::kRecv; }

/// Sends and receives of a group. False when some have no partner of the same size.
bool exchange(const Round& round) {
  std::map<std::pair<int, int>, std::deque<Bytes>> sent;
  for (std::size_t rank = 0; rank < round.calls.size(); ++rank) {
    for (const Call& call : round.calls[rank]) {
      if (call.kind != Kind::kSend) continue;
      sent[{static_cast<int>(rank), call.peer}].push_back(read(call.in, call.count * bytes_of(call.dtype)));
    }
  }
  for (std::size_t rank = 0; rank < round.calls.size(); ++rank) {
    for (const Call& call : round.calls[rank]) {
      if (call.kind != Kind::kRecv) continue;
      std::deque<Bytes>& queue = sent[{call.peer, static_cast<int>(rank)}];
      if (queue.empty() || queue.front().size() != call.count * bytes_of(call.dtype)) return false;
      write(call.out, queue.front().data(), queue.front().size());
      queue.pop_front();
    }
  }
  return std::all_of(sent.begin(), sent.end(), [](const auto& item) { return item.second.empty(); });
}

}  // namespace

std::size_t bytes_of(int dtype) {
  constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return dtype < 0 || dtype >= static_cast<int>(std::size(kBytes)) ? 0 : kBytes[dtype];
}

void perform(Clique& clique, const Round& round) {
  const auto refuse = [&] { clique.error = Library::get().misuse(); };
  std::vector<std::vector<const Call*>> collectives;  // by rank
  for (const std::vector<Call>& calls : round.calls) {
    std::vector<const Call*>& own = collectives.emplace_back();
    for (const Call& call : calls) {
      if (!is_pair(call.kind)) own.push_back(&call);
    }
  }
  for (std::size_t place = 0; place < collectives.front().size(); ++place) {
    std::vector<const Call*> calls;
    for (const std::vector<const Call*>& own : collectives) {
      if (own.size() != collectives.front().size() || !same(*own[place], *collectives.front()[place])) return refuse();
      calls.push_back(own[place]);
    }
    collective(clique, calls);
  }
  if (!exchange(round)) refuse();
}

}  // namespace fake_nccl
