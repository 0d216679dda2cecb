// Tests how many whole buckets a rank holds at once with ZeRO-2 and 3, and that gathered buckets equal the ranks'
// shares once a rank has waited for them.
#include "copus/train/step/gathered_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "copus/base/error.h"
#include "copus/model/memory/flat_memory.h"
#include "copus/train/step/rank_model.h"
#include "copus/train/testing/test_layouts.h"

namespace copus {
namespace {

using namespace layouts;

// Runs `body` on each rank of a layout, with a model of six layers.
void on_every_rank(const ParallelStrategy& strategy, const std::function<void(RankModel&)>& body,
                   const Connect& connect = on_test_device) {
  RunConfig config = small_run("");
  config.model.hidden_size = 16;
  config.model.intermediate_size = 40;
  config.model.num_layers = 6;
  config.model.head_dim = 4;
  config.train.sequence_length = 8;
  run_ranks_as_threads(strategy.world_size(), [&](World& plain) {
    kernels::set_num_threads(1);
    const auto world = connect(plain);
    world->require(groups_of(config.model, strategy, config.train.sequence_length));
    StepRecorder recorder(*world);
    const Placement placement = place(config.model, strategy, config.train.sequence_length, world->rank());
    RankModel model(config, strategy, *world, recorder,
                    allocate_zeros(config.model, placement, at::kFloat, optimizer_slots(config.optimizer.kind).size(),
                                   *allocator_memory(test_device())));
    model.parameters.initialize(5);
    body(model);
  });
}

int64_t count_whole(const ParameterStore& parameters, at::Tensor Bucket::* of) {
  return std::count_if(parameters.buckets().begin(), parameters.buckets().end(),
                       [&](const Bucket& bucket) { return has_memory(bucket.*of); });
}

// Runs forward and backward over the layers, buckets 1 to 6.
const std::vector<int64_t> there_and_back = {1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1};

TEST(GatheredWeights, OneBucketBesideTheOneInUse) {
  on_every_rank({.data_parallel = 2, .zero_stage = 3}, [](RankModel& model) {
    const ParameterStore& parameters = model.parameters;
    ParameterStore whole(parameters.model(), at::kFloat, test_device());
    whole.initialize(5);
    GatheredWeights& weights = model.weights;
    for (int pass = 0; pass < 2; ++pass) {
      weights.begin(there_and_back, false);
      for (const int64_t bucket : there_and_back) {
        weights.use(bucket);
        EXPECT_LE(count_whole(parameters, &Bucket::weight), 2);
        const auto at = static_cast<size_t>(bucket);
        EXPECT_TRUE(parameters.buckets()[at].weight.equal(whole.buckets()[at].weight));
        weights.release(bucket);
        EXPECT_LE(count_whole(parameters, &Bucket::weight), 2);
      }
      weights.end();
      EXPECT_EQ(count_whole(parameters, &Bucket::weight), 0);
    }
  });
}

TEST(GatheredWeights, WithoutReshardingABucketIsGatheredOnceAndStaysUntilItsLastUse) {
  on_every_rank({.data_parallel = 2, .zero_stage = 3, .reshard_after_forward = false}, [](RankModel& model) {
    GatheredWeights& weights = model.weights;
    weights.begin(there_and_back, true);
    std::vector<const void*> addresses(7);
    for (size_t i = 0; i < there_and_back.size(); ++i) {
      const auto bucket = static_cast<size_t>(there_and_back[i]);
      weights.use(there_and_back[i]);
      const void* const address = model.parameters.buckets()[bucket].weight.data_ptr();
      EXPECT_EQ(i < 6 ? address : addresses[bucket], address);
      addresses[bucket] = address;
      weights.release(there_and_back[i]);
      const int64_t left = i < 6 ? -1 : 11 - static_cast<int64_t>(i);
      EXPECT_TRUE(left < 0 || count_whole(model.parameters, &Bucket::weight) == left);
    }
    weights.end();
  });
}

TEST(GatheredWeights, UsesComeInTheirOrder) {
  on_every_rank({.data_parallel = 2, .zero_stage = 3}, [](RankModel& model) {
    GatheredWeights& weights = model.weights;
    weights.begin({1}, false);
    EXPECT_THROW(weights.use(2), InternalError);
    weights.use(1);
    weights.release(1);
    weights.end();
  });
}

// As on a device, a gathered bucket has no contents before a wait.
TEST(GatheredWeights, WithZeroOneABucketIsWholeWhenItIsUsedAndAllAreInTheEnd) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "all tests are on a device";
  const auto check = [](RankModel& model) {
    const ParameterStore& parameters = model.parameters;
    ParameterStore whole(parameters.model(), at::kFloat, at::kCPU);
    whole.initialize(5);
    const auto is_whole = [&](size_t bucket) {
      const at::Tensor& expected = whole.buckets()[bucket].weight;
      return parameters.buckets()[bucket].weight.narrow(0, 0, expected.numel()).equal(expected);  // without padding
    };
    model.weights.start();
    model.weights.use(0);
    model.weights.release(0);
    EXPECT_TRUE(is_whole(0));
    EXPECT_FALSE(is_whole(1)) << "somebody waits for what is not used";
    model.weights.use(1);
    EXPECT_TRUE(is_whole(1));
    model.weights.use(1);  // again, with nothing in flight
    model.weights.finish();
    for (size_t bucket = 0; bucket < parameters.buckets().size(); ++bucket) EXPECT_TRUE(is_whole(bucket));
    model.weights.start();  // without a wait
  };
  on_every_rank({.data_parallel = 2, .zero_stage = 1}, check, as_on_a_device);
}

// The gradient of bucket b in micro-batch m is (m + 1) (b + 1) on every rank, so after three micro-batches on two ranks
// a share is 12 (b + 1).
void expect_sums(const ParallelStrategy& strategy, int64_t most_whole) {
  on_every_rank(strategy, [&](RankModel& model) {
    const std::vector<Bucket>& buckets = model.parameters.buckets();
    GradientReduction& reduction = model.reduction;
    reduction.begin(3);
    int64_t whole = 0;
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      for (int64_t b = std::ssize(buckets); b-- > 0;) {
        reduction.pass_begins(b);
        whole = std::max(whole, count_whole(model.parameters, &Bucket::gradient));
        for (const int64_t index : buckets[static_cast<size_t>(b)].parameters) {
          const Parameter& parameter = model.parameters.parameters()[static_cast<size_t>(index)];
          parameter.gradient.add_((micro_batch + 1) * (b + 1));
        }
        reduction.bucket_done(b);
      }
    }
    reduction.finish();
    EXPECT_EQ(whole, most_whole);
    EXPECT_EQ(count_whole(model.parameters, &Bucket::gradient), 0);
    for (size_t b = 0; b < buckets.size(); ++b) {
      EXPECT_EQ(buckets[b].kept_gradient.max().item<double>(), 12 * static_cast<double>(b + 1));
    }
  });
}

TEST(GradientReduction, HoldsTwoWholeBucketsAtMost) { expect_sums({.data_parallel = 2, .zero_stage = 2}, 2); }

TEST(GradientReduction, HoldsAThirdOneWhilePartialGradientsAreAdded) {
  on_every_rank({.data_parallel = 2, .tensor_parallel = 2, .sequence_parallel = true, .zero_stage = 3},
                [](RankModel& model) {
                  GradientReduction& reduction = model.reduction;
                  reduction.begin(1);
                  int64_t whole = 0;
                  for (int64_t b = std::ssize(model.parameters.buckets()); b-- > 0;) {
                    reduction.pass_begins(b);
                    whole = std::max(whole, count_whole(model.parameters, &Bucket::gradient));
                    reduction.bucket_done(b);
                  }
                  reduction.finish();
                  EXPECT_EQ(whole, 3);
                });
}

thread_local int64_t all_reduces_started = 0;

class CountingGroup final : public WrappedCommunicator {
 public:
  using WrappedCommunicator::WrappedCommunicator;

 private:
  Work do_start(const Operation& operation) override {
    if (operation.kind == OperationKind::all_reduce) ++all_reduces_started;
    return group().start(operation);
  }
};

// Counts the all-reduces that this rank starts.
class CountingWorld final : public WrappedWorld {
 public:
  explicit CountingWorld(World& world) : WrappedWorld(world) {}

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t /*member*/) override {
    return std::make_unique<CountingGroup>(inner().group(ranks));
  }
};

TEST(GradientReduction, AddsSharesToThoseOfCopiesWhileOtherBucketsAreReduced) {
  for (const int64_t zero_stage : {1, 2, 3}) {
    SCOPED_TRACE(zero_stage);
    const auto check = [&](RankModel& model) {
      GradientReduction& reduction = model.reduction;
      const int64_t buckets = std::ssize(model.parameters.buckets());
      reduction.begin(2);
      all_reduces_started = 0;
      for (int micro_batch = zero_stage == 1 ? 1 : 0; micro_batch < 2; ++micro_batch) {
        EXPECT_EQ(all_reduces_started, 0) << "before the share of the step is complete";
        for (int64_t b = buckets; b-- > 0;) {
          reduction.pass_begins(b);
          reduction.bucket_done(b);
        }
      }
      EXPECT_EQ(all_reduces_started, buckets - (zero_stage == 1 ? 1 : 2));
      reduction.finish();
      EXPECT_EQ(all_reduces_started, buckets);
    };
    on_every_rank({.data_parallel = 4, .zero_stage = zero_stage, .zero_replicas = 2}, check,
                  [](World& world) { return std::make_unique<CountingWorld>(world); });
  }
}

}  // namespace
}  // namespace copus
