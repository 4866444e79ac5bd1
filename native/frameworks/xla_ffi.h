// XLA's C interface for custom calls, as far as a handler needs it: what XLA passes, and how it is answered. Declared
// here, so that the build needs no header of XLA's and one binary serves all versions; the layout is that of API
// version 0.1, which every jaxlib since 0.4.38 takes (tests/frameworks checks it against jaxlib's own headers).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringtune::frameworks::xla {

inline constexpr int kApiMajor = 0;
inline constexpr int kApiMinor = 1;  // the lowest one: a newer number is refused by older versions of jaxlib

struct Error;             // XLA's
struct ExecutionContext;  // XLA's

enum class ErrorCode : int {  // those of absl::Status
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13,
  kUnavailable = 14,
};

enum class DataType : int {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kToken = 17,
  kC128 = 18,
};

enum class ExtensionType : int { kMetadata = 1 };
enum class AttributeType : int { kArray = 1, kDictionary = 2, kScalar = 3, kString = 4 };
enum class Stage : int { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };

/// Begins every struct: how large its writer knows it to be, and what is chained to it.
struct Extension {
  std::size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct ApiVersion {
  std::size_t struct_size;
  Extension* extension;
  int major;
  int minor;
};

struct Metadata {
  std::size_t struct_size;
  ApiVersion api_version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;  // to be filled in by the handler
};

struct Text {
  const char* data;
  std::size_t size;
};

struct Buffer {
  std::size_t struct_size;
  Extension* extension;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

/// Operands or results; all of them are buffers.
struct Buffers {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* types;
  Buffer** buffers;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  AttributeType* types;
  Text** names;
  void** values;
};

struct ErrorCreateArgs {
  std::size_t struct_size;
  Extension* extension;
  const char* message;
  ErrorCode code;
};

/// The functions of XLA that a handler may call; more follow.
struct Api {
  std::size_t struct_size;
  Extension* extension;
  ApiVersion api_version;
  const void* internal_api;
  Error* (*create_error)(ErrorCreateArgs*);
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extension;
  const Api* api;
  ExecutionContext* context;
  Stage stage;
  Buffers operands;
  Buffers results;
  Attributes attributes;
};

/// Null: all went well.
using Handler = Error*(CallFrame*);

}  // namespace ringtune::frameworks::xla
