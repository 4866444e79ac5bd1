// A writer registered on the signal stands for Python's faulthandler: it writes, then hands on to the handler before.
#include "base/stack_source.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "base/error.h"

namespace ringtune {
namespace {

std::atomic<int> g_test_file{-1};
struct sigaction g_test_before;

void write_a_stack(int number) {
  constexpr std::string_view kText =
      "Stack (most recent call first):\n  File \"/own/wait.py\", line 5 in wait\n  File \"a.py\", line 1 in f\n";
  (void)!::write(g_test_file.load(), kText.data(), kText.size());
  g_test_before.sa_handler(number);
}

TEST(StackSource, ReadsWhatTheMainThreadWritesOnItsSignal) {
  const int number = SIGRTMAX - 2;
  EXPECT_EQ(read_stack(Deadline::after(0)), std::nullopt) << "there is no source yet";
  g_test_file = open_stack_source(number);
  struct sigaction action{};
  action.sa_handler = write_a_stack;
  ASSERT_EQ(::sigaction(number, &action, &g_test_before), 0);
  EXPECT_EQ(read_stack(Deadline::after(0)), std::nullopt) << "it is not armed";
  arm_stack_source("/own");
  std::string first;
  std::string second;
  std::thread([&] {
    first = read_stack(Deadline::after(20'000'000'000)).value_or("none");
    second = read_stack(Deadline::after(20'000'000'000)).value_or("none");
  }).join();
  EXPECT_EQ(first, "Stack (most recent call first):\n  File \"a.py\", line 1 in f\n");
  EXPECT_EQ(second, first) << "the file holds the newest stack alone";

  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, number);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  std::thread([&] { first = read_stack(Deadline::after(10'000'000)).value_or("none"); }).join();
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  EXPECT_EQ(first, "") << "the main thread took no signal in time";
  EXPECT_THROW((void)open_stack_source(number), Error) << "somebody handles the signal";
  disarm_stack_source();
}

}  // namespace
}  // namespace ringtune
