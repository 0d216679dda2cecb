#include "copus/train/run/source_notes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace copus {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SourceNotes, EachSourceHasItsSequencesShareAndEpochs) {
  const std::vector<TrainingSource> sources = {{"a.txt", 100, 0.25}, {"c.txt", 1, 0.75}};
  EXPECT_THAT(describe_sources(sources, 2000),
              ElementsAre("source     a.txt: 100 sequences, 25 % of the samples, 5 epochs in this run",
                          "source     c.txt: 1 sequence, 75 % of the samples, 1500 epochs in this run"));
  EXPECT_THAT(describe_sources(sources, 0), ElementsAre("source     a.txt: 100 sequences, 25 % of the samples",
                                                        "source     c.txt: 1 sequence, 75 % of the samples"));
  EXPECT_THAT(describe_sources({{"a.txt", 100, 1}}, 2000), IsEmpty());
}

TEST(SourceNotes, OfManySourcesTheExtremesAreTold) {
  std::vector<TrainingSource> sources(1000, {"b.txt", 10, 0.001});
  sources[7] = {"a.txt", 5, 0.001};
  sources[8] = {"c.txt", 20, 0.001};
  EXPECT_THAT(describe_sources(sources, 0),
              ElementsAre("sources    1000; read most often: a.txt: 5 sequences, 0.1 % of the samples",
                          "           read least often: c.txt: 20 sequences, 0.1 % of the samples"));
}

TEST(SourceNotes, WhatAnEvaluationReadsIsTold) {
  EXPECT_THAT(describe_evaluation({}, {}), IsEmpty());
  EXPECT_THAT(describe_evaluation({{"a.txt", 7}}, {{0, 7, 1}}), IsEmpty());
  EXPECT_THAT(describe_evaluation({{"a.txt", 400}}, {{0, 40, 1}}),
              ElementsAre("evaluates  40 of 400 held-out sequences (10 %; evaluate.max_batches)"));
  EXPECT_THAT(describe_evaluation({{"a.txt", 10}, {"b.txt", 300}}, {{0, 10, 0.25}, {1, 30, 0.75}}),
              ElementsAre("evaluates  40 of 310 held-out sequences (12.9 %; evaluate.max_batches)",
                          "           a.txt: 10 of 10, counts 25 %", "           b.txt: 30 of 300, counts 75 %"));
  EXPECT_THAT(
      describe_evaluation(std::vector<HeldOutSource>(3000, {"a.txt", 1}), std::vector<HeldOutPart>(128, {0, 1, 0.01})),
      ElementsAre(
          "evaluates  128 of 3000 held-out sequences (4.27 %; evaluate.max_batches), of 128 of 3000 sources; of "
          "more than 256 sources the log has no loss of each"));
}

}  // namespace
}  // namespace copus
