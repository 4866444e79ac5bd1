#include "base/stack_source.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/futex.h"

namespace ringtune {
namespace {

std::atomic<int> g_stack_signal{0};  // 0 = there is no source
std::atomic<bool> g_stack_armed{false};
std::atomic<std::uint32_t> g_stacks_written{0};
std::mutex g_stack_mutex;  // guards the file's content and what follows
int g_stack_file = -1;
std::string g_own_frame;  // how a frame begins that is left out

/// Runs on the main thread after the stack has been written. Async-signal-safe: an atomic and a system call.
void stack_written(int /*signal_number*/) {
  const int kept = errno;
  g_stacks_written.fetch_add(1, std::memory_order_release);
  futex_wake(g_stacks_written, kFutexWakeAll, FutexScope::kPrivate);
  errno = kept;
}

std::string stack_file_text() {
  std::string text;
  std::array<char, 4096> part;
  while (true) {
    const ssize_t count = ::pread(g_stack_file, part.data(), part.size(), static_cast<off_t>(text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
}

/// Without the innermost frames of this package; all of them are kept where there are no others.
std::string without_own_frames(const std::string& stack) {
  if (g_own_frame.empty()) return stack;
  std::size_t line = stack.find('\n') + 1;  // the first line is no frame
  const std::size_t first = line;
  while (line != 0 && stack.compare(line, g_own_frame.size(), g_own_frame) == 0) line = stack.find('\n', line) + 1;
  return line == 0 || line >= stack.size() ? stack : stack.substr(0, first) + stack.substr(line);
}

}  // namespace

int open_stack_source(int signal_number) {
  const std::lock_guard lock(g_stack_mutex);
  struct sigaction action{};
  if (::sigaction(signal_number, nullptr, &action) != 0) {
    throw Error("there is no signal " + std::to_string(signal_number));
  }
  if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL) {
    throw Error("signal " + std::to_string(signal_number) + " has a handler already");
  }
  if (g_stack_file < 0) g_stack_file = ::memfd_create("ringtune-stack", MFD_CLOEXEC);
  if (g_stack_file < 0) throw Error(std::string("cannot make a file for the stack: ") + std::strerror(errno));
  action.sa_handler = stack_written;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(signal_number, &action, nullptr) != 0) {
    throw Error("signal " + std::to_string(signal_number) + " takes no handler: " + std::strerror(errno));
  }
  g_stack_signal.store(signal_number, std::memory_order_relaxed);
  return g_stack_file;
}

void arm_stack_source(const std::string& own_folder) {
  const std::lock_guard lock(g_stack_mutex);
  g_own_frame = own_folder.empty() ? "" : "  File \"" + own_folder + "/";
  g_stack_armed.store(true, std::memory_order_release);
}

void disarm_stack_source() noexcept { g_stack_armed.store(false, std::memory_order_release); }

std::optional<std::string> read_stack(Deadline deadline) {
  const std::lock_guard lock(g_stack_mutex);
  // Acquire: the writer was registered before.
  if (!g_stack_armed.load(std::memory_order_acquire)) return std::nullopt;
  if (::ftruncate(g_stack_file, 0) != 0 || ::lseek(g_stack_file, 0, SEEK_SET) != 0) return std::nullopt;
  const std::uint32_t seen = g_stacks_written.load(std::memory_order_acquire);
  const pid_t process = ::getpid();  // also the number of its main thread
  if (::syscall(SYS_tgkill, process, process, g_stack_signal.load(std::memory_order_relaxed)) != 0) return std::nullopt;
  while (g_stacks_written.load(std::memory_order_acquire) == seen) {
    if (!futex_wait(g_stacks_written, seen, deadline, FutexScope::kPrivate)) return std::string();
  }
  const std::string text = without_own_frames(stack_file_text());
  return text.empty() ? "no Python\n" : text;  // the interpreter begins or ends
}

}  // namespace ringtune
