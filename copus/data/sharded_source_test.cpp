#include "copus/data/sharded_source.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <random>

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

// A corpus may be split into shards between any two documents without changing the training data or their fingerprint.
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

}  // namespace
}  // namespace copus
