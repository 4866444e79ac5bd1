// What Python calls of oneCCL: its library has C++ functions only. `make bench-peers` compiles this against the wheel's
// headers and its archive for CPUs. An error is a C++ exception, which ends the rank; the driver reports what it said.

#include <cstddef>
#include <cstring>
#include <oneapi/ccl.hpp>

namespace {

ccl::shared_ptr_class<ccl::kvs> store;
// Never deleted: oneCCL's own threads are gone when static objects die.
ccl::communicator* world = nullptr;

}  // namespace

extern "C" {

// Starts the store in which the ranks meet and writes its address (256 bytes). Rank 0 calls it.
void ringtune_oneccl_serve(char* address) {
  ccl::init();
  store = ccl::create_main_kvs();
  const auto own = store->get_address();
  std::memcpy(address, own.data(), own.size());
}

// Joins the ranks that meet at `address`.
void ringtune_oneccl_join(const char* address, int size, int rank) {
  if (!store) {
    ccl::init();
    ccl::kvs::address_type theirs;
    std::memcpy(theirs.data(), address, theirs.size());
    store = ccl::create_kvs(theirs);
  }
  world = new ccl::communicator(ccl::create_communicator(size, rank, store));
}

// Sums in place over all ranks; `dtype` is a ccl::datatype.
void ringtune_oneccl_allreduce(void* data, std::size_t count, int dtype) {
  ccl::allreduce(data, data, count, static_cast<ccl::datatype>(dtype), ccl::reduction::sum, *world).wait();
}

// The archive for CPUs leaves the hooks of Intel's tracer open; null means that nobody traces.
void* __itt_domain_create_ptr__3_0 = nullptr;
void* __itt_event_create_ptr__3_0 = nullptr;
void* __itt_event_end_ptr__3_0 = nullptr;
void* __itt_event_start_ptr__3_0 = nullptr;
void* __itt_metadata_add_ptr__3_0 = nullptr;
void* __itt_string_handle_create_ptr__3_0 = nullptr;
void* __itt_task_begin_ptr__3_0 = nullptr;
void* __itt_task_end_ptr__3_0 = nullptr;
void* __itt_thread_set_name_ptr__3_0 = nullptr;
}
