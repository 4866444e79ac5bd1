// zlib, opened at run time: the module links nothing but threads. Internal to trace/.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace ringtune {

/// One gzip member. One thread. Blocks for as long as packing takes.
class GzipStream {
 public:
  /// Throws Error when this machine has no libz.so.1.
  GzipStream();
  ~GzipStream();
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  /// Appends the packed text to `out`, so that all of it can be unpacked from there; `last` ends the member.
  void pack(std::string_view text, bool last, std::string& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringtune
