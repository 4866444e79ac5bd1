#include "runtime/step_watch.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace ringtune {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr CollectiveKind kAllreduce = CollectiveKind::kAllreduce;

StepWatch::Token named(char name) { return StepWatch::token_of(kAllreduce, 0, std::string("allreduce.") + name, 1); }

/// A program: a letter for each operation, every so many nanoseconds, a dot for each wait, a dash for computing.
struct Program {
  StepWatch watch;
  std::int64_t now_ns = 0;
  std::int64_t apart_ns = 5 * kMs;

  /// The letters before which steps ended, by their places in the text. What goes on needs no look at the clock.
  std::vector<std::size_t> run(const std::string& text) {
    std::vector<std::size_t> ended;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '.') {
        watch.waited();
      } else if (text[i] == '-') {
        now_ns += 100 * apart_ns;
      } else {
        now_ns += apart_ns;
        if (!watch.goes_on(named(text[i])) && watch.submitted(named(text[i]), now_ns)) ended.push_back(i);
      }
    }
    return ended;
  }
};

std::string times(std::size_t count, const std::string& text) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

std::vector<std::size_t> every(std::size_t step, std::size_t count) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < count; ++i) places.push_back(i * step);
  return places;
}

struct StepCase {
  const char* what;
  std::string before;  // what the program does first
  std::string pass;    // what it repeats then
  std::size_t step;    // letters and dots of a step that is found
};

class StepsOf : public testing::TestWithParam<StepCase> {};

TEST_P(StepsOf, EndWhereThePassBegins) {
  const StepCase& one = GetParam();
  Program program;
  (void)program.run(one.before + times(60, one.pass));
  EXPECT_EQ(program.run(times(10, one.pass)), every(one.step, 10 * one.pass.size() / one.step));
}

INSTANTIATE_TEST_SUITE_P(
    Programs, StepsOf,
    testing::Values(StepCase{"reduced and waited for one by one", "", "a.b.c.", 6},
                    StepCase{"submitted together", "", "abcdefgh.", 9}, StepCase{"one tensor", "", "a.", 2},
                    StepCase{"weights are sent first", "x.y.z.", "abc.", 4},
                    StepCase{"a first step of its own", "abcd.q.", "abc.", 4},
                    StepCase{"two networks in turn", "", "abc.xy.", 7},
                    StepCase{"a name twice in a pass", "", "ab.ac.", 6},
                    StepCase{"gradients after each backward of four", "", "ab.ab.ab.ab.", 3},
                    StepCase{"layers alike, unnamed", "", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab.", 42},
                    StepCase{"many layers alike, one by one", "", times(40, "a.") + "b.", 82},
                    StepCase{"blocks alike in a network", "", "v." + times(12, "a.b.c.d.e.f.") + "w.-", 149}),
    [](const auto& made) {
      std::string name;
      for (const char* c = made.param.what; *c != 0; ++c) {
        if (*c != ' ' && *c != ',') name += *c;
      }
      return name;
    });

TEST(StepWatch, APassBeginsWhereTheRepetitionDoes) {
  Program program;
  (void)program.run("c." + times(40, "ab.c."));
  EXPECT_EQ(program.run(times(3, "ab.c.")), (std::vector<std::size_t>{3, 8, 13}));
}

TEST(StepWatch, WhatIsNeverWaitedForIsNoStep) {
  Program program;
  EXPECT_TRUE(program.run(times(500, "ab")).empty());
}

TEST(StepWatch, WhatDoesNotRepeatIsNoStep) {
  StepWatch watch;
  for (int i = 0; i < 3000; ++i) {
    EXPECT_FALSE(watch.submitted(StepWatch::token_of(kAllreduce, 0, "allreduce.x" + std::to_string(i), 1), i * kMs));
    watch.waited();
  }
  EXPECT_EQ(watch.pass(), 0U);
}

TEST(StepWatch, APassIsKnownAfterThree) {
  Program program;
  const std::string pass = "abcdefghijklmnopqrstuvwxyz.";
  (void)program.run(times(3, pass));
  EXPECT_EQ(program.watch.pass(), 0U);  // the third is not yet told from one that will be longer
  (void)program.run(pass);
  EXPECT_EQ(program.watch.pass(), pass.size());
}

TEST(StepWatch, AnEvaluationNowAndThenLiesInAStep) {
  Program program;
  (void)program.run(times(40, "abc."));
  EXPECT_EQ(program.run("abc.abc.v.w.abc.abc."), (std::vector<std::size_t>{0, 4, 12, 16}));
}

TEST(StepWatch, AStepThatLeavesSomethingOutIsCountedWithTheNext) {
  Program program;
  (void)program.run(times(40, "abc."));
  EXPECT_EQ(program.run("abc.ab.abc.abc.abc."), (std::vector<std::size_t>{0, 4, 11, 15}));
}

TEST(StepWatch, ResultsNeedNotBeWaitedForEachTime) {
  Program program;
  (void)program.run(times(40, "abc."));
  EXPECT_EQ(program.run("abcabc.a.bc.abc."), (std::vector<std::size_t>{0, 3, 7, 12}));
}

TEST(StepWatch, AProgramThatDoesOtherThingsThenIsLearnedAnew) {
  Program program;
  (void)program.run(times(20, "abc."));
  (void)program.run(times(60, "xy."));
  EXPECT_EQ(program.run(times(5, "xy.")).size(), 5U);
  EXPECT_EQ(program.watch.pass(), 3U);
  (void)program.run(times(60, "abc."));
  EXPECT_EQ(program.run(times(5, "abc.")).size(), 5U);
  EXPECT_EQ(program.watch.pass(), 4U);
}

TEST(StepWatch, WhoSubmitsNothingMoreEndsNoStep) {  // as after join()
  Program program;
  (void)program.run(times(40, "abc."));
  EXPECT_TRUE(program.run("j..").empty());
}

TEST(StepWatch, ShortPassesAreTakenTogether) {
  Program program;
  program.apart_ns = kMs / 10;
  (void)program.run(times(40, "ab."));
  EXPECT_EQ(program.watch.passes_per_step(), 16U);
  EXPECT_EQ(program.run(times(160, "ab.")).size(), 10U);
}

TEST(StepWatch, PassesThatAreShortOnlyLaterAreTakenTogetherThen) {
  Program program;
  (void)program.run(times(16, "ab."));  // 10 ms each
  EXPECT_EQ(program.watch.passes_per_step(), 1U);
  program.apart_ns = kMs / 1000;
  (void)program.run(times(100, "ab."));
  EXPECT_EQ(program.watch.passes_per_step(), 4096U);
  EXPECT_EQ(program.run(times(16'384, "ab.")).size(), 4U);
}

TEST(StepWatch, WhoHadAnotherFirstImpressionOfThePassesComesToEndTheSameSteps) {
  Program slow;
  Program fast;
  fast.apart_ns = kMs / 100;
  const std::string some = times(16, "ab.");
  (void)slow.run(some);
  (void)fast.run(some);
  EXPECT_NE(slow.watch.passes_per_step(), fast.watch.passes_per_step());
  slow.apart_ns = fast.apart_ns;
  (void)slow.run(times(100, "ab."));
  (void)fast.run(times(100, "ab."));
  EXPECT_EQ(slow.run(times(2'560, "ab.")), fast.run(times(2'560, "ab.")));
}

TEST(StepWatch, PassesThatAreShortOnlyMuchLaterAreStillTimed) {
  Program program;
  (void)program.run(times(100, "ab."));
  EXPECT_EQ(program.watch.passes_per_step(), 1U);
  program.apart_ns = kMs / 100;
  (void)program.run(times(2'000, "ab."));
  EXPECT_EQ(program.watch.passes_per_step(), 256U);
}

TEST(StepWatch, LongProgramsAreForgottenInParts) {
  Program program;
  std::string odd;
  for (std::size_t i = 0; i < 3 * StepWatch::kMostTokens; ++i)
    odd += static_cast<char>('A' + (i * i % 257) % 26 + i % 7);
  (void)program.run(odd);
  (void)program.run(times(StepWatch::kMostTokens / 3, "0123."));
  EXPECT_EQ(program.run(times(3, "0123.")), every(5, 3));
}

TEST(StepWatch, UnnamedOperationsAreKnownByTheirSize) {
  const auto token = [](std::string_view name, std::size_t elements, CollectiveKind kind = kAllreduce) {
    return StepWatch::token_of(kind, 0, name, elements);
  };
  EXPECT_EQ(token("allreduce.noname.7", 5), token("allreduce.noname.12", 5));
  EXPECT_NE(token("allreduce.noname.7", 5), token("allreduce.noname.7", 6));
  EXPECT_NE(token("grouped_allreduce.noname.1_1of2", 5), token("grouped_allreduce.noname.1_2of2", 5));
  EXPECT_EQ(token("allgather.noname.7", 5, CollectiveKind::kAllgather),
            token("allgather.noname.8", 6, CollectiveKind::kAllgather));
  EXPECT_EQ(token("allreduce.layer.7", 5), token("allreduce.layer.7", 6));
  EXPECT_NE(token("allreduce.layer.7", 5), token("allreduce.layer.8", 5));
  EXPECT_NE(token("allreduce.x", 5), StepWatch::token_of(kAllreduce, 1, "allreduce.x", 5));
}

TEST(StepWatcher, OtherThreadsDoNotCount) {
  StepWatcher watcher;
  int steps = 0;
  const auto train = [&watcher](int passes) {
    for (int i = 0; i < passes; ++i) {
      watcher.submitted(kAllreduce, 0, "allreduce.a", 1);
      watcher.waited();
    }
  };
  train(100);
  watcher.begin([&steps] { ++steps; });
  std::thread(train, 1000).join();
  EXPECT_EQ(steps, 0);
  train(100'000);
  EXPECT_GT(steps, 0);
  const int before = steps;
  watcher.end();
  train(100'000);
  EXPECT_EQ(steps, before);
}

}  // namespace
}  // namespace ringtune
