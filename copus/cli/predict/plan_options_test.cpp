// Tests batches, numbers of GPUs and plots as given in options.
#include "copus/cli/predict/plan_options.h"

#include <gmock/gmock.h>

#include "copus/base/testing/test_support.h"
#include "copus/config/run_config.h"
#include "copus/plan/paste_text.h"

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

TEST(PlanOptions, Tokens) {
  EXPECT_EQ(parse_tokens("1T"), 1'000'000'000'000);
  EXPECT_EQ(parse_tokens("2.5M"), 2'500'000);
  EXPECT_EQ(parse_tokens("15e12"), 15'000'000'000'000);
  EXPECT_EQ(parse_tokens("7"), 7);
  for (const char* text : {"", "T", "-1T", "0", "0.5", "1TB", "1 T", "1X", "1e30", "nan", "inf", "1,000"}) {
    EXPECT_THAT(user_error([&] { parse_tokens(text); }), HasSubstr(concat("--tokens ", text, ": expected"))) << text;
  }
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

TEST(PlanOptions, ProgramsByName) {
  EXPECT_EQ(planned_system("copus", "fp32", "profile.json"), PlannedSystem::copus);
  EXPECT_EQ(planned_system("nanotron", "bf16", ""), PlannedSystem::nanotron);
  EXPECT_EQ(planned_system("torchtitan-0.2", "bf16", ""), PlannedSystem::torchtitan);
  EXPECT_THAT(user_error([] { planned_system("torchtitan-0.4", "bf16", ""); }),
              AllOf(HasSubstr("this version of torchtitan is not described"), HasSubstr("torchtitan-0.3")));
  EXPECT_THAT(user_error([] { planned_system("megatron-core", "bf16", ""); }), HasSubstr("take megatron,"));
  EXPECT_THAT(user_error([] { planned_system("megatrom", "bf16", ""); }),
              AllOf(HasSubstr("--system megatrom"), HasSubstr("did you mean \"megatron\"?")));
  EXPECT_THAT(user_error([] { planned_system("deepspeed", "bf16", ""); }),
              HasSubstr("copus, megatron, nanotron, torchtitan"));
  EXPECT_THAT(user_error([] { planned_system("megatron", "fp32", ""); }), HasSubstr("--precision fp32: Megatron-LM"));
  EXPECT_THAT(user_error([] { planned_system("megatron", "bf16", "profile.json"); }),
              HasSubstr("--profile profile.json"));
}

TEST(PlanOptions, OptionsNarrowWhatAProgramKnows) {
  std::vector<int64_t> stages = {0, 1};
  narrow(PlannedSystem::megatron, "--zero", stages, {});
  EXPECT_THAT(stages, ElementsAre(0, 1));
  narrow(PlannedSystem::megatron, "--zero", stages, {1});
  EXPECT_THAT(stages, ElementsAre(1));
  EXPECT_THAT(user_error([&] { narrow(PlannedSystem::megatron, "--zero", stages, {1, 3}); }),
              AllOf(HasSubstr("--zero 3: Megatron-LM"), HasSubstr("but with 1; take one of these")));
  std::vector<Recompute> recomputes = {Recompute::none, Recompute::full};
  EXPECT_THAT(user_error([&] { narrow(PlannedSystem::nanotron, "--recompute", recomputes, {Recompute::attention}); }),
              HasSubstr("--recompute attention: nanotron, as it is described for plans, does not run with this, but "
                        "with none, full"));
  std::vector<bool> shared = {true};
  EXPECT_THAT(user_error([&] { narrow(PlannedSystem::torchtitan, "--sp", shared, {false}); }), HasSubstr("--sp 0"));
}

// Every kind of configuration that a plan may print can be read by a run.
TEST(PlanOptions, ARunReadsBackWhatAPlanWrites) {
  PlanQuestion question;
  question.model = {.architecture = Architecture::llama,
                    .vocab_size = 256,
                    .hidden_size = 64,
                    .intermediate_size = 96,
                    .num_layers = 4,
                    .num_heads = 4,
                    .num_kv_heads = 4,
                    .head_dim = 16,
                    .rope_scaling = std::nullopt};
  question.precision = "bf16";
  question.sequence_length = 32;
  question.space.world_size = 8;
  question.space.global_batches = {32};
  question.space.zero_replicas = {1, 2};
  const std::string begin =
      "[model]\nvocab_size = 256\nhidden_size = 64\nintermediate_size = 96\nnum_hidden_layers = 4\n"
      "num_attention_heads = 4\n[data]\ntrain = 'a.txt'\n";
  const std::vector<Configuration> all = enumerate(question.model, question.sequence_length, question.space);
  EXPECT_GT(all.size(), 1000u);
  for (size_t i = 0; i < all.size(); i += 7) {
    const std::string lines = paste_texts(question, all[i]).front().text;
    const RunConfig config = parse_run_config(concat(begin, lines, "max_steps = 5\n"), "run.toml");
    EXPECT_EQ(config.parallel, all[i].strategy) << lines;
    EXPECT_EQ(config.train.global_batch, all[i].global_batch);
    EXPECT_EQ(config.train.micro_batch, all[i].micro_batch);
    EXPECT_EQ(config.train.sequence_length, 32);
    EXPECT_EQ(config.execution.precision, Precision::bf16);
  }
}

TEST(PlanOptions, ABatchIsAddedOnceInItsPlace) {
  std::vector<int64_t> batches = {16, 64};
  for (const int64_t batch : {32, 8, 128, 64}) add_batch(batches, batch);
  EXPECT_THAT(batches, ElementsAre(8, 16, 32, 64, 128));
}

}  // namespace
}  // namespace copus
