#include "control/messages.h"

#include "base/error.h"

namespace ringtune {
namespace {

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};

template <typename T, typename WriteOne>
void write_list(ByteWriter& out, const std::vector<T>& list, WriteOne write_one) {
  out.u32(static_cast<std::uint32_t>(list.size()));
  for (const T& item : list) write_one(item);
}

/// `minimum_bytes` = the least an item takes on the wire: bounds the count before anything is allocated.
template <typename ReadOne>
auto read_list(ByteReader& in, std::size_t minimum_bytes, ReadOne read_one) {
  const std::uint32_t count = in.u32();
  if (count > in.remaining() / minimum_bytes) throw Protocol("a control message promises more items than it holds");
  std::vector<decltype(read_one())> list;
  list.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) list.push_back(read_one());
  return list;
}

void write_knobs(ByteWriter& out, const Knobs& knobs) {
  out.u64(knobs.fusion_bytes);
  out.i64(knobs.cycle_time_ns);
  out.u64(knobs.segment_bytes);
  out.u32(knobs.cache_capacity);
  out.u32(knobs.algorithm);
  out.u32(knobs.hierarchical);
  out.u8(knobs.plan ? 1 : 0);
}

Knobs read_knobs(ByteReader& in) {
  Knobs knobs;
  knobs.fusion_bytes = in.u64();
  knobs.cycle_time_ns = in.i64();
  knobs.segment_bytes = in.u64();
  knobs.cache_capacity = in.u32();
  knobs.algorithm = in.u32();
  knobs.hierarchical = in.u32();
  knobs.plan = in.u8() != 0;
  return knobs;
}

void write(ByteWriter& out, const WorkerNews& message) {
  out.u64(message.seen);
  out.u8(static_cast<std::uint8_t>((message.waiting ? 1 : 0) | (message.leaving ? 2 : 0)));
  write_list(out, message.cached, [&](std::uint32_t id) { out.u32(id); });
  write_list(out, message.requests, [&](const Request& request) { write_request(out, request); });
  write_list(out, message.steps, [&](const StepReport& report) {
    out.u32(report.step);
    out.i64(report.duration_ns);
  });
  out.u32(message.left_plan);
  out.u64(message.plan_rounds);
}

WorkerNews read_announcement(ByteReader& in) {
  WorkerNews message;
  message.seen = in.u64();
  const std::uint8_t flags = in.u8();
  message.waiting = (flags & 1) != 0;
  message.leaving = (flags & 2) != 0;
  message.cached = read_list(in, 4, [&] { return in.u32(); });
  message.requests = read_list(in, 40, [&] { return read_request(in); });
  message.steps = read_list(in, 12, [&] {
    StepReport report;
    report.step = in.u32();
    report.duration_ns = in.i64();
    return report;
  });
  message.left_plan = in.u32();
  message.plan_rounds = in.u64();
  return message;
}

void write_decision(ByteWriter& out, const Decision& decision) {
  out.u8(static_cast<std::uint8_t>(decision.index()));
  std::visit(
      Overloaded{
          [&](const BatchDecision& batch) {
            out.u32(batch.batch_id);
            write_list(out, batch.tensors, [&](const TensorRef& tensor) {
              out.u32(tensor.cache_id);
              out.string(tensor.name);
            });
            write_list(out, batch.rows, [&](std::int64_t rows) { out.i64(rows); });
          },
          [&](const FailureDecision& failure) {
            out.u8(static_cast<std::uint8_t>(failure.kind));
            out.string(failure.name);
            out.string(failure.message);
          },
          [&](const KnobsDecision& change) {
            out.u32(change.epoch);
            write_knobs(out, change.knobs);
          },
          [&](const EvictDecision& evict) { write_list(out, evict.cache_ids, [&](std::uint32_t id) { out.u32(id); }); },
          [&](const LeftDecision& left) { out.i32(left.rank); },
          [&](const AbortDecision& abort) { out.string(abort.message); },
          [&](const StallDecision& stall) { out.string(stall.name); },
          [&](const PlanDecision& plan) {
            out.u32(plan.plan_id);
            write_list(out, plan.batches, [&](const std::vector<std::uint32_t>& batch) {
              write_list(out, batch, [&](std::uint32_t id) { out.u32(id); });
            });
          },
          [&](const PlanEndDecision& end) { out.u32(end.plan_id); },
      },
      decision);
}

BatchDecision read_batch(ByteReader& in) {
  BatchDecision batch;
  batch.batch_id = in.u32();
  batch.tensors = read_list(in, 8, [&] {
    TensorRef tensor;
    tensor.cache_id = in.u32();
    tensor.name = in.string();
    return tensor;
  });
  batch.rows = read_list(in, 8, [&] { return in.i64(); });
  return batch;
}

FailureDecision read_failure(ByteReader& in) {
  FailureDecision failure;
  const std::uint8_t kind = in.u8();
  if (kind > 1) throw Protocol("a control message holds the unknown failure kind " + std::to_string(kind));
  failure.kind = static_cast<FailureKind>(kind);
  failure.name = in.string();
  failure.message = in.string();
  return failure;
}

Decision read_decision(ByteReader& in) {
  switch (const std::uint8_t type = in.u8()) {
    case 0:
      return read_batch(in);
    case 1:
      return read_failure(in);
    case 2: {
      KnobsDecision change;
      change.epoch = in.u32();
      change.knobs = read_knobs(in);
      return change;
    }
    case 3:
      return EvictDecision{read_list(in, 4, [&] { return in.u32(); })};
    case 4:
      return LeftDecision{in.i32()};
    case 5:
      return AbortDecision{in.string()};
    case 6:
      return StallDecision{in.string()};
    case 7: {
      PlanDecision plan;
      plan.plan_id = in.u32();
      plan.batches = read_list(in, 4, [&] { return read_list(in, 4, [&] { return in.u32(); }); });
      return plan;
    }
    case 8:
      return PlanEndDecision{in.u32()};
    default:
      throw Protocol("a control message holds the unknown decision " + std::to_string(type));
  }
}

}  // namespace

Bytes encode(const ControlMessage& message) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(message.index()));
  std::visit(Overloaded{
                 [&](const WorkerNews& announcement) { write(out, announcement); },
                 [&](const Decisions& decisions) {
                   out.u64(decisions.sequence);
                   write_list(out, decisions.items, [&](const Decision& item) { write_decision(out, item); });
                 },
                 [&](const ClockPing& ping) {
                   out.i64(ping.worker_ns);
                   out.i64(ping.coordinator_ns);
                 },
             },
             message);
  return out.take();
}

ControlMessage decode(ByteView bytes) {
  ByteReader in(bytes);
  const std::uint8_t type = in.u8();
  ControlMessage message;
  if (type == 0) {
    message = read_announcement(in);
  } else if (type == 1) {
    Decisions decisions;
    decisions.sequence = in.u64();
    decisions.items = read_list(in, 2, [&] { return read_decision(in); });
    message = std::move(decisions);
  } else if (type == 2) {
    ClockPing ping;
    ping.worker_ns = in.i64();
    ping.coordinator_ns = in.i64();
    message = ping;
  } else {
    throw Protocol("unknown control message " + std::to_string(type));
  }
  in.expect_end();
  return message;
}

}  // namespace ringtune
