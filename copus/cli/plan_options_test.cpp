// Tests of batches, numbers of GPUs and plots as the options give them.
#include "copus/cli/plan_options.h"

#include <gmock/gmock.h>

#include "copus/base/testing/test_support.h"
#include "copus/description/parallel_strategy.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(PlanOptions, GlobalBatches) {
  EXPECT_THAT(parse_global_batches("64"), ElementsAre(64));
  EXPECT_THAT(parse_global_batches("24,16,24"), ElementsAre(16, 24));
  EXPECT_THAT(parse_global_batches("16..100"), ElementsAre(16, 32, 64, 100));
  EXPECT_THAT(parse_global_batches("8..32,48,16..16"), ElementsAre(8, 16, 32, 48));
}

TEST(PlanOptions, GlobalBatchesThatAreNone) {
  for (const char* text :
       {"", "0", "-4", "16..", "..16", "16,", "sixteen", "16.5", "16...64", "99999999999999999999"}) {
    EXPECT_THAT(user_error([&] { parse_global_batches(text); }),
                AllOf(HasSubstr(concat("--global-batch ", text, ": ")), HasSubstr("(16..1024)")))
        << text;
  }
  EXPECT_THAT(user_error([] { parse_global_batches("64..16"); }), HasSubstr("64 is above 16"));
  std::string many = "1";
  for (int batch = 2; batch <= 65; ++batch) many += concat(",", batch);
  EXPECT_THAT(user_error([&] { parse_global_batches(many); }), HasSubstr("65 batches"));
}

TEST(PlanOptions, NumberOfGpus) {
  ClusterDescription cluster{.ranks_per_node = 8};
  EXPECT_EQ(number_of_gpus(cluster, "c", 12), 12);
  EXPECT_THAT(user_error([&] { number_of_gpus(cluster, "c", 0); }),
              AllOf(HasSubstr("--gpus is missing: c does not say"), HasSubstr("--gpus 8 for one node")));
  EXPECT_THAT(user_error([&] { number_of_gpus(cluster, "c", 1 << 20); }), HasSubstr("more than a plan looks at"));
  cluster.num_ranks = 16;
  EXPECT_EQ(number_of_gpus(cluster, "c", 0), 16);
  EXPECT_EQ(number_of_gpus(cluster, "c", 8), 8);
  EXPECT_THAT(user_error([&] { number_of_gpus(cluster, "c", 17); }), HasSubstr("c has 16 devices"));
}

TEST(PlanOptions, ADeviceOfUnknownSpeedCannotBePlanned) {
  ClusterDescription cluster;
  EXPECT_THAT(user_error([&] { check_can_be_planned(cluster, "c"); }),
              AllOf(HasSubstr("--cluster c"), HasSubstr("matmul_teraflops")));
  cluster.flops_per_second = 1e12;
  EXPECT_EQ(user_error([&] { check_can_be_planned(cluster, "c"); }), "no UserError");
  cluster.flops_per_second = 0;
  cluster.device.matmul_flops_per_second = 1e12;
  EXPECT_EQ(user_error([&] { check_can_be_planned(cluster, "c"); }), "no UserError");
}

TEST(PlanOptions, Plots) {
  EXPECT_EQ(user_error([] { check_plot("a.svg", {16, 32}); }), "no UserError");
  EXPECT_EQ(user_error([] { check_plot("b/a.html", {16, 32}); }), "no UserError");
  EXPECT_THAT(user_error([] { check_plot("a.png", {16, 32}); }), HasSubstr("ends in .svg or .html"));
  EXPECT_THAT(user_error([] { check_plot("a.svg", {16}); }), HasSubstr("names only 16"));
}

TEST(PlanOptions, ShortNames) {
  EXPECT_EQ(short_name("llama-3.2-3b", ".json"), "llama-3.2-3b");
  EXPECT_EQ(short_name("my/clusters/lab.toml", ".toml"), "lab");
  EXPECT_EQ(short_name("models/mine/config.json", ".json"), "mine");
  EXPECT_EQ(short_name("models/mine/", ".json"), "mine");
  EXPECT_EQ(short_name("config.json", ".json"), "config");
}

TEST(PlanOptions, ValuesByName) {
  EXPECT_THAT(by_names<Recompute>({"full", "none"}), ElementsAre(Recompute::none, Recompute::full));
}

TEST(PlanOptions, ABatchIsAddedOnceInItsPlace) {
  std::vector<int64_t> batches = {16, 64};
  for (const int64_t batch : {32, 8, 128, 64}) add_batch(batches, batch);
  EXPECT_THAT(batches, ElementsAre(8, 16, 32, 64, 128));
}

}  // namespace
}  // namespace copus
