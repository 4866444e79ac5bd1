#include "base/result_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

namespace ringtune {
namespace {

// Below this the allocator of the process does as well.
constexpr std::size_t kLeastKept = std::size_t{64} << 10;
constexpr std::size_t kPage = std::size_t{64} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::align_val_t kLine{64};

struct Block {
  std::byte* data;
  std::size_t capacity;
};

struct Pool {
  std::mutex mutex;
  std::vector<Block> blocks;  // the oldest first
  std::size_t bytes = 0;
};

/// Never destroyed: results may be freed while the process ends.
Pool& pool() {
  static auto* const found = new Pool;
  return *found;
}

void unmap(const Block& block) noexcept { ::munmap(block.data, block.capacity); }

Block map(std::size_t bytes) {
  const std::size_t unit = bytes >= kHugePage ? kHugePage : kPage;
  const std::size_t capacity = (bytes + unit - 1) / unit * unit;
  // Room to begin at a multiple of the unit; what is left over goes back.
  void* const address =
      ::mmap(nullptr, capacity + unit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(address);
  const std::size_t before = (unit - reinterpret_cast<std::uintptr_t>(begin) % unit) % unit;
  if (before > 0) ::munmap(begin, before);
  if (unit > before) ::munmap(begin + before + capacity, unit - before);
  if (unit == kHugePage) ::madvise(begin + before, capacity, MADV_HUGEPAGE);
  return {begin + before, capacity};
}

/// The smallest that is kept and large enough, unless much of it would be wasted; null if there is none.
Block take(std::size_t bytes) {
  Pool& kept = pool();
  // A forked child may have inherited a lock that nobody will ever open.
  const std::unique_lock lock(kept.mutex, std::try_to_lock);
  if (!lock) return {};
  auto best = kept.blocks.end();
  for (auto it = kept.blocks.begin(); it != kept.blocks.end(); ++it) {
    const bool fits = it->capacity >= bytes && it->capacity <= bytes + bytes / 4 + kHugePage;
    if (fits && (best == kept.blocks.end() || it->capacity < best->capacity)) best = it;
  }
  if (best == kept.blocks.end()) return {};
  const Block found = *best;
  kept.blocks.erase(best);
  kept.bytes -= found.capacity;
  return found;
}

/// False when it is to go back to the kernel.
bool keep(const Block& block) {
  if (block.capacity > ResultMemory::kMostKept) return false;
  Pool& kept = pool();
  const std::unique_lock lock(kept.mutex, std::try_to_lock);
  if (!lock) return false;
  while (kept.bytes + block.capacity > ResultMemory::kMostKept) {
    unmap(kept.blocks.front());
    kept.bytes -= kept.blocks.front().capacity;
    kept.blocks.erase(kept.blocks.begin());
  }
  kept.blocks.push_back(block);
  kept.bytes += block.capacity;
  return true;
}

}  // namespace

ResultMemory::ResultMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes < kLeastKept) {
    if (bytes > 0) data_ = static_cast<std::byte*>(::operator new(bytes, kLine));
    return;
  }
  Block block = take(bytes);
  if (block.data == nullptr) block = map(bytes);
  data_ = block.data;
  capacity_ = block.capacity;
}

ResultMemory::~ResultMemory() {
  if (capacity_ == 0) {
    ::operator delete(data_, kLine);
    return;
  }
  const Block block{data_, capacity_};
  try {
    if (keep(block)) return;
  } catch (const std::bad_alloc&) {  // the list could not grow
  }
  unmap(block);
}

std::size_t ResultMemory::kept() noexcept {
  const std::lock_guard lock(pool().mutex);
  return pool().bytes;
}

void ResultMemory::trim() noexcept {
  Pool& kept = pool();
  const std::unique_lock lock(kept.mutex, std::try_to_lock);
  if (!lock) return;
  for (const Block& block : kept.blocks) unmap(block);
  kept.blocks.clear();
  kept.bytes = 0;
}

}  // namespace ringtune
