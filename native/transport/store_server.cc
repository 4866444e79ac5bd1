#include <poll.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "transport/socket.h"
#include "transport/store.h"
#include "transport/store_connection.h"
#include "transport/store_orders.h"
#include "transport/store_values.h"
#include "transport/store_waiting.h"
#include "transport/store_wire.h"
#include "transport/thread.h"
#include "transport/wire.h"

namespace ringtune {
namespace {

constexpr int kAcceptPauseMs = 100;
// A client says hello at once: one that has not done so by then may go where there are no descriptors left.
constexpr std::int64_t kIdleNs = 1'000'000'000;

ByteView view_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// The server's state and loop; used by the server thread alone.
class Service {
 public:
  Service(Fd listener, Secret secret, const StoreLimits& limits, Orders& orders, std::atomic<std::uint64_t>& requests)
      : listener_(std::move(listener)),
        secret_(std::move(secret)),
        orders_(orders),
        requests_(requests),
        values_(limits) {}
  void run();

 private:
  void gather_events();
  void accept_waiting();
  void serve(std::uint64_t id, short events);
  void read_from(std::uint64_t id, StoreConnection& connection);
  [[nodiscard]] int poll_ms() const;
  void drop_late();
  [[nodiscard]] bool obey();
  void drop_oldest_unproven();
  [[nodiscard]] std::string refusal_of(const StoreConnection& late) const;
  void handle_frames(std::uint64_t id, StoreConnection& connection);
  void handle(std::uint64_t id, StoreConnection& connection, ByteReader request);
  void set(std::uint64_t id, StoreConnection& connection, std::uint32_t request, ByteReader& fields);
  void get(WaitingGet get);
  void answer(const WaitingGet& get, StoreStatus status);
  void add(std::uint64_t id, StoreConnection& connection, std::uint32_t request, ByteReader& fields);
  void refuse(StoreConnection& connection, std::uint32_t request, ByteReader& fields);
  void look_again();
  void cancel(std::uint64_t id, std::uint32_t request);
  void put(std::uint64_t owner, const std::string& key, Bytes value);
  bool flush(std::uint64_t id, StoreConnection& connection);
  void drop(std::uint64_t id, const std::string& why);

  Fd listener_;
  const Secret secret_;
  Orders& orders_;
  Refusals refusals_;
  std::atomic<std::uint64_t>& requests_;
  bool accept_paused_ = false;
  RareWarning descriptors_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, StoreConnection> connections_;
  StoreValues values_;
  std::unordered_map<std::string, std::vector<WaitingGet>> waiting_;
  std::vector<pollfd> events_;
  std::vector<std::uint64_t> event_ids_;  // 0: the orders or the listener
};

void Service::gather_events() {
  events_.assign({{.fd = orders_.signal.fd(), .events = POLLIN, .revents = 0},
                  {.fd = accept_paused_ ? -1 : listener_.get(), .events = POLLIN, .revents = 0}});
  event_ids_.assign(events_.size(), 0);
  for (const auto& [id, connection] : connections_) {
    // A client that does not read its answers is neither read from nor served.
    const short wanted = connection.out.empty() ? POLLIN : POLLOUT;
    events_.push_back({.fd = connection.fd.get(), .events = wanted, .revents = 0});
    event_ids_.push_back(id);
  }
}

void Service::run() {
  while (true) {
    gather_events();
    const int count = ::poll(events_.data(), events_.size(), poll_ms());
    accept_paused_ = false;
    if (count < 0 && errno != EINTR) throw_errno("store server: poll");
    drop_late();
    if (count <= 0) continue;
    if (events_[0].revents != 0 && obey()) return;
    for (std::size_t i = 2; i < events_.size(); ++i) {
      if (events_[i].revents != 0) serve(event_ids_[i], events_[i].revents);
    }
    if (events_[1].revents != 0) accept_waiting();
  }
}

/// Looks at what other threads ask for; true when the server is to end.
bool Service::obey() {
  orders_.signal.clear();
  {
    const std::lock_guard lock(orders_.mutex);
    if (orders_.stop) return true;
    for (Refusal& refusal : orders_.refusals) refusals_.add(std::move(refusal));
    orders_.refusals.clear();
  }
  look_again();
  return false;
}

/// At all that wait, since keys may have been refused.
void Service::look_again() {
  for (auto& [key, gets] : std::exchange(waiting_, {})) {
    for (WaitingGet& one : gets) get(std::move(one));
  }
}

int Service::poll_ms() const {
  if (accept_paused_) return kAcceptPauseMs;
  // The first that is unproven is the oldest of them.
  const auto waited_for = std::ranges::find_if(connections_, [](const auto& entry) { return !entry.second.proven; });
  if (waited_for == connections_.end()) return -1;
  return static_cast<int>(waited_for->second.until.remaining_ns() / 1'000'000 + 1);
}

void Service::accept_waiting() {
  try {
    // Some at a time: those that have come say something before later ones can push them out.
    for (std::size_t accepted = 0; accepted < kMaxUnproven / 4; ++accepted) {
      std::optional<Fd> fd = accept_tcp(listener_.get());
      if (!fd) return;
      connections_.try_emplace(next_id_++, std::move(*fd));
      const auto unproven = std::ranges::count_if(connections_, [](const auto& entry) { return !entry.second.proven; });
      if (static_cast<std::size_t>(unproven) > kMaxUnproven) drop_oldest_unproven();
    }
  } catch (const Error& error) {  // out of descriptors: serve those who are here, look again a little later
    descriptors_.warn("store server: ", error.what());
    const auto idle = std::ranges::find_if(connections_, [](const auto& entry) {
      return !entry.second.proven && entry.second.until.remaining_ns() < kProofTimeNs - kIdleNs;
    });
    if (idle != connections_.end()) drop(idle->first, "it says nothing, and there are no descriptors left");
    accept_paused_ = true;
  }
}

void Service::drop_late() {
  while (true) {
    const auto late = std::ranges::find_if(
        connections_, [](const auto& entry) { return !entry.second.proven && entry.second.until.expired(); });
    if (late == connections_.end()) return;
    drop(late->first, "it did not prove in time that it belongs to this job");
  }
}

void Service::drop_oldest_unproven() {
  const auto oldest = std::ranges::find_if(connections_, [](const auto& entry) { return !entry.second.proven; });
  drop(oldest->first, "too many connections that have not proved that they belong to this job");
}

void Service::serve(std::uint64_t id, short events) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // dropped by an earlier event of this round
  try {
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
      read_from(id, found->second);
    } else if (found->second.proven) {
      handle_frames(id, found->second);  // those that waited until its answers are read
    } else {
      (void)flush(id, found->second);
    }
  } catch (const Protocol& error) {
    drop(id, error.what());
  }
}

void Service::read_from(std::uint64_t id, StoreConnection& connection) {
  const Transfer transfer = read_some(connection.fd.get(), connection.in.space());
  if (transfer.closed) return drop(id, "");
  connection.in.filled(transfer.bytes);
  if (!connection.proven) {
    if (!prove(connection, secret_)) return static_cast<void>(flush(id, connection));
    connection.refusal = refusal_of(connection);
  }
  handle_frames(id, connection);
}

/// Why a client is served nothing; empty where it is served.
std::string Service::refusal_of(const StoreConnection& late) const {
  for (const auto& [id, first] : connections_) {
    if (std::string clash = clash_of(first, late); !clash.empty()) return clash;
  }
  return "";
}

void Service::handle_frames(std::uint64_t id, StoreConnection& connection) {
  while (flush(id, connection) && connection.out.empty()) {
    const std::optional<ByteView> frame = connection.in.next();
    if (!frame) return;
    handle(id, connection, ByteReader(*frame));
  }
}

void Service::handle(std::uint64_t id, StoreConnection& connection, ByteReader request) {
  const auto op = static_cast<StoreOp>(request.u8());
  const std::uint32_t number = request.u32();
  if (!connection.refusal.empty()) {
    if (op == StoreOp::kCancel) return;  // of a request that was answered already
    return connection.answer(number, StoreStatus::kRefused, view_of(connection.refusal));
  }
  requests_.fetch_add(1, std::memory_order_relaxed);  // a figure for tests and logs: orders nothing
  switch (op) {
    case StoreOp::kSet:
      return set(id, connection, number, request);
    case StoreOp::kGet:
    case StoreOp::kGetAll:
      connection.wait(number);
      return get(read_get(id, number, op, request));
    case StoreOp::kAdd:
      return add(id, connection, number, request);
    case StoreOp::kAtEnd:
      connection.keep_for_end(request);
      return connection.answer(number, StoreStatus::kOk, {});
    case StoreOp::kRefuse:
      return refuse(connection, number, request);
    case StoreOp::kCancel:
      request.expect_end();
      return cancel(id, number);
  }
  throw Protocol("unknown operation " + std::to_string(static_cast<int>(op)));
}

void Service::set(std::uint64_t id, StoreConnection& connection, std::uint32_t request, ByteReader& fields) {
  const std::string key = fields.string();
  const ByteView value = fields.blob();
  fields.expect_end();
  if (const std::string why = values_.refusal(id, connection.is_launcher(), key, value.size()); !why.empty()) {
    return connection.answer(request, StoreStatus::kRefused, view_of(why));
  }
  put(id, key, Bytes(value.begin(), value.end()));
  connection.answer(request, StoreStatus::kOk, {});
}

void Service::get(WaitingGet get) {
  while (get.next < get.keys.size() && values_.find(get.keys[get.next]) != nullptr) ++get.next;
  if (get.next == get.keys.size()) return answer(get, StoreStatus::kOk);
  if (const std::string* reason = refusals_.reason(get.keys[get.next])) {
    return connections_.at(get.connection).answer(get.request, StoreStatus::kRefused, view_of(*reason));
  }
  std::vector<WaitingGet>& waiting = waiting_[get.keys[get.next]];
  waiting.push_back(std::move(get));
}

/// Only queues. The handler of the connection's request flushes, or the loop when poll() finds it writable.
void Service::answer(const WaitingGet& get, StoreStatus status) {
  StoreConnection& connection = connections_.at(get.connection);
  const Bytes* found = get.all ? nullptr : values_.find(get.keys.front());
  if (!get.all) return connection.answer(get.request, status, found == nullptr ? ByteView() : ByteView(*found));
  const std::optional<Bytes> table = table_of(get.keys, values_);
  if (table) return connection.answer(get.request, status, *table);
  const std::string why = "the values of these " + std::to_string(get.keys.size()) + " keys have more than " +
                          std::to_string(kMaxAnswerBytes) + " bytes together; ask for fewer";
  connection.answer(get.request, StoreStatus::kRefused, view_of(why));
}

void Service::add(std::uint64_t id, StoreConnection& connection, std::uint32_t request, ByteReader& fields) {
  const std::string key = fields.string();
  const std::int64_t amount = fields.i64();
  fields.expect_end();
  std::int64_t value = 0;
  std::string why = values_.refusal(id, connection.is_launcher(), key, sizeof(value));
  const Bytes* found = values_.find(key);
  if (found != nullptr && found->size() != sizeof(value)) {
    why = "key '" + key + "' holds a value of " + std::to_string(found->size()) + " bytes that is not an integer";
  }
  if (!why.empty()) return connection.answer(request, StoreStatus::kRefused, view_of(why));
  if (found != nullptr) value = ByteReader(*found).i64();
  // Unsigned addition: an overflow wraps instead of being undefined.
  value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + static_cast<std::uint64_t>(amount));
  ByteWriter writer;
  writer.i64(value);
  connection.answer(request, StoreStatus::kOk, writer.bytes());
  put(id, key, writer.take());
}

void Service::refuse(StoreConnection& connection, std::uint32_t request, ByteReader& fields) {
  connection.answer(request, StoreStatus::kOk, view_of(refusals_.add(read_refusal(fields))));
  look_again();
}

void Service::cancel(std::uint64_t id, std::uint32_t request) {
  for (auto entry = waiting_.begin(); entry != waiting_.end(); ++entry) {
    std::vector<WaitingGet>& gets = entry->second;
    const auto found = std::find_if(gets.begin(), gets.end(), [&](const WaitingGet& get) {
      return get.connection == id && get.request == request;
    });
    if (found == gets.end()) continue;
    const WaitingGet get = std::move(*found);
    gets.erase(found);
    if (gets.empty()) waiting_.erase(entry);
    return answer(get, StoreStatus::kMissing);
  }
}

void Service::put(std::uint64_t owner, const std::string& key, Bytes value) {
  values_.put(owner, key, std::move(value));
  const auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return;
  std::vector<WaitingGet> gets = std::move(waiting->second);
  waiting_.erase(waiting);
  // Queued here and sent when poll() finds it writable: a client that breaks now cannot disturb the one that sets.
  for (WaitingGet& one : gets) get(std::move(one));
}

/// Sends what the client takes now; false when it has gone.
bool Service::flush(std::uint64_t id, StoreConnection& connection) {
  while (!connection.out.empty()) {
    const Transfer transfer = write_some(connection.fd.get(), connection.out.pending());
    if (transfer.closed) {
      drop(id, "");
      return false;
    }
    if (transfer.bytes == 0) break;
    connection.out.sent(transfer.bytes);
  }
  return true;
}

void Service::drop(std::uint64_t id, const std::string& why) {
  if (!why.empty()) warn_of_stranger("store server: " + why);
  auto dropped = connections_.extract(id);
  values_.forget(id);
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    std::erase_if(entry->second, [&](const WaitingGet& get) { return get.connection == id; });
    entry = entry->second.empty() ? waiting_.erase(entry) : std::next(entry);
  }
  if (dropped && dropped.mapped().at_end) {
    auto& [key, value] = *dropped.mapped().at_end;
    put(StoreValues::kNobody, key, std::move(value));
  }
}

}  // namespace

struct StoreServer::Impl {
  Impl(const std::string& host, std::uint16_t wanted_port, Secret secret, const StoreLimits& limits) {
    Fd listener = listen_tcp(host, wanted_port);
    port = local_port(listener.get());
    auto service = std::make_shared<Service>(std::move(listener), std::move(secret), limits, orders, requests);
    thread = start_thread("rt-store", [service = std::move(service)] {
      try {
        service->run();
      } catch (const std::exception& error) {  // clients see their connections close
        log(LogLevel::kError, "the store server ends: ", error.what());
      }
    });
  }
  ~Impl() {
    orders.give([this] { orders.stop = true; });
    thread.join();
  }

  Orders orders;
  std::atomic<std::uint64_t> requests{0};
  std::uint16_t port = 0;
  std::thread thread;
};

StoreServer::StoreServer(const std::string& host, std::uint16_t port, Secret secret, const StoreLimits& limits)
    : impl_(std::make_unique<Impl>(host, port, std::move(secret), limits)) {}
StoreServer::~StoreServer() {
  if (!home_.here()) (void)impl_.release();  // in a forked child: the serving thread is the parent's
}
std::uint16_t StoreServer::port() const noexcept { return impl_->port; }
void StoreServer::refuse_waiting(const std::string& reason, const std::string& begins, const std::string& ends) {
  impl_->orders.give([&] { impl_->orders.refusals.push_back({reason, begins, ends}); });
}
std::uint64_t StoreServer::requests() const noexcept { return impl_->requests.load(std::memory_order_relaxed); }

}  // namespace ringtune
