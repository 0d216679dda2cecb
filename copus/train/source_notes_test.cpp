#include "copus/train/source_notes.h"

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

}  // namespace
}  // namespace copus
