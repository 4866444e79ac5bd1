#include <poll.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "transport/socket.h"
#include "transport/store.h"
#include "transport/store_wire.h"
#include "transport/thread.h"
#include "transport/wire.h"

namespace ringtune {
namespace {

// A client that does not read its answers is not read from either, beyond this.
constexpr std::size_t kMaxUnsentBytes = 64u << 20;
constexpr int kAcceptPauseMs = 100;

ByteView view_of(const std::string& text) { return std::as_bytes(std::span(text)); }

struct Connection {
  explicit Connection(Fd socket) : fd(std::move(socket)), in(kStoreMaxFrameBytes) {}
  Fd fd;
  FrameAssembler in;
  SendQueue out;
  bool greeted = false;
};

/// A get that waits for the first of its keys that does not exist: so it costs one entry, however many keys it has.
struct WaitingGet {
  std::uint64_t connection;
  std::uint32_t request;
  bool all;  // kGetAll
  std::vector<std::string> keys;
  std::size_t next = 0;  // those before it exist
};

WaitingGet read_get(std::uint64_t id, std::uint32_t request, StoreOp op, ByteReader& fields) {
  WaitingGet get{.connection = id, .request = request, .all = op == StoreOp::kGetAll, .keys = {}};
  const std::uint32_t count = get.all ? fields.u32() : 1;
  if (count > fields.remaining()) throw Protocol("a get of more keys than its message holds");
  for (std::uint32_t i = 0; i < count; ++i) get.keys.push_back(fields.string());
  fields.expect_end();
  return get;
}

/// The server's state and loop; used by the server thread alone.
class Service {
 public:
  Service(Fd listener, const StopSignal& stop, std::atomic<std::uint64_t>& requests)
      : listener_(std::move(listener)), stop_(stop), requests_(requests) {}
  void run();

 private:
  void gather_events();
  void accept_waiting();
  void serve(std::uint64_t id, short events);
  void read_from(std::uint64_t id, Connection& connection);
  void handle_frames(std::uint64_t id, Connection& connection);
  void handle(std::uint64_t id, Connection& connection, ByteReader request);
  void set(Connection& connection, std::uint32_t request, ByteReader& fields);
  void get(WaitingGet get);
  void answer(const WaitingGet& get, StoreStatus status);
  void add(Connection& connection, std::uint32_t request, ByteReader& fields);
  void cancel(std::uint64_t id, std::uint32_t request);
  void put(const std::string& key, Bytes value);
  void flush(std::uint64_t id, Connection& connection);
  void drop(std::uint64_t id, const std::string& why);
  static void answer(Connection& connection, std::uint32_t request, StoreStatus status, ByteView value);

  Fd listener_;
  const StopSignal& stop_;
  std::atomic<std::uint64_t>& requests_;
  bool accept_paused_ = false;
  RareWarning descriptors_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, Connection> connections_;
  std::unordered_map<std::string, Bytes> values_;
  std::unordered_map<std::string, std::vector<WaitingGet>> waiting_;
  std::vector<pollfd> events_;
  std::vector<std::uint64_t> event_ids_;  // 0: the stop signal or the listener
};

void Service::gather_events() {
  events_.assign({{.fd = stop_.fd(), .events = POLLIN, .revents = 0},
                  {.fd = accept_paused_ ? -1 : listener_.get(), .events = POLLIN, .revents = 0}});
  event_ids_.assign(2, 0);
  for (const auto& [id, connection] : connections_) {
    const bool read = connection.out.size() < kMaxUnsentBytes;
    const auto wanted = static_cast<short>((read ? POLLIN : 0) | (connection.out.empty() ? 0 : POLLOUT));
    events_.push_back({.fd = connection.fd.get(), .events = wanted, .revents = 0});
    event_ids_.push_back(id);
  }
}

void Service::run() {
  while (true) {
    gather_events();
    const int count = ::poll(events_.data(), events_.size(), accept_paused_ ? kAcceptPauseMs : -1);
    accept_paused_ = false;
    if (count < 0 && errno != EINTR) throw_errno("store server: poll");
    if (count <= 0) continue;
    if (events_[0].revents != 0) return;
    for (std::size_t i = 2; i < events_.size(); ++i) {
      if (events_[i].revents != 0) serve(event_ids_[i], events_[i].revents);
    }
    if (events_[1].revents != 0) accept_waiting();
  }
}

void Service::accept_waiting() {
  try {
    while (std::optional<Fd> fd = accept_tcp(listener_.get())) connections_.try_emplace(next_id_++, std::move(*fd));
  } catch (const Error& error) {  // out of descriptors: serve those who are here, look again a little later
    descriptors_.warn("store server: ", error.what());
    accept_paused_ = true;
  }
}

void Service::serve(std::uint64_t id, short events) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // dropped by an earlier event of this round
  try {
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
      read_from(id, found->second);
    } else {
      flush(id, found->second);
    }
  } catch (const Protocol& error) {
    drop(id, error.what());
  }
}

void Service::read_from(std::uint64_t id, Connection& connection) {
  const Transfer transfer = read_some(connection.fd.get(), connection.in.space());
  if (transfer.closed) return drop(id, "");
  connection.in.filled(transfer.bytes);
  if (!connection.greeted) {
    const std::optional<ByteView> magic = connection.in.take_raw(sizeof(kStoreMagic));
    if (!magic) return;
    if (ByteReader(*magic).u32() != kStoreMagic) throw Protocol("it does not speak the protocol of the store");
    connection.greeted = true;
  }
  handle_frames(id, connection);
}

void Service::handle_frames(std::uint64_t id, Connection& connection) {
  while (const std::optional<ByteView> frame = connection.in.next()) handle(id, connection, ByteReader(*frame));
  flush(id, connection);
}

void Service::handle(std::uint64_t id, Connection& connection, ByteReader request) {
  const auto op = static_cast<StoreOp>(request.u8());
  const std::uint32_t number = request.u32();
  requests_.fetch_add(1, std::memory_order_relaxed);  // a figure for tests and logs: orders nothing
  switch (op) {
    case StoreOp::kSet:
      return set(connection, number, request);
    case StoreOp::kGet:
    case StoreOp::kGetAll:
      return get(read_get(id, number, op, request));
    case StoreOp::kAdd:
      return add(connection, number, request);
    case StoreOp::kCancel:
      request.expect_end();
      return cancel(id, number);
  }
  throw Protocol("unknown operation " + std::to_string(static_cast<int>(op)));
}

void Service::set(Connection& connection, std::uint32_t request, ByteReader& fields) {
  const std::string key = fields.string();
  const ByteView value = fields.blob();
  fields.expect_end();
  put(key, Bytes(value.begin(), value.end()));
  answer(connection, request, StoreStatus::kOk, {});
}

void Service::get(WaitingGet get) {
  while (get.next < get.keys.size() && values_.contains(get.keys[get.next])) ++get.next;
  if (get.next == get.keys.size()) return answer(get, StoreStatus::kOk);
  std::vector<WaitingGet>& waiting = waiting_[get.keys[get.next]];
  waiting.push_back(std::move(get));
}

/// Only queues. The handler of the connection's request flushes, or the loop when poll() finds it writable.
void Service::answer(const WaitingGet& get, StoreStatus status) {
  Connection& connection = connections_.at(get.connection);
  if (!get.all) {
    const auto found = values_.find(get.keys.front());
    return answer(connection, get.request, status, found == values_.end() ? ByteView() : ByteView(found->second));
  }
  ByteWriter table;
  for (const std::string& key : get.keys) {
    const auto found = values_.find(key);
    table.u8(found == values_.end() ? 0 : 1);
    table.blob(found == values_.end() ? ByteView() : ByteView(found->second));
  }
  answer(connection, get.request, status, table.bytes());
}

void Service::add(Connection& connection, std::uint32_t request, ByteReader& fields) {
  const std::string key = fields.string();
  const std::int64_t amount = fields.i64();
  fields.expect_end();
  std::int64_t value = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    if (found->second.size() != sizeof(value)) {
      const std::string why = "key '" + key + "' holds a value of " + std::to_string(found->second.size()) +
                              " bytes that is not an integer";
      return answer(connection, request, StoreStatus::kRefused, view_of(why));
    }
    value = ByteReader(found->second).i64();
  }
  // Unsigned addition: an overflow wraps instead of being undefined.
  value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + static_cast<std::uint64_t>(amount));
  ByteWriter writer;
  writer.i64(value);
  answer(connection, request, StoreStatus::kOk, writer.bytes());
  put(key, writer.take());
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

void Service::put(const std::string& key, Bytes value) {
  values_[key] = std::move(value);
  const auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return;
  std::vector<WaitingGet> gets = std::move(waiting->second);
  waiting_.erase(waiting);
  // Queued here and sent when poll() finds it writable: a client that breaks now cannot disturb the one that sets.
  for (WaitingGet& one : gets) get(std::move(one));
}

void Service::answer(Connection& connection, std::uint32_t request, StoreStatus status, ByteView value) {
  ByteWriter writer;
  writer.u32(request);
  writer.u8(static_cast<std::uint8_t>(status));
  writer.blob(value);
  connection.out.push_frame(writer.bytes());
}

void Service::flush(std::uint64_t id, Connection& connection) {
  while (!connection.out.empty()) {
    const Transfer transfer = write_some(connection.fd.get(), connection.out.pending());
    if (transfer.closed) return drop(id, "");
    if (transfer.bytes == 0) return;
    connection.out.sent(transfer.bytes);
  }
}

void Service::drop(std::uint64_t id, const std::string& why) {
  if (!why.empty()) warn_of_stranger("store server: " + why);
  connections_.erase(id);
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    std::erase_if(entry->second, [&](const WaitingGet& get) { return get.connection == id; });
    entry = entry->second.empty() ? waiting_.erase(entry) : std::next(entry);
  }
}

}  // namespace

struct StoreServer::Impl {
  Impl(const std::string& host, std::uint16_t wanted_port) {
    Fd listener = listen_tcp(host, wanted_port);
    port = local_port(listener.get());
    thread = start_thread("rt-store", [service = std::make_shared<Service>(std::move(listener), stop, requests)] {
      try {
        service->run();
      } catch (const std::exception& error) {  // clients see their connections close
        log(LogLevel::kError, "the store server ends: ", error.what());
      }
    });
  }
  ~Impl() {
    stop.raise();
    thread.join();
  }

  StopSignal stop;
  std::atomic<std::uint64_t> requests{0};
  std::uint16_t port = 0;
  std::thread thread;
};

StoreServer::StoreServer(const std::string& host, std::uint16_t port) : impl_(std::make_unique<Impl>(host, port)) {}
StoreServer::~StoreServer() {
  if (!home_.here()) (void)impl_.release();  // in a forked child: the serving thread is the parent's
}
std::uint16_t StoreServer::port() const noexcept { return impl_->port; }
std::uint64_t StoreServer::requests() const noexcept { return impl_->requests.load(std::memory_order_relaxed); }

}  // namespace ringtune
