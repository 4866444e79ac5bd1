// TLS 1.3 for connections of a process, by the system's OpenSSL, where the user asks for it. Both ends show a
// certificate that the job's authority has signed.
//
// Whoever uses a connection reads and writes plain bytes as before: at one end of a pair of local sockets. At the other
// end a thread of ours carries them to and from the encrypted socket. What these connections carry is small.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/handshake.h"

namespace ringtune {

/// Paths of PEM files; all empty: no TLS.
struct TlsFiles {
  std::string certificate;  // of this process, with what is between it and the authority
  std::string key;          // its private key
  std::string authority;    // certificates of who has signed those of the others
};

/// All connections that this process opens or takes from now on are encrypted. Throws Error: no OpenSSL, or a file that
/// it cannot use, with the reason.
void use_tls(const TlsFiles& files);
[[nodiscard]] bool uses_tls() noexcept;

/// What the last one to refuse this process's certificate has said of it, as a sentence; empty: nobody has. A listener
/// says so behind the handshake, before it closes the plain end.
[[nodiscard]] std::string tls_refusal();

/// Returns the plain end of a connected socket; that socket itself where no TLS is in use. A caller blocks until the
/// other end is known; throws Protocol where that is none of the job's, with the reason, or Timeout. A listener does
/// not block: its plain end closes where the other is none of the job's, which is logged. `peer` names it in messages.
[[nodiscard]] Fd encrypt(Fd socket, Side side, const std::string& peer, Deadline deadline);

}  // namespace ringtune
