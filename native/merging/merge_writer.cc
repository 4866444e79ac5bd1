#include "merging/merge_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "trace/span.h"

namespace ringtune {
namespace {

constexpr std::size_t kBatchRecords = 8192;  // about 2 MiB of text
constexpr std::uint64_t kBatchesAGo = 256;

unsigned sorting_threads() { return std::clamp(std::thread::hardware_concurrency(), 1U, 8U); }

}  // namespace

MergeWriter::MergeWriter(MergeTarget target, const SpanColumns& columns, MergedText text, std::uint32_t always_paired)
    : target_(target), order_(columns, always_paired, sorting_threads()), text_(std::move(text)) {}

bool MergeWriter::write_some(unsigned threads) {
  until_ = taken_ + kBatchesAGo;
  {
    std::vector<std::jthread> helpers;  // joined at the end of the block
    for (unsigned i = 1; i < threads; ++i) helpers.emplace_back([this] { work(); });
    work();
  }
  if (error_) std::rethrow_exception(error_);
  return !ended_;
}

void MergeWriter::work() {
  try {
    write_batches();
  } catch (...) {
    const std::scoped_lock lock(placing_);
    if (!error_) error_ = std::current_exception();
    placed_.notify_all();
  }
}

void MergeWriter::write_batches() {
  std::vector<SpanRow> batch(kBatchRecords);
  std::string text;
  std::uint64_t number = 0;
  while (const std::size_t count = next_batch(batch, number)) {
    text.clear();
    for (std::size_t i = 0; i < count; ++i) text_.append(text, batch[i]);
    write_at(reserve(number, text.size()), text);
  }
}

std::size_t MergeWriter::next_batch(std::vector<SpanRow>& batch, std::uint64_t& number) {
  const std::scoped_lock lock(merging_);
  if (taken_ == until_ || ended_) return 0;
  const std::size_t count = order_.next(batch);
  ended_ = count < batch.size();
  for (std::size_t i = 0; i < count; ++i) {
    const SpanRow& row = batch[i];
    if (static_cast<Stage>(row.stage) != Stage::kCommunicate || row.batch <= 0) continue;
    begins_.push_back({row.batch, row.begin_ns, row.rank});
  }
  if (count > 0) number = taken_++;
  return count;
}

/// Waits until all batches before have their place, and takes the next one.
std::int64_t MergeWriter::reserve(std::uint64_t number, std::size_t size) {
  std::unique_lock lock(placing_);
  placed_.wait(lock, [&] { return placed_count_ == number || error_ != nullptr; });
  if (error_) std::rethrow_exception(error_);
  ++placed_count_;
  placed_.notify_all();
  return std::exchange(target_.end, target_.end + static_cast<std::int64_t>(size));
}

void MergeWriter::write_arrows() {
  std::ranges::sort(begins_, {}, [](const BatchBegin& at) { return std::tuple(at.batch, at.rank, at.begin_ns); });
  const auto [repeated, end] =
      std::ranges::unique(begins_, {}, [](const BatchBegin& at) { return std::pair(at.batch, at.rank); });
  begins_.erase(repeated, end);
  std::ranges::sort(begins_, {}, [](const BatchBegin& at) { return std::tuple(at.batch, at.begin_ns, at.rank); });
  std::string text;
  std::int64_t identity = order_.pairs();
  for (auto first = begins_.begin(); first != begins_.end();) {
    const auto last =
        std::find_if(first, begins_.end(), [&](const BatchBegin& at) { return at.batch != first->batch; });
    if (last - first > 1) {
      ++identity;
      for (auto at = first; at != last; ++at) {
        const bool ends = at + 1 == last;
        MergedText::append_arrow(text, at == first ? "s" : ends ? "f\",\"bp\":\"e" : "t", identity, *at);
      }
    }
    first = last;
    if (text.size() > std::size_t{1} << 20 || first == begins_.end()) {
      write_at(std::exchange(target_.end, target_.end + static_cast<std::int64_t>(text.size())), text);
      text.clear();
    }
  }
}

void MergeWriter::write_at(std::int64_t offset, std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(target_.file, text.data(), text.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw std::system_error(written == 0 ? ENOSPC : errno, std::generic_category());
    offset += written;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace ringtune
