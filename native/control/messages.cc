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

void write_variants(ByteWriter& out, const std::vector<Variant>& variants) {
  write_list(out, variants, [&](const Variant& variant) {
    write_request(out, *variant.request);
    write_rank_set(out, variant.ranks);
  });
}

std::vector<Variant> read_variants(ByteReader& in) {
  constexpr std::size_t kLeastBytes = 65;
  return read_list(in, kLeastBytes, [&] {
    Variant variant;
    variant.request = std::make_shared<const Request>(read_request(in));
    variant.ranks = read_rank_set(in);
    return variant;
  });
}

void write_departure(ByteWriter& out, const Departure& departure) {
  out.i32(departure.rank);
  out.string(departure.who);
  out.string(departure.how);
  out.u8(departure.failed ? 1 : 0);
}

Departure read_departure(ByteReader& in) {
  Departure departure;
  departure.rank = in.i32();
  departure.who = in.string();
  departure.how = in.string();
  departure.failed = in.u8() != 0;
  return departure;
}

void write(ByteWriter& out, const WorkerNews& message) {
  out.u64(message.seen);
  out.u64(message.acknowledged);
  out.u8(message.waiting ? 1 : 0);
  write_rank_set(out, message.leaving);
  write_list(out, message.departures, [&](const Departure& departure) { write_departure(out, departure); });
  write_list(out, message.cached, [&](std::uint32_t id) { out.u32(id); });
  write_list(out, message.partial, [&](const PartialNews& news) {
    out.u32(news.cache_id);
    write_rank_set(out, news.ranks);
  });
  write_variants(out, message.requests);
  write_list(out, message.steps, [&](const StepTally& tally) {
    out.u32(tally.step);
    out.i64(tally.longest_ns);
    out.i32(tally.ranks);
  });
  out.u32(message.left_schedule);
  out.u64(message.schedule_rounds);
}

WorkerNews read_news(ByteReader& in) {
  WorkerNews message;
  message.seen = in.u64();
  message.acknowledged = in.u64();
  message.waiting = in.u8() != 0;
  message.leaving = read_rank_set(in);
  constexpr std::size_t kLeastBytes = 13;
  message.departures = read_list(in, kLeastBytes, [&] { return read_departure(in); });
  message.cached = read_list(in, 4, [&] { return in.u32(); });
  message.partial = read_list(in, 8, [&] {
    PartialNews news;
    news.cache_id = in.u32();
    news.ranks = read_rank_set(in);
    return news;
  });
  message.requests = read_variants(in);
  message.steps = read_list(in, 16, [&] {
    StepTally tally;
    tally.step = in.u32();
    tally.longest_ns = in.i64();
    tally.ranks = in.i32();
    return tally;
  });
  message.left_schedule = in.u32();
  message.schedule_rounds = in.u64();
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
            out.u32(batch.process_set);
            write_rank_set(out, batch.absent);
            write_variants(out, batch.templates);
          },
          [&](const FailureDecision& failure) {
            out.u8(static_cast<std::uint8_t>(failure.kind));
            out.string(failure.name);
            out.string(failure.message);
            out.u32(failure.process_set);
          },
          [&](const KnobsDecision& change) {
            out.u32(change.knobs_version);
            write_knobs(out, change.knobs);
          },
          [&](const EvictDecision& evict) { write_list(out, evict.cache_ids, [&](std::uint32_t id) { out.u32(id); }); },
          [&](const LeftDecision& left) { write_departure(out, left.departure); },
          [&](const AbortDecision& abort) { out.string(abort.message); },
          [&](const StallDecision& stall) {
            out.string(stall.name);
            out.u32(stall.process_set);
          },
          [&](const ScheduleDecision& schedule) {
            out.u32(schedule.schedule_id);
            out.u32(schedule.first_batch);
            write_list(out, schedule.batches, [&](const ScheduledBatch& batch) {
              out.u32(batch.process_set);
              write_list(out, batch.cache_ids, [&](std::uint32_t id) { out.u32(id); });
            });
          },
          [&](const PlanEndDecision& end) { out.u32(end.schedule_id); },
          [&](const SetDecision& change) {
            out.string(change.name);
            out.u8(change.added ? 1 : 0);
            out.u32(change.id);
            write_rank_set(out, change.members);
          },
          [&](const JoinDecision& join) { out.i32(join.last_rank); },
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
  batch.process_set = in.u32();
  batch.absent = read_rank_set(in);
  batch.templates = read_variants(in);
  return batch;
}

FailureDecision read_failure(ByteReader& in) {
  FailureDecision failure;
  const std::uint8_t kind = in.u8();
  if (kind > static_cast<std::uint8_t>(kLastFailureKind))
    throw Protocol("a control message holds the unknown failure kind " + std::to_string(kind));
  failure.kind = static_cast<FailureKind>(kind);
  failure.name = in.string();
  failure.message = in.string();
  failure.process_set = in.u32();
  return failure;
}

StallDecision read_stall(ByteReader& in) {
  StallDecision stall;
  stall.name = in.string();
  stall.process_set = in.u32();
  return stall;
}

ScheduleDecision read_schedule(ByteReader& in) {
  ScheduleDecision schedule;
  schedule.schedule_id = in.u32();
  schedule.first_batch = in.u32();
  schedule.batches = read_list(in, 8, [&] {
    ScheduledBatch batch;
    batch.process_set = in.u32();
    batch.cache_ids = read_list(in, 4, [&] { return in.u32(); });
    return batch;
  });
  return schedule;
}

SetDecision read_set(ByteReader& in) {
  SetDecision change;
  change.name = in.string();
  change.added = in.u8() != 0;
  change.id = in.u32();
  change.members = read_rank_set(in);
  return change;
}

Decision read_decision(ByteReader& in) {
  switch (const std::uint8_t type = in.u8()) {
    case 0:
      return read_batch(in);
    case 1:
      return read_failure(in);
    case 2: {
      KnobsDecision change;
      change.knobs_version = in.u32();
      change.knobs = read_knobs(in);
      return change;
    }
    case 3:
      return EvictDecision{read_list(in, 4, [&] { return in.u32(); })};
    case 4:
      return LeftDecision{read_departure(in)};
    case 5:
      return AbortDecision{in.string()};
    case 6:
      return read_stall(in);
    case 7:
      return read_schedule(in);
    case 8:
      return PlanEndDecision{in.u32()};
    case 9:
      return read_set(in);
    case 10:
      return JoinDecision{in.i32()};
    default:
      throw Protocol("a control message holds the unknown decision " + std::to_string(type));
  }
}

}  // namespace

Bytes encode(const ControlMessage& message) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(message.index()));
  std::visit(Overloaded{
                 [&](const WorkerNews& news) { write(out, news); },
                 [&](const Decisions& decisions) {
                   out.u64(decisions.sequence);
                   write_list(out, decisions.items, [&](const Decision& item) { write_decision(out, item); });
                 },
                 [&](const ClockPing& ping) {
                   out.i64(ping.worker_ns);
                   out.i64(ping.coordinator_ns);
                   out.i32(ping.rank);
                 },
                 [&](const WaitQuery& query) {
                   out.i32(query.rank);
                   out.u32(query.number);
                   out.string(query.name);
                   out.u32(query.process_set);
                   out.u8(query.answered ? 1 : 0);
                   write_rank_set(out, query.missing);
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
    message = read_news(in);
  } else if (type == 1) {
    Decisions decisions;
    decisions.sequence = in.u64();
    decisions.items = read_list(in, 2, [&] { return read_decision(in); });
    message = std::move(decisions);
  } else if (type == 2) {
    ClockPing ping;
    ping.worker_ns = in.i64();
    ping.coordinator_ns = in.i64();
    ping.rank = in.i32();
    message = ping;
  } else if (type == 3) {
    WaitQuery query;
    query.rank = in.i32();
    query.number = in.u32();
    query.name = in.string();
    query.process_set = in.u32();
    query.answered = in.u8() != 0;
    query.missing = read_rank_set(in);
    message = std::move(query);
  } else {
    throw Protocol("unknown control message " + std::to_string(type));
  }
  in.expect_end();
  return message;
}

}  // namespace ringtune
