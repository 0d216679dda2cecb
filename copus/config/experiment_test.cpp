#include "copus/config/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/base/error.h"
#include "copus/config/testing/experiment_base.h"

namespace copus {
namespace {

using testing::HasSubstr;

constexpr const char* screened = R"(
base = "run.toml"
set = ["train.max_steps=40"]
seeds = [1, 2]
screening_seeds = [11, 12]
targets = [2.5, 2]
reference = "fixed"
[[arm]]
name = "fixed-8"
group = "fixed"
[[arm]]
name = "large-rate"
set = ["optimizer.lr=0.01", "train.max_steps=50"]
[[arm]]
name = "fixed-16"
group = "fixed"
set = ["train.global_batch=16"]
)";

std::string replaced(std::string text, const std::string& old, const std::string& now) {
  const size_t place = text.find(old);
  EXPECT_NE(place, std::string::npos) << old;
  return text.replace(place, old.size(), now);
}

// Replaces `old` by `now` in the experiment, and expects it to be refused with a message that contains all `parts`.
void expect_refused(const std::string& old, const std::string& now, const std::vector<std::string>& parts) {
  try {
    const Experiment experiment = parse_experiment(replaced(screened, old, now), "e.toml");
    check_arms_are_comparable(experiment, experiment_base, "e.toml");
    FAIL() << "accepted: " << now;
  } catch (const UserError& error) {
    for (const std::string& part : parts) EXPECT_THAT(error.what(), HasSubstr(part)) << now;
  }
}

TEST(Experiment, IsReadAsItIsWritten) {
  const Experiment experiment = parse_experiment(screened, "e.toml");
  EXPECT_EQ(experiment.base, "run.toml");
  EXPECT_EQ(experiment.seeds, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(experiment.screening_seeds, (std::vector<int64_t>{11, 12}));
  EXPECT_EQ(experiment.targets, (std::vector<double>{2.5, 2}));
  EXPECT_FALSE(experiment.final_loss);
  EXPECT_EQ(experiment.contenders(), (std::vector<std::string>{"fixed", "large-rate"}));
  EXPECT_EQ(experiment.arms_of("fixed"),
            (std::vector<ExperimentArm>{{"fixed-8", "fixed", {}}, {"fixed-16", "fixed", {"train.global_batch=16"}}}));
  check_arms_are_comparable(experiment, experiment_base, "e.toml");
}

TEST(Experiment, SettingsOfTheArmComeLastAndTheSeedIsTheRuns) {
  const Experiment experiment = parse_experiment(screened, "e.toml");
  const RunConfig fixed = run_config_of(experiment, experiment_base, experiment.arms[0], 11);
  EXPECT_EQ(fixed.train.max_steps, 40);
  EXPECT_EQ(fixed.execution.seed, 11);
  const RunConfig large = run_config_of(experiment, experiment_base, experiment.arms[1], 2);
  EXPECT_EQ(large.train.max_steps, 50);
  EXPECT_EQ(large.execution.seed, 2);
  EXPECT_EQ(large.optimizer.lr, 0.01);
  EXPECT_EQ(differing_keys(fixed, large), (std::vector<std::string>{"train.max_steps", "train.seed", "optimizer.lr"}));
}

TEST(Experiment, MistakesInTheFileAreNamed) {
  expect_refused("seeds = [1, 2]", "seeds = [1, 2", {"e.toml:", "not valid TOML"});
  expect_refused("targets", "target", {"e.toml:6: unknown key \"target\"", "did you mean \"targets\"?"});
  expect_refused("group = \"fixed\"\nset", "role = \"fixed\"\nset", {"unknown key \"role\" in [[arm]]", "group"});
  expect_refused("base = \"run.toml\"", "", {"e.toml", "base is missing"});
  expect_refused("base = \"run.toml\"", "base = 3", {"e.toml:2: base must be a string", "got 3"});
  expect_refused("[1, 2]", "[1, 1]", {"seeds has the seed 1 twice"});
  expect_refused("[1, 2]", "[1]", {"seeds has 1", "two at least"});
  expect_refused("[1, 2]", "[1, 2.5]", {"e.toml:4", "whole numbers", "2.5"});
  expect_refused("[11, 12]", "[2, 12]", {"the seed 2 is in both"});
  expect_refused("screening_seeds = [11, 12]", "", {"give screening_seeds"});
  expect_refused("[2.5, 2]", "[2.5, -2]", {"targets", "greater than 0", "-2"});
  expect_refused("[2.5, 2]", "[]", {"nothing says what to compare"});
  expect_refused("[2.5, 2]", "[2.5, 2]\nfinal_loss = 1", {"final_loss must be true or false"});
  expect_refused("reference = \"fixed\"", "reference = \"fixd\"", {"\"fixd\"", "did you mean \"fixed\"?"});
  expect_refused("reference = \"fixed\"", "reference = \"fixed-8\"", {"one arm of the group \"fixed\""});
  expect_refused("name = \"large-rate\"", "name = \"fixed-8\"", {"two arms are called \"fixed-8\""});
  expect_refused("name = \"large-rate\"", "name = \"fixed\"", {"\"fixed\" is the name of an arm and of a group"});
  expect_refused("name = \"large-rate\"", "name = \"../x\"", {"e.toml:12", "letters, digits", "../x"});
  expect_refused("name = \"large-rate\"", "name = \"large-rate\"\ngroup = \"fixed\"", {"nothing to compare"});
  expect_refused("name = \"large-rate\"", "name = \"large-rate\"\ngroup = \"rates\"", {"\"rates\" has one arm"});
  expect_refused("optimizer.lr=0.01", "train.seed=3", {"train.seed is set by seeds"});
}

TEST(Experiment, MistakesInSettingsNameTheArm) {
  expect_refused("optimizer.lr=0.01", "optimizer.lrr=1", {"arm \"large-rate\"", "optimizer.lrr=1", "lr"});
  expect_refused("global_batch=16", "global_batch=6", {"arm \"fixed-16\"", "train.global_batch 6"});
}

TEST(Experiment, DevicesAreComparedIfDocumentsAreTreatedAlike) {
  const std::string text = replaced(replaced(screened, "train.max_steps=40", "data.mask_across_documents=false"),
                                    "optimizer.lr=0.01", "train.device=cuda");
  EXPECT_NO_THROW(check_arms_are_comparable(parse_experiment(text, "e.toml"), experiment_base, "e.toml"));
}

TEST(Experiment, ArmsThatCannotBeComparedAreRefused) {
  expect_refused("optimizer.lr=0.01", "train.sequence_length=16",
                 {"arm \"large-rate\" has another train.sequence_length than arm \"fixed-8\""});
  expect_refused("optimizer.lr=0.01", "data.held_out=other.txt", {"another data.held_out"});
  expect_refused("optimizer.lr=0.01", "train.device=cuda",
                 {"arm \"large-rate\" has another train.device than arm \"fixed-8\"", "data.mask_across_documents"});
  expect_refused("train.max_steps=40", "data.held_out_fraction=0", {"holds no text out"});
  expect_refused("train.max_steps=40", "evaluate.interval=0", {"evaluate.interval_tokens"});
  expect_refused("optimizer.lr=0.01", "train.micro_batch=2",
                 {"evaluate.max_batches x train.micro_batch is 32 and 64", "make them equal"});
}

// Settings of all arms for each clock, with a suitable cluster.
std::string clocked(const std::string& settings) {
  return concat("train.max_steps=40\", \"cluster.ranks_per_node=4\", \"cluster.rails=2\", ",
                "\"cluster.teraflops_per_rank=1\", ",
                "\"cluster.within_node={latency_microseconds=2.0, gigabytes_per_second=8.0}\", ",
                "\"cluster.between_nodes={latency_microseconds=9.0, gigabytes_per_second=2.0}\", \"", settings);
}
constexpr const char* modelled = "cluster.clock=modelled\", \"parallel.data_parallel=2";

// Adds one setting to the arm "large-rate" only.
std::string with_arm(const std::string& all, const std::string& arm) {
  return replaced(replaced(screened, "train.max_steps=40", clocked(all)), "optimizer.lr=0.01", arm);
}
void expect_comparable(const std::string& all, const std::string& arm) {
  EXPECT_NO_THROW(check_arms_are_comparable(parse_experiment(with_arm(all, arm), "e.toml"), experiment_base, "e.toml"))
      << all << "; " << arm;
}
void expect_other_times(const std::string& all, const std::string& arm, const std::string& key) {
  SCOPED_TRACE(concat(all, "; ", arm));
  expect_refused(screened, with_arm(all, arm),
                 {concat("arm \"large-rate\" has another ", key, " than arm \"fixed-8\""), "clocks"});
}

TEST(Experiment, ClocksOfOneClusterAreCompared) {
  for (const char* clock : {"cluster.clock=virtual", "cluster.clock=wall", modelled}) {
    expect_comparable(clock, "optimizer.lr=0.01");
    expect_other_times(clock, "cluster.rails=1", "cluster.rails");
    expect_other_times(clock, "cluster.between_nodes={latency_microseconds=9.0, gigabytes_per_second=3.0}",
                       "cluster.between_nodes");
  }
  expect_other_times("cluster.clock=virtual", "cluster.teraflops_per_rank=2", "cluster.teraflops_per_rank");
  expect_comparable("cluster.clock=wall", "cluster.teraflops_per_rank=2");  // the wall clock ignores this setting
  expect_comparable("cluster.clock=real", "cluster.rails=1");
}

TEST(Experiment, TheModelledClockIsOfOneJob) {
  const std::string small = concat(modelled, "\", \"cluster.stands_for=llama-3.2-1b");
  expect_comparable(modelled, "parallel.data_parallel=1\", \"parallel.tensor_parallel=2");
  expect_other_times(modelled, "parallel.tensor_parallel=2", "number of ranks in [parallel]");
  expect_other_times(small, "cluster.stands_for=llama-3.1-8b", "cluster.stands_for");
  expect_other_times(modelled, "cluster.stands_for=llama-3.1-8b", "cluster.stands_for");
  expect_other_times(modelled, "model.hidden_size=64", "model.hidden_size");
  expect_comparable(small, "model.hidden_size=64");
  expect_other_times(modelled, "cluster.stands_for_sequence_length=64", "cluster.stands_for_sequence_length");
  expect_other_times(modelled, "cluster.stands_for_precision=bf16", "cluster.stands_for_precision");
  expect_other_times(modelled, "train.precision=bf16", "train.precision");
  expect_other_times(modelled, "cluster.truth_layout_error=0.1", "cluster.truth_layout_error");
  expect_other_times(modelled, "cluster.truth_seed=2", "cluster.truth_seed");
}

TEST(Experiment, EachSeedMayDrawItsOwnLayoutErrors) {
  const std::string errors = concat(modelled, "\", \"cluster.truth_layout_error=0.07");
  const auto drawn = [](const std::string& settings) {
    return replaced(replaced(screened, "train.max_steps=40", clocked(settings)), "targets",
                    "draw_per_seed = true\ntargets");
  };
  const Experiment experiment = parse_experiment(drawn(errors), "e.toml");
  EXPECT_TRUE(experiment.draw_per_seed);
  check_arms_are_comparable(experiment, experiment_base, "e.toml");
  for (const ExperimentArm& arm : experiment.arms) {
    for (const int64_t seed : {1, 2, 11}) {
      EXPECT_EQ(run_config_of(experiment, experiment_base, arm, seed).cluster.truth_seed, seed);
    }
  }
  const Experiment shared = parse_experiment(with_arm(errors, "optimizer.lr=0.01"), "e.toml");
  EXPECT_EQ(run_config_of(shared, experiment_base, shared.arms[0], 1).cluster.truth_seed,
            run_config_of(shared, experiment_base, shared.arms[0], 2).cluster.truth_seed);

  expect_refused("targets", "draw_per_seed = 1\ntargets", {"draw_per_seed must be true or false, got 1"});
  expect_refused(screened, drawn(concat(errors, "\", \"cluster.truth_seed=3")),
                 {"cluster.truth_seed", "leave one of them out"});
  expect_refused(screened, drawn(modelled), {"arm \"fixed-8\" has no layout errors", "cluster.truth_layout_error"});
  expect_refused(screened, drawn("cluster.clock=virtual"), {"arm \"fixed-8\" has no layout errors"});
}

TEST(Experiment, OnTheModelledClockArmsMayBelieveOtherClusters) {
  const std::string with_truth = concat(modelled, "\", \"cluster.truth=h100-sxm");
  expect_comparable(with_truth, "cluster.rails=1");
  expect_other_times(modelled, "cluster.truth=h100-sxm", "cluster.truth");
  expect_other_times(with_truth, "cluster.truth=a100-sxm", "cluster.truth");
}

}  // namespace
}  // namespace copus
