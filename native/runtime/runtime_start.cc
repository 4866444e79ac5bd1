// How a rank joins its job: the store, the links to its peers, what all ranks agree on.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "runtime/runtime.h"
#include "runtime/runtime_impl.h"
#include "transport/peer_info.h"

namespace ringtune {
namespace {

constexpr std::int64_t kWordNs = 1'000'000'000;  // a rank says why it fails much sooner

std::unique_ptr<StoreClient> connect_store(const RuntimeOptions& options, Deadline deadline) {
  if (options.size == 1) return nullptr;
  const StoreIdentity who{StoreRole::kRank, options.rank, options.job};
  return std::make_unique<StoreClient>(options.store_host, options.store_port, Secret(options.secret), deadline, who);
}

std::unique_ptr<Fabric> connect_fabric(const RuntimeOptions& options, StoreClient* store, Deadline deadline) {
  FabricOptions fabric;
  fabric.rank = options.rank;
  fabric.size = options.size;
  fabric.silence_ns = options.silence_ns;
  fabric.secret = options.secret;
  fabric.job = options.job;
  fabric.host = options.host;
  fabric.bind_address = options.bind_address;
  fabric.transport = options.transport;
  fabric.tcp_congestion = options.tcp_congestion;
  fabric.sockets_per_peer = options.sockets_per_peer;
  fabric.carrier = options.carrier;
  return make_fabric(fabric, store, deadline);
}

/// What all ranks must choose alike comes from rank 0.
void agree_with_rank_zero(RuntimeOptions& options, StoreClient& store, Deadline deadline) {
  // The number at the end of a key is of the rank that sets it, see StoreServer::refuse_waiting().
  const std::string key = options.job + "/algorithms/0";
  if (options.rank == 0) {
    ByteWriter out;
    write_knobs(out, options.knobs);
    out.u64(options.gpu_part_bytes);
    out.i64(options.silence_ns);
    out.blob(options.algorithms.encode());
    store.set(key, out.bytes());
    return;
  }
  const Bytes told = [&] {
    try {
      return store.get(key, deadline);
    } catch (const Timeout&) {
      throw_waited_in_vain(options.job, options.rank, options.size, {0});
    }
  }();
  ByteReader in(told);
  options.knobs = read_knobs(in);
  options.gpu_part_bytes = in.u64();
  options.silence_ns = in.i64();
  options.algorithms = AlgorithmTable::decode(in.blob());
}

EngineOptions engine_options(const RuntimeOptions& options) {
  EngineOptions engine;
  engine.negotiator.rank = options.rank;
  engine.negotiator.size = options.size;
  engine.negotiator.fan_out = options.control_fan_out;
  engine.negotiator.knobs = options.knobs;
  engine.negotiator.stall = {options.stall_warning_ns, options.stall_shutdown_ns};
  engine.connect_timeout_ns = options.connect_timeout_ns;
  engine.idle_timeout_ns = options.idle_timeout_ns;
  engine.algorithms = options.algorithms;
  return engine;
}

/// Says that this rank cannot join, and why; returns what was said first of all ranks, empty when the store is gone.
std::string first_cause(const RuntimeOptions& options, StoreClient& store, const std::string& why) {
  const std::string who = "rank " + std::to_string(options.rank) + " on host " + options.host;
  try {
    return store.refuse(who + " could not join the job: " + why, options.job + "/");
  } catch (const Error&) {
    return "";
  }
}

/// Returns the word of a rank, or of the launcher, that says why the start fails; empty when none comes soon. A rank
/// that fails closes its connections before it can say why, and to the others that looks like the loss of that rank.
std::string word_of_another(const RuntimeOptions& options, StoreClient& store) {
  try {
    (void)store.get(options.job + "/cause", Deadline::after(kWordNs));
  } catch (const PeerLost& told) {
    return told.what();
  } catch (const Error&) {
    return "";
  }
  return "";
}

/// Runs the start. The first error of any rank is the one that all ranks throw which are in it: what follows from it (a
/// peer that went away) says less. A rank that has waited in vain knows itself for whom.
template <typename Start>
void with_one_cause(const RuntimeOptions& options, StoreClient* store, const Start& start) {
  try {
    start();
  } catch (const Timeout& error) {
    if (store != nullptr) (void)first_cause(options, *store, error.what());
    throw;
  } catch (const Error& error) {
    if (store == nullptr) throw;
    std::string first;
    if (dynamic_cast<const PeerLost*>(&error) != nullptr) first = word_of_another(options, *store);
    if (first.empty()) first = first_cause(options, *store, error.what());
    if (first.empty() || first.ends_with(error.what())) throw;
    throw PeerLost(kUnknownRank, first);
  }
}

}  // namespace

Runtime::Impl::Impl(const RuntimeOptions& given, std::unique_ptr<Fabric> made, const Tracer* job, TraceGroup group)
    : options(given),
      start_by(Deadline::after(given.connect_timeout_ns)),
      store(made ? nullptr : connect_store(given, start_by)),
      tracer(job == nullptr ? Tracer({.generation = given.generation}) : Tracer(*job, std::move(group))),
      queries(given.rank),
      status(given.knobs, given.generation),
      data_paths({given.gpu_data_path, given.nccl_libraries, given.gpu_kernels, given.ring_buffer_bytes,
                  given.connect_timeout_ns}),
      host_staged(given.cuda_driver, host_data_path(), data_paths) {
  set_log_level(static_cast<LogLevel>(given.log_level));
  if (!tracer.of_group()) set_log_rank(given.rank);
  check_knobs(given.knobs);
  with_one_cause(options, store.get(), [&] {
    if (store) agree_with_rank_zero(options, *store, start_by);
    fabric = made ? std::move(made) : connect_fabric(options, store.get(), start_by);
  });
  hosts = fabric->hosts();
  topology = topology_of(hosts, given.rank);
  host_staged.use_parts(options.gpu_part_bytes);
  data_paths.begin(hosts, given.rank, [this](const std::exception_ptr& error) { engine->device_failed(error); });
  status.apply(options.knobs, 0);  // rank 0's
  const EngineParts parts{*fabric, tickets, counters, tracer, mailbox, queries, status, &data_paths};
  with_one_cause(options, store.get(), [&] { engine = std::make_unique<Engine>(engine_options(options), parts); });
  driver = std::make_unique<Driver>(*engine, parts, DriverOptions{options.overlap, options.thread_affinity});
  fabric->on_inquiry([this](int from, std::uint32_t number, const Bytes& question) {
    engine->stall_reporter().asked(from, number, question);
  });
  try {
    fabric->start_monitor([this](int rank, const std::string& reason) { engine->peer_lost(rank, reason); });
  } catch (...) {
    driver->leave(Deadline::after(0));
    throw;
  }
  step = given.generation.first_step;
  step_begin_ns = now_ns();
  step_history.start(step, step_begin_ns);
}

}  // namespace ringtune
