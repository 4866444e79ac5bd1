#include "transport/openssl.h"

#include <dlfcn.h>

#include <array>

#include "base/error.h"
#include "base/symbols.h"

namespace ringtune {
namespace {

OpenSsl load_all() {
  void* library = nullptr;
  for (const char* const name : {"libssl.so.3", "libssl.so.1.1"}) {
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw Error(
        "TLS is asked for (RINGTUNE_TLS_CERT), but this host has no OpenSSL: neither libssl.so.3 nor libssl.so.1.1 "
        "can be opened. Install its package (libssl3, openssl-libs) or unset the variables on all hosts");
  }
  OpenSsl api{};
  std::string missing;
  load(library, "TLS_method", api.method, missing);
  load(library, "SSL_CTX_new", api.context_new, missing);
  load(library, "SSL_CTX_ctrl", api.context_control, missing);
  load(library, "SSL_CTX_use_certificate_chain_file", api.use_certificate, missing);
  load(library, "SSL_CTX_use_PrivateKey_file", api.use_key, missing);
  load(library, "SSL_CTX_check_private_key", api.check_key, missing);
  load(library, "SSL_CTX_load_verify_locations", api.load_authority, missing);
  load(library, "SSL_CTX_set_default_passwd_cb", api.set_password, missing);
  load(library, "SSL_CTX_set_verify", api.set_verify, missing);
  load(library, "SSL_new", api.create, missing);
  load(library, "SSL_free", api.free, missing);
  load(library, "SSL_set_fd", api.set_socket, missing);
  load(library, "SSL_set_connect_state", api.be_caller, missing);
  load(library, "SSL_set_accept_state", api.be_listener, missing);
  load(library, "SSL_do_handshake", api.handshake, missing);
  load(library, "SSL_read", api.read, missing);
  load(library, "SSL_write", api.write, missing);
  load(library, "SSL_shutdown", api.shutdown, missing);
  load(library, "SSL_get_error", api.get_error, missing);
  load(library, "SSL_get_verify_result", api.verify_result, missing);
  // Of libcrypto, which libssl brings along.
  load(library, "ERR_get_error", api.take_error, missing);
  load(library, "ERR_clear_error", api.clear_errors, missing);
  load(library, "ERR_error_string_n", api.error_text, missing);
  load(library, "X509_verify_cert_error_string", api.verify_text, missing);
  if (!missing.empty()) throw Error("this host's OpenSSL cannot carry TLS 1.3: it lacks " + missing);
  return api;
}

}  // namespace

const OpenSsl& OpenSsl::open() {
  static const OpenSsl api = load_all();  // never closed: its threads' data outlive us
  return api;
}

std::string OpenSsl::why() const {
  const unsigned long code = take_error();
  if (code == 0) return "the connection was closed";
  std::array<char, 256> text{};
  error_text(code, text.data(), text.size());
  // "error:0A000086:SSL routines::certificate verify failed": what is behind the last colon is for people.
  const std::string whole(text.data());
  return whole.substr(whole.rfind(':') + 1);
}

}  // namespace ringtune
