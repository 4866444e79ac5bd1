// The system's OpenSSL (libssl 3 or 1.1.1), opened at run time where a job asks for TLS: nothing of it is needed to
// build ringtune or to run it without. The names are those of openssl/ssl.h, whose ABI keeps them.
#pragma once

#include <string>

struct ssl_st;
struct ssl_ctx_st;
struct ssl_method_st;

namespace ringtune {

struct OpenSsl {
  const ssl_method_st* (*method)();
  ssl_ctx_st* (*context_new)(const ssl_method_st* method);
  long (*context_control)(ssl_ctx_st* context, int command, long number, void* pointer);
  int (*use_certificate)(ssl_ctx_st* context, const char* file);
  int (*use_key)(ssl_ctx_st* context, const char* file, int type);
  int (*check_key)(const ssl_ctx_st* context);
  int (*load_authority)(ssl_ctx_st* context, const char* file, const char* folder);
  void (*set_password)(ssl_ctx_st* context, int (*callback)(char*, int, int, void*));
  void (*set_verify)(ssl_ctx_st* context, int mode, int (*callback)(int, void*));
  ssl_st* (*create)(ssl_ctx_st* context);
  void (*free)(ssl_st* ssl);
  int (*set_socket)(ssl_st* ssl, int fd);
  void (*be_caller)(ssl_st* ssl);
  void (*be_listener)(ssl_st* ssl);
  int (*handshake)(ssl_st* ssl);
  int (*read)(ssl_st* ssl, void* to, int bytes);
  int (*write)(ssl_st* ssl, const void* from, int bytes);
  int (*shutdown)(ssl_st* ssl);
  int (*get_error)(const ssl_st* ssl, int result);
  long (*verify_result)(const ssl_st* ssl);
  unsigned long (*take_error)();
  void (*clear_errors)();
  void (*error_text)(unsigned long code, char* text, unsigned long bytes);
  const char* (*verify_text)(long result);

  static constexpr int kPem = 1;                 // SSL_FILETYPE_PEM
  static constexpr int kVerifyBoth = 3;          // SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT
  static constexpr int kSetOldest = 123;         // SSL_CTRL_SET_MIN_PROTO_VERSION
  static constexpr long kTls13 = 0x0304;         // TLS1_3_VERSION
  static constexpr int kSetMode = 33;            // SSL_CTRL_MODE
  static constexpr long kPartialWrites = 1 | 2;  // from a buffer that may have moved meanwhile
  static constexpr int kWantRead = 2;
  static constexpr int kWantWrite = 3;
  static constexpr int kClosed = 6;  // SSL_ERROR_ZERO_RETURN

  /// Any thread. Throws Error: there is none.
  static const OpenSsl& open();
  /// Takes the oldest error of this thread, in words.
  [[nodiscard]] std::string why() const;
};

}  // namespace ringtune
