#include "trace/zlib.h"

#include <dlfcn.h>

#include <array>
#include <memory>

#include "base/error.h"

namespace ringtune {
namespace {

// What zlib.h of version 1.2 declares; its interface has not changed since 1995.
struct Stream {
  const unsigned char* next_in;
  unsigned avail_in;
  unsigned long total_in;
  unsigned char* next_out;
  unsigned avail_out;
  unsigned long total_out;
  const char* message;
  void* state;
  void* allocate;
  void* release;
  void* opaque;
  int data_type;
  unsigned long adler;
  unsigned long reserved;
};
constexpr int kOk = 0;
constexpr int kSyncFlush = 2;
constexpr int kFinish = 4;
constexpr int kDeflated = 8;
constexpr int kFastest = 1;
constexpr int kGzipWindow = 15 + 16;
constexpr int kMemoryLevel = 8;

struct Library {
  int (*init)(Stream*, int, int, int, int, int, const char*, int) = nullptr;
  int (*deflate)(Stream*, int) = nullptr;
  int (*end)(Stream*) = nullptr;
};

template <typename Function>
void load(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
}

const Library& library() {
  static const Library loaded = [] {
    Library found;
    void* const handle = ::dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return found;
    load(handle, "deflateInit2_", found.init);
    load(handle, "deflate", found.deflate);
    load(handle, "deflateEnd", found.end);
    return found;
  }();
  return loaded;
}

}  // namespace

struct GzipStream::Impl {
  Stream stream{};
};

GzipStream::GzipStream() : impl_(std::make_unique<Impl>()) {
  const Library& zlib = library();
  if (zlib.init == nullptr || zlib.deflate == nullptr || zlib.end == nullptr) {
    throw Error("a packed timeline needs libz.so.1 (zlib), which is not on this machine; record it unpacked");
  }
  const int code = zlib.init(&impl_->stream, kFastest, kDeflated, kGzipWindow, kMemoryLevel, 0, "1.2.11",
                             static_cast<int>(sizeof(Stream)));
  if (code != kOk) throw Error("zlib refuses to start (error " + std::to_string(code) + "); record it unpacked");
}

GzipStream::~GzipStream() { (void)library().end(&impl_->stream); }

void GzipStream::pack(std::string_view text, bool last, std::string& out) {
  std::array<unsigned char, 16 << 10> room;
  Stream& stream = impl_->stream;
  stream.next_in = reinterpret_cast<const unsigned char*>(text.data());
  stream.avail_in = static_cast<unsigned>(text.size());
  do {
    stream.next_out = room.data();
    stream.avail_out = static_cast<unsigned>(room.size());
    (void)library().deflate(&stream, last ? kFinish : kSyncFlush);  // fails only for a stream that is used wrongly
    out.append(reinterpret_cast<const char*>(room.data()), room.size() - stream.avail_out);
  } while (stream.avail_out == 0);
}

}  // namespace ringtune
