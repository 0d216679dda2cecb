#include "copus/placement/bucket_offsets.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "copus/base/error.h"

namespace copus {
namespace {

using testing::ElementsAre;

ModelDescription odd_model() {
  ModelDescription model;
  model.vocab_size = 37;
  model.hidden_size = 12;
  model.intermediate_size = 20;
  model.num_layers = 4;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 6;
  model.qkv_bias = true;
  return model;
}

struct Arranged {
  std::vector<LocalParameter> parameters;
  std::vector<BucketOffsets> buckets;
};

Arranged arrange(const ModelDescription& model, const ParallelStrategy& strategy, int64_t rank) {
  const Placement placement = place(model, strategy, /*sequence_length=*/32, rank);
  Arranged arranged{list_local_parameters(model, placement), {}};
  arranged.buckets = arrange_buckets(arranged.parameters, placement);
  return arranged;
}

TEST(BucketOffsets, OneBucketForEveryLayerOneForTheEmbeddingAndOneForNormAndHead) {
  const Arranged whole = arrange(odd_model(), {}, 0);
  ASSERT_EQ(whole.buckets.size(), 6);
  EXPECT_EQ(whole.buckets.front().entries.size(), 1);
  for (size_t layer = 1; layer < 5; ++layer) EXPECT_EQ(whole.buckets[layer].entries.size(), 12);
  EXPECT_EQ(whole.buckets.back().entries.size(), 2);
}

TEST(BucketOffsets, ParametersStartOnAlignedElementsUnlessJoined) {
  for (const int64_t tensor_parallel : {1, 2, 4}) {
    const Arranged arranged = arrange(odd_model(), {.tensor_parallel = tensor_parallel}, 0);
    for (const BucketOffsets& bucket : arranged.buckets) {
      EXPECT_EQ(bucket.size % bucket_alignment, 0);
      int64_t end = 0;
      for (const auto& [index, offset] : bucket.entries) {
        const LocalParameter& parameter = arranged.parameters[static_cast<size_t>(index)];
        const std::string& name = parameter.info.name;
        const bool joined = name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos ||
                            name.find("up_proj") != std::string::npos;
        EXPECT_GE(offset, end) << name;
        EXPECT_LT(offset, end + bucket_alignment) << name;
        if (joined) {
          EXPECT_EQ(offset, end) << name;
        } else {
          EXPECT_EQ(offset % bucket_alignment, 0) << name;
        }
        end = offset + parameter.box.num_elements();
      }
      EXPECT_LE(end, bucket.size);
      EXPECT_GT(end + bucket_alignment, bucket.size);
    }
  }
}

TEST(BucketOffsets, PaddingIsWhatNoParameterCovers) {
  const Arranged arranged = arrange(odd_model(), {.tensor_parallel = 2}, 1);
  for (const BucketOffsets& bucket : arranged.buckets) {
    std::vector<int64_t> covered(static_cast<size_t>(bucket.size), 0);
    const auto cover = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++covered.at(static_cast<size_t>(i));
    };
    for (const auto& [index, offset] : bucket.entries) {
      cover(offset, offset + arranged.parameters[static_cast<size_t>(index)].box.num_elements());
    }
    for (const Stretch& gap : find_padding(arranged.parameters, bucket)) {
      EXPECT_GT(gap.size(), 0);
      cover(gap.begin, gap.end);
    }
    EXPECT_THAT(covered, testing::Each(1));
  }
}

TEST(BucketOffsets, EveryParameterLiesInOneBucketOfItsChunk) {
  const ParallelStrategy strategy{.pipeline_parallel = 2, .virtual_stages = 2};
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Arranged arranged = arrange(odd_model(), strategy, rank);
    std::vector<int64_t> seen(arranged.parameters.size(), 0);
    for (const BucketOffsets& bucket : arranged.buckets) {
      for (const auto& entry : bucket.entries) {
        ++seen[static_cast<size_t>(entry.parameter)];
        EXPECT_EQ(arranged.parameters[static_cast<size_t>(entry.parameter)].chunk, bucket.chunk);
      }
    }
    EXPECT_THAT(seen, testing::Each(1));
  }
}

TEST(BucketOffsets, ATiedCopyHasOnlyAGradientWhereItsEmbeddingLiesOnTheSameRank) {
  ModelDescription model = odd_model();
  model.tie_word_embeddings = true;
  for (const int64_t pipeline_parallel : {1, 2}) {
    const Arranged last = arrange(model, {.pipeline_parallel = pipeline_parallel}, pipeline_parallel - 1);
    const BucketOffsets& copy = last.buckets.back();
    EXPECT_TRUE(last.parameters[static_cast<size_t>(copy.entries.front().parameter)].tied_copy);
    EXPECT_EQ(copy.gradient_only, pipeline_parallel == 1);
    EXPECT_EQ(copy.shard_end, pipeline_parallel == 1 ? 0 : copy.size);
    EXPECT_EQ(
        std::count_if(last.buckets.begin(), last.buckets.end(), [](const auto& one) { return one.gradient_only; }),
        pipeline_parallel == 1 ? 1 : 0);
  }
}

TEST(BucketOffsets, ShardsOfTheDataParallelRanksFollowEachOther) {
  const ParallelStrategy strategy{.data_parallel = 3, .zero_stage = 1};
  std::vector<int64_t> ends(6, 0);
  for (int64_t rank = 0; rank < 3; ++rank) {
    const Arranged arranged = arrange(odd_model(), strategy, rank);
    for (size_t i = 0; i < ends.size(); ++i) {
      EXPECT_EQ(arranged.buckets[i].shard_begin, ends[i]);
      ends[i] = arranged.buckets[i].shard_end;
      if (rank == 2) {
        EXPECT_EQ(ends[i], arranged.buckets[i].size);
      }
    }
  }
  for (const BucketOffsets& bucket : arrange(odd_model(), {.data_parallel = 3}, 1).buckets) {
    EXPECT_EQ(bucket.shard_begin, 0);
    EXPECT_EQ(bucket.shard_end, bucket.size);
  }
}

// Buckets are padded so that all shares are equal, which NCCL handles faster.
TEST(BucketOffsets, SharesAreEqualBecauseBucketsArePadded) {
  for (const int64_t stage : {1, 2, 3}) {
    for (const int64_t data : {2, 3, 5, 8}) {
      const ParallelStrategy strategy{.data_parallel = data, .zero_stage = stage};
      for (const BucketOffsets& bucket : arrange(odd_model(), strategy, 0).buckets) {
        EXPECT_THAT(shard_sizes(bucket.size, data), testing::Each(bucket.size / data));
      }
    }
  }
  const ParallelStrategy with_copies{.data_parallel = 6, .zero_stage = 1, .zero_replicas = 2};
  for (const BucketOffsets& bucket : arrange(odd_model(), with_copies, 0).buckets) {
    EXPECT_THAT(shard_sizes(bucket.size, 3), testing::Each(bucket.size / 3));
  }
}

TEST(BucketOffsets, ShardsCoverABucketInTheOrderOfTheRanks) {
  EXPECT_THAT(shard_sizes(7 * bucket_alignment, 3), ElementsAre(128, 128, 192));
  EXPECT_THROW(shard_sizes(bucket_alignment + 1, 2), InternalError);
  for (const int64_t units : {1, 2, 7, 100}) {
    for (const int64_t ranks : {1, 2, 3, 8}) {
      const std::vector<int64_t> sizes = shard_sizes(units * bucket_alignment, ranks);
      ASSERT_EQ(static_cast<int64_t>(sizes.size()), ranks);
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), units * bucket_alignment);
      const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
      EXPECT_LE(*most - *least, bucket_alignment);
      for (const int64_t size : sizes) EXPECT_EQ(size % bucket_alignment, 0);
    }
  }
}

}  // namespace
}  // namespace copus
