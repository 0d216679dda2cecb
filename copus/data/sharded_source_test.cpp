#include "copus/data/sharded_source.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>

#include "copus/data/dataset.h"
#include "copus/data/testing/test_corpus.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ShardedSourceTest : public CorpusTest {
 protected:
  static DataConfig config_of(const std::string& train) {
    DataConfig config;
    config.train = {{.path = train}};
    config.held_out_fraction = 0.2;
    return config;
  }

  std::string refused(const std::string& pattern) const {
    return user_error([&] { open_token_source(pattern, "", 1000); });
  }
};

TEST_F(ShardedSourceTest, FindsPairsByEitherHalfOrThePrefixAndTextByItsName) {
  write_pair<uint16_t>("web-2", {{1}}, 8);
  write_pair<uint16_t>("web-10", {{2}}, 8);
  std::filesystem::create_directory(path("web-2.tokenizer"));
  for (const char* pattern : {"web-*", "web-*.bin", "web-*.idx", "web-?*[xn]"}) {
    EXPECT_THAT(corpora_of(path(pattern)), ElementsAre(path("web-10"), path("web-2"))) << pattern;
  }
  write_text("b.txt", "b");
  write_text("a.txt", "a");
  EXPECT_THAT(corpora_of(path("*.txt")), ElementsAre(path("a.txt"), path("b.txt")));
}

// Splitting a corpus into shards at document ends changes neither the training data nor their fingerprint.
TEST_F(ShardedSourceTest, ShardsAreTheCorpusThatTheyWereCutFrom) {
  std::mt19937 random(5);
  std::vector<std::vector<int64_t>> documents;
  for (int document = 0; document < 300; ++document) {
    documents.emplace_back();
    for (auto left = random() % 40; left > 0; --left) documents.back().push_back(static_cast<int64_t>(random() % 1000));
  }
  write_pair<uint16_t>("whole", documents, 8);
  const Dataset whole(config_of(path("whole")), 16, 1000, 7);
  for (const size_t shards : {1, 3, 40}) {
    const std::string prefix = "in" + std::to_string(shards) + "-";
    for (size_t shard = 0; shard < shards; ++shard) {
      const auto cut = [&](size_t i) { return documents.begin() + static_cast<std::ptrdiff_t>(i * 300 / shards); };
      write_pair<uint16_t>(prefix + std::to_string(100 + shard), {cut(shard), cut(shard + 1)}, 8);
    }
    const Dataset sharded(config_of(path(prefix + "*")), 16, 1000, 7);
    EXPECT_EQ(sharded.fingerprint(), whole.fingerprint());
    const Batch expected = whole.train_batch(0, 700), batch = sharded.train_batch(0, 700);
    EXPECT_EQ(batch.tokens, expected.tokens);
    EXPECT_EQ(batch.targets, expected.targets);
    EXPECT_EQ(sharded.loss_tokens(100, 300), whole.loss_tokens(100, 300));
    EXPECT_EQ(sharded.held_out_batch(0, 0, 5).tokens, whole.held_out_batch(0, 0, 5).tokens);
  }
}

TEST_F(ShardedSourceTest, TextShardsEndADocumentEach) {
  write_text("a.txt", "ab");
  write_text("b.txt", "c--d");
  const auto source = open_token_source(path("?.txt"), "--", 256);
  std::vector<int64_t> tokens(static_cast<size_t>(source->size()));
  source->read(0, source->size(), tokens.data());
  EXPECT_THAT(tokens, ElementsAre('a', 'b', 0xFF, 'c', 0xFF, 'd', 0xFF));
  ASSERT_EQ(source->num_documents(), 3);
  EXPECT_EQ(source->document_end(0), 3);
  EXPECT_EQ(source->document_end(1), 5);
  EXPECT_EQ(source->document_end(2), 7);
  EXPECT_EQ(source->document_at(3), 1);
}

TEST_F(ShardedSourceTest, AFileWithTheNameOfAPatternIsThatFile) {
  write_text("*.txt", "of its own");
  write_text("a.txt", "another");
  EXPECT_EQ(open_token_source(path("*.txt"), "", 256)->size(), 11);
}

TEST_F(ShardedSourceTest, NamesWhatIsWrongWithAPatternOrAShard) {
  EXPECT_THAT(refused(path("no-*")), AllOf(HasSubstr("no-*"), HasSubstr("no file matches")));
  write_pair<uint16_t>("web-1", {{1}}, 8);
  write_text("web-2", "text");
  EXPECT_THAT(refused(path("web-*")), AllOf(HasSubstr("web-1"), HasSubstr("web-2"), HasSubstr("one is text")));
  write_pair<uint16_t>("half-1", {{1}}, 8);
  write_pair<uint16_t>("half-2", {{1}}, 8);
  std::filesystem::remove(path("half-2.idx"));
  EXPECT_THAT(refused(path("half-*")), AllOf(HasSubstr("half-2.idx"), HasSubstr("missing")));
  write_pair<uint16_t>("short-1", {{1}}, 8);
  write_pair<uint16_t>("short-2", {{1, 2, 3}}, 8);
  std::filesystem::resize_file(path("short-2.bin"), 4);
  EXPECT_THAT(refused(path("short-*.bin")), AllOf(HasSubstr("short-2"), HasSubstr("disagrees with its .idx")));
}

TEST_F(ShardedSourceTest, WhatAPatternTrainsOnCannotBeHeldOut) {
  for (const char* name : {"web-1", "web-2"}) write_pair<uint16_t>(name, {{1, 2, 3, 4}, {5, 6, 7, 8}}, 8);
  for (const auto& [train, held_out] :
       {std::pair{"web-*", "web-2"}, {"w*-[12]", "web-2"}, {"web-*.idx", "web-1"}, {"web-2", "*-[12]"}}) {
    DataConfig config = config_of(path(train));
    config.held_out = {path(held_out)};
    EXPECT_THAT(user_error([&] { Dataset(config, 2, 1000, 1); }), HasSubstr("is also trained on")) << train;
  }
}

TEST_F(ShardedSourceTest, AShardWithoutTokensIsMissingAndNotLeftOut) {
  for (const char* name : {"web-1", "web-2"}) write_pair<uint16_t>(name, {{1, 2, 3, 4}}, 8);
  std::filesystem::remove(path("web-2.bin"));
  EXPECT_THAT(refused(path("web-*")), AllOf(HasSubstr("web-2.bin"), HasSubstr("missing")));
}

TEST_F(ShardedSourceTest, APatternForAllShardsIsNotForSomeOfThem) {
  for (const char* name : {"web-00000-of-00003", "web-00002-of-00003"}) write_pair<uint16_t>(name, {{1, 2, 3}}, 8);
  EXPECT_THAT(refused(path("web-*-of-00003")),
              AllOf(HasSubstr("web-00001-of-00003.idx is missing"), HasSubstr("all 3")));
  EXPECT_EQ(open_token_source(path("web-*"), "", 1000)->size(), 6) << "a pattern that names no number";
}

class ShuffledShards : public ShardedSourceTest {
 protected:
  // Writes twelve shards of different lengths, all tokens distinct.
  ShuffledShards() {
    int64_t next = 0;
    for (int64_t shard = 0; shard < shards; ++shard) {
      std::vector<std::vector<int64_t>> documents;
      for (int64_t document = 0; document <= shard % 5; ++document) {
        documents.emplace_back();
        for (int64_t token = 0; token < 7 + 3 * shard; ++token) documents.back().push_back(next++);
      }
      write_pair<uint16_t>(name_of(shard), documents, 8);
    }
    tokens_ = next;
  }

  static std::string name_of(int64_t shard) {
    return "web-000" + std::string(shard < 10 ? "0" : "") + std::to_string(shard) + "-of-00012";
  }
  std::string bin_of(int64_t shard) const { return path(name_of(shard) + ".bin"); }
  DataConfig config() const {
    DataConfig config = config_of(path("web-*-of-00012"));
    config.held_out_fraction = 0;
    config.shuffle_shards = true;
    config.mask_document_ends = false;
    return config;
  }
  Dataset open(const DataConfig& config) const { return {config, sequence_length, 1 << 16, 7}; }
  Dataset open() const { return open(config()); }

  static constexpr int64_t shards = 12, sequence_length = 16;
  int64_t tokens_ = 0;
};

TEST_F(ShuffledShards, AnEpochPredictsEveryTokenThatFollowsAnotherOnce) {
  const Dataset data = open();
  const int64_t sequences = data.training_sources().front().sequences;
  for (const uint64_t epoch : {0, 1}) {
    const Batch batch = data.train_batch(epoch * static_cast<uint64_t>(sequences), sequences);
    std::multiset<int64_t> targets;
    for (const int64_t target : batch.targets) {
      if (target != ignored_target) targets.insert(target);
    }
    EXPECT_EQ(std::ssize(targets), tokens_ - shards) << "all but the first token of each shard";
    EXPECT_EQ(std::set(targets.begin(), targets.end()).size(), targets.size());
    EXPECT_EQ(batch.loss_tokens, tokens_ - shards);
    EXPECT_EQ(data.loss_tokens(epoch * static_cast<uint64_t>(sequences), sequences), batch.loss_tokens);
  }
  EXPECT_EQ(data.train_tokens(), tokens_ - shards);
}

// The fingerprint and the order of samples do not depend on which shards have arrived.
TEST_F(ShuffledShards, NothingButReadingNeedsTheTokens) {
  const Dataset whole = open();
  const int64_t sequences = whole.training_sources().front().sequences;
  std::filesystem::create_directory(path("remote"));
  for (int64_t shard = 0; shard < shards; ++shard) {
    std::filesystem::rename(bin_of(shard), path("remote") + "/" + std::to_string(shard));
  }
  const Dataset data = open();
  EXPECT_EQ(data.fingerprint(), whole.fingerprint());
  EXPECT_EQ(data.train_tokens(), whole.train_tokens());
  EXPECT_EQ(data.loss_tokens(3, 40), whole.loss_tokens(3, 40));
  EXPECT_EQ(data.shards_from(0, 100), whole.shards_from(0, 100));
  EXPECT_THAT(user_error([&] { data.train_batch(0, 1); }), AllOf(HasSubstr("web-000"), HasSubstr("is missing")));

  // The shards arrive in the order of the list, each just before a sample needs it.
  const std::vector<std::string> order = data.shards_from(0, shards);
  ASSERT_EQ(std::ssize(order), shards);
  size_t arrived = 0;
  for (int64_t sample = 0; sample < sequences; ++sample) {
    while (const auto missing = data.missing_shard(static_cast<uint64_t>(sample), 1)) {
      ASSERT_LT(arrived, order.size());
      for (int64_t shard = 0; shard < shards; ++shard) {
        if (path(name_of(shard)) != order[arrived]) continue;
        std::filesystem::rename(path("remote") + "/" + std::to_string(shard), bin_of(shard));
      }
      ++arrived;
    }
    EXPECT_LE(arrived, static_cast<size_t>(4 * (1 + sample)));
    EXPECT_EQ(data.train_batch(static_cast<uint64_t>(sample), 1).tokens,
              whole.train_batch(static_cast<uint64_t>(sample), 1).tokens);
  }
  EXPECT_EQ(arrived, order.size());
}

TEST_F(ShuffledShards, AShardIsHereWhenItIsAsLongAsItsIndexSays) {
  const Dataset data = open();
  const std::string first = data.shards_from(0, 1).front() + ".bin";
  const int64_t sequences = data.training_sources().front().sequences;
  const auto bytes = std::filesystem::file_size(first);
  EXPECT_EQ(data.missing_shard(0, sequences), std::nullopt);
  EXPECT_EQ(data.num_shards_of(0, sequences), shards);
  EXPECT_EQ(data.missing_shard_bytes(0, sequences), 0);
  std::filesystem::resize_file(first, bytes - 2);
  const Dataset later = open();
  EXPECT_EQ(later.missing_shard_bytes(0, sequences), 2);
  EXPECT_THAT(later.missing_shard(0, sequences).value_or(""),
              AllOf(HasSubstr(first), HasSubstr(std::to_string(bytes - 2) + " of the " + std::to_string(bytes))));
  std::filesystem::resize_file(first, bytes + 2);
  EXPECT_THAT(user_error([&] { later.missing_shard(0, sequences); }),
              AllOf(HasSubstr(first), HasSubstr("disagrees with its .idx")));
}

TEST_F(ShuffledShards, AShardThatIsTooLongIsNamedEvenIfOthersAreMissing) {
  const Dataset data = open();
  const int64_t sequences = data.training_sources().front().sequences;
  const std::string wrong = bin_of(6);
  std::filesystem::resize_file(wrong, std::filesystem::file_size(wrong) + 2);
  for (const int64_t missing : {0, 11}) std::filesystem::remove(bin_of(missing));
  EXPECT_THAT(user_error([&] { data.missing_shard(0, sequences); }),
              AllOf(HasSubstr(wrong), HasSubstr("disagrees with its .idx")));
}

TEST_F(ShuffledShards, ShardsThatVanishAfterTheyWereFoundAreReadAllTheSame) {
  const Dataset whole = open(), data = open();
  const int64_t sequences = data.training_sources().front().sequences;
  const Batch expected = whole.train_batch(0, sequences);
  ASSERT_EQ(data.missing_shard(0, sequences), std::nullopt);
  for (int64_t shard = 0; shard < shards; ++shard) std::filesystem::remove(bin_of(shard));
  EXPECT_EQ(data.missing_shard(0, sequences), std::nullopt);
  EXPECT_EQ(data.train_batch(0, sequences).tokens, expected.tokens);
}

TEST_F(ShuffledShards, WeightedCorporaTakeTheirShardsInTurn) {
  for (int64_t shard = 0; shard < shards; ++shard) {
    write_pair<uint16_t>("few-" + std::to_string(shard), {std::vector<int64_t>(100, shard)}, 8);
  }
  DataConfig config = this->config();
  config.train = {{path("web-*-of-00012"), 3}, {path("few-*"), 1}};
  const Dataset data = open(config);
  EXPECT_DOUBLE_EQ(data.training_sources()[0].share, 0.75);
  const std::vector<std::string> order = data.shards_from(0, 100);
  EXPECT_EQ(order.size(), 24);
  const auto away = [&](const std::string& shard) {
    return path("away-" + std::filesystem::path(shard).filename().string());
  };
  for (uint64_t sample = 0; sample < 3000; sample += 37) {
    const std::vector<std::string> listed = data.shards_from(sample, 8);
    for (const std::string& shard : order) {
      if (std::ranges::find(listed, shard) == listed.end()) std::filesystem::rename(shard + ".bin", away(shard));
    }
    EXPECT_EQ(open(config).missing_shard(sample, 1), std::nullopt) << sample;
    for (const std::string& shard : order) {
      if (std::filesystem::exists(away(shard))) std::filesystem::rename(away(shard), shard + ".bin");
    }
  }
}

TEST_F(ShuffledShards, TheFingerprintKnowsLengthsAndTheSetting) {
  const std::string fingerprint = open().fingerprint();
  DataConfig joined = config();
  joined.shuffle_shards = false;
  EXPECT_NE(open(joined).fingerprint(), fingerprint);
  write_pair<uint16_t>(name_of(3), {{1, 2, 3}}, 8);
  EXPECT_NE(open().fingerprint(), fingerprint);
}

TEST_F(ShuffledShards, NamesWhatIsMissingFromThePattern) {
  std::filesystem::remove(path(name_of(7) + ".idx"));
  std::filesystem::remove(path(name_of(7) + ".bin"));
  EXPECT_THAT(user_error([&] { open(); }), AllOf(HasSubstr(name_of(7) + ".idx is missing"), HasSubstr("12")));
  write_text("web-1.txt", "text");
  DataConfig text = config();
  text.train = {{path("web-*.txt")}};
  EXPECT_THAT(user_error([&] { open(text); }), AllOf(HasSubstr("web-1.txt"), HasSubstr("tokenized pairs")));
  text = config();
  text.train = {{path("web-0000*")}};
  text.held_out = {write_text("valid.txt", "some text")};
  EXPECT_THAT(user_error([&] { open(text); }), AllOf(HasSubstr("valid.txt"), HasSubstr("is text")));
}

}  // namespace
}  // namespace copus
