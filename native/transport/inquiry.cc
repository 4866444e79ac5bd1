#include "transport/inquiry.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ringtune {

std::uint32_t Inquiries::open(std::span<const int> ranks, int size) {
  const std::lock_guard lock(mutex_);
  questions_[++last_] = {{ranks.begin(), ranks.end()}, Answers(static_cast<std::size_t>(size))};
  return last_;
}

void Inquiries::answered(std::uint32_t number, int rank, ByteView answer) {
  const std::lock_guard lock(mutex_);
  const auto found = questions_.find(number);
  if (found == questions_.end() || found->second.open.erase(rank) == 0) return;  // late, or asked of nobody
  found->second.answers.at(static_cast<std::size_t>(rank)) = Bytes(answer.begin(), answer.end());
  changed_.notify_all();
}

void Inquiries::gone(int rank) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, question] : questions_) question.open.erase(rank);
  changed_.notify_all();
}

Answers Inquiries::close(std::uint32_t number, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return stopped_ || questions_.at(number).open.empty(); };
  const std::int64_t longest_ns = std::min<std::int64_t>(deadline.remaining_ns(), 3'600'000'000'000);
  changed_.wait_for(lock, std::chrono::nanoseconds(longest_ns), over);
  return std::move(questions_.extract(number).mapped().answers);
}

void Inquiries::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace ringtune
