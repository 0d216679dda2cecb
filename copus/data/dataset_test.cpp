#include "copus/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "copus/data/blend.h"
#include "copus/data/testing/test_corpus.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t none = ignored_target;
constexpr int64_t large_vocabulary = 1 << 30;

// Returns a corpus of distinct tokens, so that a token identifies its position.
std::vector<std::vector<int64_t>> distinct_tokens(int64_t first, int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return {tokens};
}

void expect_equal(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.targets, b.targets);
  EXPECT_EQ(a.loss_tokens, b.loss_tokens);
}

class DatasetTest : public CorpusTest {
 protected:
  static DataConfig config_of(const std::vector<std::string>& paths, double held_out_fraction = 0) {
    DataConfig config;
    for (const std::string& name : paths) config.train.push_back({name});
    config.held_out_fraction = held_out_fraction;
    return config;
  }

  static std::string message_for(const DataConfig& config, int64_t sequence_length = 4, int64_t vocab_size = 256) {
    return user_error([&] { Dataset(config, sequence_length, vocab_size, 1); });
  }
};

TEST_F(DatasetTest, ASampleIsASliceOfTheStreamAndTheTargetIsTheNextToken) {
  DataConfig config = config_of({write_text("a", "abcdefgh")});
  const Dataset data(config, 4, 256, 1);
  const Batch batch = data.train_batch(0, 2);  // 9 tokens: two samples, one epoch
  std::set<std::vector<int64_t>> rows;
  for (int64_t row = 0; row < 2; ++row) {
    std::vector<int64_t> tokens(batch.tokens.begin() + 4 * row, batch.tokens.begin() + 4 * row + 4);
    tokens.push_back(batch.targets[static_cast<std::size_t>(4 * row + 3)]);
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_EQ(batch.targets[static_cast<std::size_t>(4 * row + i)], tokens[static_cast<std::size_t>(i + 1)]);
    rows.insert(tokens);
  }
  EXPECT_EQ(rows, (std::set<std::vector<int64_t>>{{'a', 'b', 'c', 'd', 'e'}, {'e', 'f', 'g', 'h', 0xFF}}));
  EXPECT_EQ(batch.loss_tokens, 8);
  EXPECT_EQ(data.train_tokens(), 8);
  EXPECT_TRUE(data.bytes());
}

TEST_F(DatasetTest, DocumentEndsPredictNothingUnlessAsked) {
  DataConfig config = config_of({write_text("a", "ab--c")});
  config.document_separator = "--";
  config.held_out = {write_text("b", "ab--cde")};
  const Dataset masked(config, 4, 256, 1);
  Batch batch = masked.train_batch(0, 1);
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', 0xFF, 'c'));
  EXPECT_THAT(batch.targets, ElementsAre('b', 0xFF, none, 0xFF));
  EXPECT_EQ(batch.loss_tokens, 3);
  EXPECT_EQ(masked.loss_tokens(0, 1), 3);
  batch = masked.held_out_batch(0, 0, masked.held_out_samples());
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', 0xFF, 'c', 'd', 'e', 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre('b', 0xFF, none, 'd', 'e', 0xFF, none, none));
  EXPECT_EQ(batch.loss_tokens, 5);
  EXPECT_EQ(masked.held_out_tokens(), 6);

  config.mask_document_ends = false;
  const Dataset unmasked(config, 4, 256, 1);
  batch = unmasked.train_batch(0, 1);
  EXPECT_THAT(batch.targets, ElementsAre('b', 0xFF, 'c', 0xFF));
  EXPECT_EQ(unmasked.loss_tokens(0, 1), 4);
}

TEST_F(DatasetTest, DocumentEndsOfAnIndexNeedNoEndToken) {
  write_pair<uint16_t>("a", {{1, 2}, {}, {}, {3}, {4, 5, 6}}, 8);
  const Dataset data(config_of({path("a")}), 5, 100, 1);
  const Batch batch = data.train_batch(0, 1);
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(batch.targets, ElementsAre(2, none, none, 5, 6));
  EXPECT_EQ(batch.loss_tokens, 3);
  EXPECT_EQ(data.loss_tokens(0, 1), 3);
  EXPECT_FALSE(data.bytes());
}

TEST_F(DatasetTest, BatchesSayWhereDocumentsBeginWhereTheseStayApart) {
  write_pair<uint16_t>("a", {{1, 2}, {}, {}, {3}, {4, 5, 6}}, 8);
  write_pair<uint16_t>("b", {{7, 8, 9}, {1, 2, 3, 4}}, 8);
  DataConfig config = config_of({path("a")});
  config.held_out = {path("b")};
  EXPECT_THAT(Dataset(config, 5, 100, 1).train_batch(0, 1).document_starts, IsEmpty());
  config.mask_across_documents = true;
  for (const bool mask_document_ends : {true, false}) {
    config.mask_document_ends = mask_document_ends;
    const Dataset data(config, 5, 100, 1);
    EXPECT_THAT(data.train_batch(0, 1).document_starts, ElementsAre(0, 0, 2, 3, 3));
    // The second document continues in the second sample, whose padding is a document of its own.
    EXPECT_THAT(data.held_out_batch(0, 0, 2).document_starts, ElementsAre(0, 0, 0, 3, 3, 0, 1, 1, 1, 1));
  }
}

TEST_F(DatasetTest, ByDefaultDocumentsStayApartWhereASourceHasSeveral) {
  write_text("one", "a single document");
  write_text("two", "several|documents");
  write_pair<uint16_t>("pair-0", {{1, 2, 3}, {4, 5, 6}}, 8);
  write_pair<uint16_t>("pair-1", {{1, 2, 3, 4, 5, 6}}, 8);
  const auto masks = [&](DataConfig config, bool masks_by_default = true) {
    config.document_separator = "|";
    return Dataset(config, 4, 256, 1, masks_by_default).masks_across_documents();
  };
  EXPECT_FALSE(masks(config_of({path("one")})));
  EXPECT_TRUE(masks(config_of({path("two")})));
  EXPECT_TRUE(masks(config_of({path("one"), path("two")})));
  EXPECT_TRUE(masks(config_of({path("pair-0")})));
  EXPECT_FALSE(masks(config_of({path("pair-1")})));
  EXPECT_FALSE(masks(config_of({path("two")}), false));
  DataConfig config = config_of({path("pair-*")});
  config.shuffle_shards = true;
  EXPECT_TRUE(masks(config));
  config.mask_across_documents = false;
  EXPECT_FALSE(masks(config));
  EXPECT_TRUE(Dataset(config, 4, 256, 1, true).has_several_documents());
  config.mask_across_documents = true;
  EXPECT_TRUE(masks(config, false));
}

TEST_F(DatasetTest, TheDefaultHasTheFingerprintOfTheSettingThatItStandsFor) {
  write_text("two", "several|documents");
  DataConfig config = config_of({path("two")});
  config.document_separator = "|";
  const std::string by_default = Dataset(config, 4, 256, 1, true).fingerprint();
  EXPECT_NE(by_default, Dataset(config, 4, 256, 1, false).fingerprint());
  config.mask_across_documents = true;
  EXPECT_EQ(by_default, Dataset(config, 4, 256, 1).fingerprint());
}

TEST_F(DatasetTest, ADocumentEndBelongsToTheSampleThatReadsIt) {
  write_pair<uint16_t>("a", {{1, 2}, {3, 4, 5}}, 8);  // the first document and the first sample end together
  const Dataset data(config_of({path("a")}), 2, 100, 1);
  const Batch batch = data.train_batch(0, 2);
  const std::size_t first = batch.tokens[0] == 1 ? 0 : 2;
  const std::size_t second = 2 - first;
  EXPECT_EQ(batch.targets[first], 2);
  EXPECT_EQ(batch.targets[first + 1], none);
  EXPECT_EQ(batch.targets[second], 4);
  EXPECT_EQ(batch.targets[second + 1], 5);
}

// Checks, for random blends, that every epoch of every source visits each of its samples exactly once.
TEST_F(DatasetTest, EveryEpochVisitsEverySampleOnce) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 12; ++trial) {
    const auto length = static_cast<int64_t>(1 + random() % 9);
    const auto num_sources = static_cast<int64_t>(1 + random() % 4);
    DataConfig config;
    config.held_out_fraction = 0;
    std::vector<int64_t> samples;
    for (int64_t source = 0; source < num_sources; ++source) {
      const auto tokens = static_cast<int64_t>(1 + static_cast<uint64_t>(length) * (1 + random() % 40) +
                                               random() % static_cast<uint64_t>(length));
      const std::string name = concat("source", trial, "-", source);
      write_pair<int32_t>(name, distinct_tokens(source * 100000, tokens), 4);
      config.train.push_back({path(name), std::exp(std::uniform_real_distribution<double>(-1, 1)(random))});
      samples.push_back((tokens - 1) / length);
    }
    const Dataset data(config, length, large_vocabulary, random());
    constexpr int64_t consumed = 6000;  // spans two blocks
    const Batch batch = data.train_batch(0, consumed);
    std::vector<std::vector<int64_t>> visited(samples.size());
    for (int64_t row = 0; row < consumed; ++row) {
      const int64_t token = batch.tokens[static_cast<std::size_t>(row * length)];
      ASSERT_EQ(token % 100000 % length, 0);
      visited[static_cast<std::size_t>(token / 100000)].push_back(token % 100000 / length);
    }
    for (std::size_t source = 0; source < samples.size(); ++source) {
      const auto in_epoch = static_cast<std::size_t>(samples[source]);
      ASSERT_GE(visited[source].size(), in_epoch);
      for (std::size_t begin = 0; begin + in_epoch <= visited[source].size(); begin += in_epoch) {
        const auto epoch = visited[source].begin() + static_cast<std::ptrdiff_t>(begin);
        const std::set<int64_t> seen(epoch, epoch + samples[source]);
        ASSERT_EQ(seen.size(), in_epoch) << "source " << source << ", epoch at " << begin;
        ASSERT_EQ(*seen.rbegin(), samples[source] - 1);
      }
    }
  }
}

TEST_F(DatasetTest, BatchesJoinSeamlessly) {
  std::mt19937_64 random(12);
  DataConfig config = config_of({write_text("a", std::string(500, 'a')), write_text("b", std::string(333, 'b'))});
  config.train[1].weight = 2.5;
  for (int trial = 0; trial < 20; ++trial) {
    const Dataset data(config, static_cast<int64_t>(1 + random() % 20), 256, random());
    const uint64_t first = random() % 10000;
    const auto n = static_cast<int64_t>(random() % 50);
    const auto m = static_cast<int64_t>(random() % 50);
    Batch joined = data.train_batch(first, n);
    const Batch rest = data.train_batch(first + static_cast<uint64_t>(n), m);
    joined.tokens.insert(joined.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    joined.targets.insert(joined.targets.end(), rest.targets.begin(), rest.targets.end());
    joined.loss_tokens += rest.loss_tokens;
    expect_equal(joined, data.train_batch(first, n + m));
    EXPECT_EQ(joined.loss_tokens, data.loss_tokens(first, n + m));
  }
}

TEST_F(DatasetTest, LossTokensAgreeWithTheTargets) {
  std::mt19937_64 random(13);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "abc|"[random() % 4];
  DataConfig config = config_of({write_text("a", text)}, 0.1);
  config.document_separator = "|";
  const Dataset data(config, 16, 256, 1);
  for (const Batch& batch : {data.train_batch(5, 40), data.held_out_batch(0, 0, data.held_out_samples())}) {
    const auto ignored = std::count(batch.targets.begin(), batch.targets.end(), none);
    EXPECT_EQ(batch.loss_tokens, static_cast<int64_t>(batch.targets.size()) - ignored);
    EXPECT_GT(ignored, 0);
  }
  EXPECT_EQ(data.loss_tokens(5, 40), data.train_batch(5, 40).loss_tokens);
}

TEST_F(DatasetTest, TheOrderIsAFunctionOfTheSeed) {
  write_pair<int32_t>("a", distinct_tokens(0, 2000), 4);
  const DataConfig config = config_of({path("a")});
  const Dataset data(config, 4, large_vocabulary, 7);
  expect_equal(data.train_batch(0, 100), Dataset(config, 4, large_vocabulary, 7).train_batch(0, 100));
  EXPECT_NE(data.train_batch(0, 100).tokens, Dataset(config, 4, large_vocabulary, 8).train_batch(0, 100).tokens);
  EXPECT_NE(data.train_batch(0, 100).tokens, data.train_batch(499, 100).tokens);  // samples of the next epoch
}

TEST_F(DatasetTest, FarOutSamplesAreReadAtOnce) {
  write_pair<int32_t>("a", distinct_tokens(0, 2000), 4);
  write_pair<int32_t>("b", distinct_tokens(5000, 3000), 4);
  const Dataset data(config_of({path("a"), path("b")}), 4, large_vocabulary, 7);
  const uint64_t far = 1'000'000'000'000;
  EXPECT_EQ(data.train_batch(far, 3).tokens.size(), 12u);
  expect_equal(data.train_batch(far, 3), data.train_batch(far, 3));
}

TEST_F(DatasetTest, SourcesAreBlendedByWeight) {
  write_text("a", std::string(1000, 'a'));
  write_text("b", std::string(1000, 'b'));
  DataConfig config = config_of({path("a"), path("b")});
  config.train[1].weight = 3;
  const Batch batch = Dataset(config, 10, 256, 1).train_batch(0, 1000);
  int64_t from_b = 0;
  for (int64_t row = 0; row < 1000; ++row) from_b += batch.tokens[static_cast<std::size_t>(10 * row)] == 'b' ? 1 : 0;
  EXPECT_EQ(from_b, 750);
}

TEST_F(DatasetTest, SourcesWithoutWeightsAreOneCorpus) {
  constexpr int64_t length = 4;
  DataConfig config;
  config.held_out_fraction = 0;
  std::vector<int64_t> expected;  // the first token of every sequence
  for (const int64_t sequences : {100, 1, 5000}) {
    const auto source = static_cast<int64_t>(config.train.size());
    const std::string name = concat("s", source);
    write_pair<int32_t>(name, distinct_tokens(source * 100000, sequences * length + 1), 4);
    config.train.push_back({path(name)});
    for (int64_t i = 0; i < sequences; ++i) expected.push_back(source * 100000 + i * length);
  }
  const Dataset data(config, length, large_vocabulary, 3);
  const auto count = static_cast<int64_t>(expected.size());
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const Batch batch = data.train_batch(static_cast<uint64_t>(epoch * count), count);
    std::vector<int64_t>& read = epochs.emplace_back();
    for (int64_t row = 0; row < count; ++row) read.push_back(batch.tokens[static_cast<std::size_t>(row * length)]);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (std::vector<int64_t>& epoch : epochs) {
    std::ranges::sort(epoch);
    EXPECT_EQ(epoch, expected);
  }
  const std::vector<TrainingSource> sources = data.training_sources();
  ASSERT_EQ(sources.size(), 3u);
  EXPECT_EQ(sources[2].sequences, 5000);
  EXPECT_DOUBLE_EQ(sources[2].share, 5000.0 / 5101);
}

// No token is both held out and read in training, as input or target. At most one token between the two parts is
// unused.
TEST_F(DatasetTest, TheHeldOutTailIsNeverTrainedOn) {
  for (const int64_t size : {9, 10, 11, 12, 13, 100, 257, 1000}) {
    for (const double fraction : {1e-9, 0.01, 0.3, 0.9999}) {
      write_pair<int32_t>("a", distinct_tokens(0, size), 4);
      const Dataset data(config_of({path("a")}, fraction), 4, large_vocabulary, 1);
      std::set<int64_t> trained;
      const Batch train = data.train_batch(0, data.train_tokens() / 4);
      trained.insert(train.tokens.begin(), train.tokens.end());
      trained.insert(train.targets.begin(), train.targets.end());
      const Batch held_out = data.held_out_batch(0, 0, data.held_out_samples());
      std::vector<int64_t> targets;
      for (const int64_t target : held_out.targets)
        if (target != none) targets.push_back(target);
      ASSERT_EQ(static_cast<int64_t>(targets.size()), data.held_out_tokens());
      ASSERT_GE(targets.size(), 1u);
      EXPECT_EQ(held_out.tokens[0], *trained.rbegin() + 1);
      EXPECT_EQ(targets.front(), held_out.tokens[0] + 1);
      EXPECT_EQ(targets.back(), size - 1);
      EXPECT_EQ(static_cast<int64_t>(trained.size()), data.train_tokens() + 1);
      EXPECT_EQ(std::set<int64_t>(targets.begin(), targets.end()).size(), targets.size());
    }
  }
}

TEST_F(DatasetTest, TheHeldOutTailHasTheWantedSize) {
  write_pair<int32_t>("a", distinct_tokens(0, 100001), 4);
  const Dataset data(config_of({path("a")}, 0.05), 10, large_vocabulary, 1);
  EXPECT_NEAR(static_cast<double>(data.held_out_tokens()), 5000, 10);
  EXPECT_EQ(Dataset(config_of({path("a")}), 10, large_vocabulary, 1).held_out_samples(), 0);
}

TEST_F(DatasetTest, EveryHeldOutFileHasItsPartOfAnEvaluation) {
  DataConfig config = config_of({write_text("a", std::string(100, 'a'))}, 0.5);
  config.held_out = {write_text("b", "bcdefg"), write_text("c", "x"), path("b")};
  const Dataset data(config, 4, 256, 1);
  EXPECT_EQ(data.train_tokens(), 100);  // with data.held_out, no training file has a held-out tail
  ASSERT_EQ(data.held_out_samples(), 5);
  EXPECT_EQ(data.held_out_tokens(), 13);
  ASSERT_EQ(data.held_out_sources().size(), 3u);
  EXPECT_EQ(data.held_out_sources()[1].name, path("c"));
  EXPECT_EQ(data.held_out_sources()[2].name, path("b") + " (2)");
  const Batch batch = data.held_out_batch(0, 0, 2);
  EXPECT_THAT(batch.tokens, ElementsAre('b', 'c', 'd', 'e', 'f', 'g', 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre('c', 'd', 'e', 'f', 'g', 0xFF, none, none));
  EXPECT_THAT(data.held_out_batch(1, 0, 1).tokens, ElementsAre('x', 0, 0, 0));
  const auto parts = data.held_out_parts(3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_DOUBLE_EQ(parts[1].weight, 1.0 / 13);
}

TEST_F(DatasetTest, TailsAreEvaluatedAsTheirSourcesAreTrainedOn) {
  DataConfig config = config_of({write_text("a", std::string(1000, 'a')), write_text("b", std::string(3000, 'b')),
                                 write_text("c", std::string(1000, 'c'))},
                                0.2);
  const auto samples = [&] {
    std::vector<int64_t> counts;
    for (const HeldOutPart& part : Dataset(config, 4, 256, 1).held_out_parts(40)) counts.push_back(part.samples);
    return counts;
  };
  EXPECT_THAT(samples(), ElementsAre(8, 24, 8));
  config.train[2].weight = 2;
  EXPECT_THAT(samples(), ElementsAre(10, 10, 20));
}

TEST_F(DatasetTest, TheFingerprintNamesContentsAndOrderNotPaths) {
  const std::string text(1000, 'a');
  const DataConfig config = config_of({write_text("a", text)});
  const std::string fingerprint = Dataset(config, 4, 256, 1).fingerprint();
  EXPECT_EQ(Dataset(config_of({write_text("other", text)}), 4, 256, 1).fingerprint(), fingerprint);

  std::set<std::string> others = {fingerprint};
  others.insert(Dataset(config, 5, 256, 1).fingerprint());
  others.insert(Dataset(config, 4, 256, 2).fingerprint());
  others.insert(Dataset(config_of({path("a")}, 0.1), 4, 256, 1).fingerprint());
  others.insert(Dataset(config_of({path("a"), path("other")}), 4, 256, 1).fingerprint());
  others.insert(Dataset(config_of({write_text("b", text + "b")}), 4, 256, 1).fingerprint());
  others.insert(Dataset(config_of({write_text("c", "b" + text.substr(1))}), 4, 256, 1).fingerprint());
  others.insert(Dataset(config_of({write_text("d", text.substr(1) + "b")}), 4, 256, 1).fingerprint());
  DataConfig changed = config;
  changed.mask_document_ends = false;
  others.insert(Dataset(changed, 4, 256, 1).fingerprint());
  changed.mask_across_documents = true;
  others.insert(Dataset(changed, 4, 256, 1).fingerprint());
  changed = config_of({path("a"), path("other")});
  changed.train[1].weight = 1;
  others.insert(Dataset(changed, 4, 256, 1).fingerprint());
  EXPECT_EQ(others.size(), 11u);

  changed = config;
  changed.held_out = {path("c")};
  EXPECT_EQ(Dataset(changed, 4, 256, 1).fingerprint(), fingerprint);  // held-out data do not change it
}

// The lengths of documents differ between the corpus' beginning and end, and between sources.
TEST_F(DatasetTest, MeasuresTheDocumentsOfAllSourcesInTheirShares) {
  const auto documents_of = [](int64_t length, int64_t count) {
    return std::vector<std::vector<int64_t>>(static_cast<size_t>(count), std::vector<int64_t>(length, 1));
  };
  write_pair<uint16_t>("short", documents_of(4, 4000), 8);
  write_pair<uint16_t>("long", documents_of(64, 250), 8);
  const auto measure = [](const DataConfig& config) { return Dataset(config, 64, 256, 3).document_lengths(); };
  EXPECT_DOUBLE_EQ(measure(config_of({path("short")})).of_a_token, 4);
  EXPECT_DOUBLE_EQ(measure(config_of({path("short")})).deviation, 0);
  EXPECT_DOUBLE_EQ(measure(config_of({path("long")})).of_a_token, 64);
  const DocumentLengths both = measure(config_of({path("short"), path("long")}));
  EXPECT_NEAR(both.of_a_token, 34, 0.2);
  EXPECT_NEAR(both.deviation, 30.0 / 34, 0.02);
  DataConfig weighted = config_of({path("short"), path("long")});
  weighted.train[0].weight = 9;
  EXPECT_NEAR(measure(weighted).of_a_token, 0.9 * 4 + 0.1 * 64, 0.2);
  auto mixed = documents_of(4, 4000);
  for (const auto& document : documents_of(64, 250)) mixed.push_back(document);
  write_pair<uint16_t>("mixed", mixed, 8);
  EXPECT_NEAR(measure(config_of({path("mixed")})).of_a_token, 34, 3);
  DataConfig shards = config_of({path("[sl]*")});
  shards.shuffle_shards = true;
  EXPECT_NEAR(measure(shards).of_a_token, 34, 0.2);
}

// Runs resume only with the same fingerprint, so it must not change between machines and versions.
TEST_F(DatasetTest, TheOrderOfOldRunsStays) {
  write_text("a", "The order of a run must outlive the program that began it.");
  write_text("b", "So must its fingerprint, or nothing could be resumed.");
  DataConfig config = config_of({path("a"), path("b")}, 0.1);
  config.train[1].weight = 2;
  const Dataset data(config, 8, 256, 1234);
  const Batch batch = data.train_batch(5, 4);
  std::string text(batch.tokens.begin(), batch.tokens.end());
  EXPECT_EQ(text, " or nothits finging coulun must ");
  EXPECT_EQ(data.fingerprint(), "d56679195746b1ce");
}

TEST_F(DatasetTest, TheFingerprintOfASmallSourceSeesEveryTokenAndEveryEndOfADocument) {
  const std::vector<std::vector<int64_t>> documents(50, {1, 2, 3, 4});
  const auto fingerprint = [&](const std::vector<std::vector<int64_t>>& changed) {
    write_pair<uint16_t>("a", changed, 8);
    return Dataset(config_of({path("a")}), 4, 256, 1).fingerprint();
  };
  const std::string before = fingerprint(documents);
  for (size_t document = 0; document < documents.size(); ++document) {
    std::vector<std::vector<int64_t>> changed = documents;
    changed[document][2] = 9;
    EXPECT_NE(fingerprint(changed), before) << "a token of document " << document;
    if (document + 1 == documents.size()) continue;
    changed = documents;
    changed[document + 1].insert(changed[document + 1].begin(), changed[document].back());
    changed[document].pop_back();
    EXPECT_NE(fingerprint(changed), before) << "the end of document " << document;
  }
}

TEST_F(DatasetTest, RefusesACorpusShorterThanOneSequence) {
  write_text("a", "abc");
  EXPECT_THAT(message_for(config_of({path("a")})),
              AllOf(HasSubstr("/a: is too short"), HasSubstr("has 4 tokens"), HasSubstr("5 are needed"),
                    HasSubstr("train.sequence_length")));
  EXPECT_THAT(message_for(config_of({path("a")}, 0.01)), HasSubstr("9 are needed"));
  write_text("a", "abcd");
  EXPECT_EQ(message_for(config_of({path("a")})), "no UserError");
  write_text("a", "abcdefg");
  EXPECT_THAT(message_for(config_of({path("a")}, 0.01)), HasSubstr("has 8 tokens"));
  write_text("a", "abcdefgh");
  EXPECT_EQ(message_for(config_of({path("a")}, 0.01)), "no UserError");
}

TEST_F(DatasetTest, RefusesAHeldOutFileWithNothingToPredict) {
  write_pair<uint16_t>("a", distinct_tokens(0, 50), 8);
  write_pair<uint16_t>("b", {{1}}, 8);
  DataConfig config = config_of({path("a")});
  config.held_out = {path("b")};
  EXPECT_THAT(message_for(config), HasSubstr("too short to hold out"));
}

TEST_F(DatasetTest, RefusesWeightsThatDoNotBlend) {
  DataConfig config = config_of({write_text("a", std::string(100, 'a')), write_text("b", std::string(100, 'b'))});
  for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    config.train[1].weight = weight;
    EXPECT_THAT(message_for(config), AllOf(HasSubstr("weight of"), HasSubstr("/b"), HasSubstr("positive")));
  }
  config.train[1].weight = 1e-5;
  EXPECT_EQ(message_for(config), "no UserError");
  EXPECT_THAT(message_for(DataConfig{}), HasSubstr("names no corpus"));
}

TEST_F(DatasetTest, RefusesTextBesideTokens) {
  write_text("a", std::string(100, 'a'));
  write_pair<uint16_t>("b", distinct_tokens(0, 50), 8);
  EXPECT_THAT(message_for(config_of({path("a"), path("b")})), HasSubstr("do not go together"));
}

TEST_F(DatasetTest, RefusesToEvaluateOnWhatIsTrainedOn) {
  DataConfig config = config_of({write_text("a", std::string(100, 'a'))});
  config.held_out = {path("./a")};
  EXPECT_THAT(message_for(config), HasSubstr("also trained on"));
}

TEST_F(DatasetTest, RefusesSourcesThatTrainOnEachOthersTails) {
  write_text("a.txt", std::string(100, 'a'));
  write_text("b.txt", std::string(100, 'b'));
  std::filesystem::create_symlink(path("b.txt"), path("link"));
  for (const std::string& other : {path("b.txt"), path("link"), path("[b]*")}) {
    DataConfig config = config_of({path("*.txt"), other}, 0.1);
    config.train[1].weight = 3;
    EXPECT_THAT(message_for(config), AllOf(HasSubstr("/*.txt and " + other + " share"), HasSubstr("data.held_out")));
    config.held_out_fraction = 0;
    EXPECT_EQ(message_for(config), "no UserError") << "nothing is held out";
    config.held_out_fraction = 0.1;
    config.held_out = {write_text("c", "other words")};
    EXPECT_EQ(message_for(config), "no UserError");
  }
  for (const char* same : {"b.txt", "*.txt"}) {
    EXPECT_EQ(message_for(config_of({path(same), path(same)}, 0.1)), "no UserError") << "both have the same tail";
  }
  EXPECT_EQ(message_for(config_of({path("b.txt"), path("link")}, 0.1)), "no UserError");
  write_pair<uint16_t>("pair", distinct_tokens(0, 50), 8);
  write_pair<uint16_t>("pairs", distinct_tokens(50, 50), 8);
  EXPECT_THAT(message_for(config_of({path("pair*"), path("pairs")}, 0.1)), HasSubstr("pairs.idx"));
  EXPECT_EQ(message_for(config_of({path("pair"), path("pairs")}, 0.1)), "no UserError");
}

TEST_F(DatasetTest, NoticesAnotherTokenizerWhenItOpensTheCorpus) {
  write_pair<uint16_t>("a", distinct_tokens(0, 5000), 8);
  EXPECT_THAT(message_for(config_of({path("a")}), 4, 300), AllOf(HasSubstr("a.bin"), HasSubstr("vocabulary of 300")));
}

TEST_F(DatasetTest, ACorpusWithoutALossSaysSo) {
  const std::vector<std::vector<int64_t>> single(40, {7});
  write_pair<uint16_t>("single", single, 8);
  write_pair<uint16_t>("whole", {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}, 8);
  DataConfig config = config_of({path("single")});
  EXPECT_THAT(message_for(config),
              AllOf(HasSubstr("single"), HasSubstr("no token carries loss"), HasSubstr("mask_document_ends")));
  EXPECT_THAT(message_for(config_of({path("whole"), path("single")})), HasSubstr("single"));
  DataConfig held_out = config_of({path("whole")});
  held_out.held_out = {path("single")};
  EXPECT_THAT(message_for(held_out), HasSubstr("single"));
  config.mask_document_ends = false;
  EXPECT_EQ(Dataset(config, 4, 256, 1).loss_tokens(0, 1), 4);
  // Empty documents do not count. A document of two tokens counts.
  std::vector<std::vector<int64_t>> mixed = single;
  for (int i = 0; i < 40; ++i) mixed.emplace_back();
  mixed.push_back({7, 8, 9});
  write_pair<uint16_t>("mixed", mixed, 8);
  DataConfig some = config_of({path("mixed")});
  EXPECT_EQ(message_for(some, 6), "no UserError");
  mixed.back() = {7};
  write_pair<uint16_t>("mixed", mixed, 8);
  EXPECT_THAT(message_for(some, 6), HasSubstr("no token carries loss"));
}

}  // namespace
}  // namespace copus
