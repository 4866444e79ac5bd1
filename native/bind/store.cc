#include "transport/store.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/unlocked.h"
#include "transport/tls.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

ByteView view_of(const nb::bytes& value) { return {static_cast<const std::byte*>(value.data()), value.size()}; }

StoreRole role_of(const std::string& name) {
  if (name.empty()) return StoreRole::kOther;
  if (name == "rank") return StoreRole::kRank;
  if (name == "launcher") return StoreRole::kLauncher;
  if (name == "worker") return StoreRole::kWorker;
  if (name == "child") return StoreRole::kChild;
  throw InvalidArgument("'" + name + "' is no role of a store's client: rank, launcher, worker or child");
}

/// A server that can be closed from Python before it is garbage.
class ClosableServer {
 public:
  ClosableServer(const std::string& host, std::uint16_t port, const std::string& secret)
      : server_(std::make_unique<StoreServer>(host, port, Secret(secret))) {
    port_ = server_->port();
  }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  void refuse_waiting(const std::string& reason, const std::string& begins, const std::string& ends) {
    if (server_) server_->refuse_waiting(reason, begins, ends);
  }
  void close() { server_.reset(); }

 private:
  std::unique_ptr<StoreServer> server_;
  std::uint16_t port_ = 0;
};

}  // namespace

void add_store(nb::module_& module) {
  module.def(
      "use_tls",
      [](const std::string& certificate, const std::string& key, const std::string& authority) {
        use_tls({certificate, key, authority});
      },
      nb::arg("certificate"), nb::arg("key"), nb::arg("authority"),
      "Encrypt what this process says to stores and as control messages from now on.");
  nb::class_<ClosableServer>(module, "StoreServer", "The rendezvous store: a small key-value server on TCP.")
      .def(nb::init<const std::string&, std::uint16_t, const std::string&>(), nb::arg("host"), nb::arg("port"),
           nb::arg("secret"))
      .def_prop_ro("port", &ClosableServer::port)
      .def("refuse_waiting", &ClosableServer::refuse_waiting, nb::arg("reason"), nb::arg("begins") = "",
           nb::arg("ends") = "")
      .def("close", &ClosableServer::close, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<StoreClient>(module, "StoreClient", "One connection to a StoreServer.")
      .def(
          "__init__",
          [](StoreClient* self, const std::string& host, std::uint16_t port, const std::string& secret,
             std::int64_t timeout_ns, const std::string& role, int rank, const std::string& job) {
            const StoreIdentity who{role_of(role), rank, job};
            const Unlocked released;
            new (self) StoreClient(host, port, Secret(secret), Deadline::after(timeout_ns), who);
          },
          nb::arg("host"), nb::arg("port"), nb::arg("secret"), nb::arg("timeout_ns"), nb::arg("role") = "",
          nb::arg("rank") = -1, nb::arg("job") = "")
      .def(
          "set",
          [](StoreClient& self, const std::string& key, const nb::bytes& value) {
            const ByteView view = view_of(value);  // `value` keeps the memory alive while the lock is released
            const Unlocked released;
            self.set(key, view);
          },
          nb::arg("key"), nb::arg("value"))
      .def(
          "set_at_end",
          [](StoreClient& self, const std::string& key, const nb::bytes& value) {
            const ByteView view = view_of(value);
            const Unlocked released;
            self.set_at_end(key, view);
          },
          nb::arg("key"), nb::arg("value"))
      .def(
          "get",
          [](StoreClient& self, const std::string& key, std::int64_t timeout_ns) {
            Bytes value;
            {
              const Unlocked released;
              value = self.get(key, Deadline::after(timeout_ns));
            }
            return nb::bytes(value.data(), value.size());
          },
          nb::arg("key"), nb::arg("timeout_ns"))
      .def(
          "get_all",
          [](StoreClient& self, const std::vector<std::string>& keys, std::int64_t timeout_ns) {
            std::vector<std::optional<Bytes>> values;
            {
              const Unlocked released;
              values = self.get_all(keys, Deadline::after(timeout_ns));
            }
            nb::typed<nb::list, std::optional<nb::bytes>> found;
            for (const std::optional<Bytes>& value : values) {
              if (value) {
                found.append(nb::bytes(value->data(), value->size()));
              } else {
                found.append(nb::none());
              }
            }
            return found;
          },
          nb::arg("keys"), nb::arg("timeout_ns"))
      .def("add", &StoreClient::add, nb::arg("key"), nb::arg("amount"), nb::call_guard<Unlocked>())
      .def("refuse", &StoreClient::refuse, nb::arg("reason"), nb::arg("begins"), nb::call_guard<Unlocked>())
      .def("local_address", &StoreClient::local_address);
}

}  // namespace ringtune::bind
