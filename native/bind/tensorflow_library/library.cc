// The library that `tf.load_op_library` loads: TensorFlow takes as its ops those that are added while it is loaded.
// They are added by the extension module, which has been loaded before, and whose runtime they work with.

extern "C" const char* ringtune_add_tensorflow_ops();

namespace {
const char* const fault = ringtune_add_tensorflow_ops();
}  // namespace

/// Why there are no ops, or null.
extern "C" __attribute__((visibility("default"))) const char* ringtune_tensorflow_fault() { return fault; }
