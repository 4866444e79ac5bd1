#include "base/home_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ringtune {
namespace {

/// Forks; returns what `answer` says in the child.
template <typename Answer>
int in_child(Answer&& answer) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(answer());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(HomeProcess, IsWhereItWasMade) {
  const HomeProcess home;
  EXPECT_TRUE(home.here());
  EXPECT_EQ(in_child([&] { return home.here() ? 1 : 0; }), 0);
  EXPECT_TRUE(home.here());
}

TEST(HomeProcess, OfAChildIsNotThatOfItsChildren) {
  const HomeProcess first;
  const int seen = in_child([&] {
    const HomeProcess second;
    const int deeper = in_child([&] { return (first.here() ? 1 : 0) + (second.here() ? 2 : 0); });
    return deeper + (second.here() ? 0 : 4) + (first.here() ? 8 : 0);
  });
  EXPECT_EQ(seen, 0);
}

}  // namespace
}  // namespace ringtune
