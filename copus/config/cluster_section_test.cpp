// Tests the two ways to describe a cluster, and their contradictions.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "copus/base/testing/test_support.h"
#include "copus/config/run_config.h"

namespace copus {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* after_cluster =
    "[model]\nvocab_size = 256\nhidden_size = 64\nintermediate_size = 96\nnum_hidden_layers = 2\n"
    "num_attention_heads = 4\n[data]\ntrain = 'a.txt'\n[train]\nmax_steps = 1\n";
constexpr const char* cluster_text =
    "ranks_per_node = 4\nteraflops_per_rank = 0.3\n[within_node]\nlatency_microseconds = 3\n"
    "gigabytes_per_second = 450.0\n[between_nodes]\nlatency_microseconds = 10.0\ngigabytes_per_second = 12.5\n";
constexpr const char* inline_cluster =
    "[cluster]\nranks_per_node = 2\nwithin_node = { latency_microseconds = 1, gigabytes_per_second = 8 }\n"
    "between_nodes = { latency_microseconds = 2, gigabytes_per_second = 4 }\n";

RunConfig parse_with_cluster(const std::string& cluster, const std::vector<std::string>& overrides = {}) {
  return parse_run_config(cluster + after_cluster, "run.toml", overrides);
}

std::string error_with_cluster(const std::string& cluster, const std::vector<std::string>& overrides = {}) {
  return user_error([&] { parse_with_cluster(cluster, overrides); });
}

class ClusterSection : public testing::Test {
 protected:
  ClusterSection() { write(cluster_text); }

  void write(const std::string& text) { std::ofstream(file_) << text; }
  // Parses a cluster file with this text, and returns the error message.
  std::string message_of_file(const std::string& text) {
    write(text);
    return error_with_cluster(by_file_);
  }

  const TemporaryFolder folder_;
  const fs::path file_ = folder_.path() / "cluster.toml";
  const std::string by_file_ = concat("[cluster]\nconfig = '", file_.string(), "'\n");
  const ClusterDescription expected_{.ranks_per_node = 4,
                                     .within_node = {.latency_seconds = 3e-6, .bytes_per_second = 450e9},
                                     .between_nodes = {.latency_seconds = 10e-6, .bytes_per_second = 12.5e9},
                                     .flops_per_second = 0.3e12};
};

TEST_F(ClusterSection, MayBeLeftOut) {
  EXPECT_EQ(parse_with_cluster("").cluster.clock, ClockKind::real);
  EXPECT_EQ(parse_with_cluster("").cluster.description, ClusterDescription{});
}

TEST_F(ClusterSection, MayBeAFile) {
  const RunConfig config = parse_with_cluster(by_file_ + "clock = 'virtual'\n");
  EXPECT_EQ(config.cluster.clock, ClockKind::virtual_time);
  EXPECT_EQ(config.cluster.description, expected_);
}

TEST_F(ClusterSection, MayBeInline) {
  const ClusterDescription description = parse_with_cluster(inline_cluster).cluster.description;
  EXPECT_EQ(description.ranks_per_node, 2);
  EXPECT_EQ(description.within_node, (Link{.latency_seconds = 1e-6, .bytes_per_second = 8e9}));
  EXPECT_EQ(description.between_nodes, (Link{.latency_seconds = 2e-6, .bytes_per_second = 4e9}));
  EXPECT_EQ(description.flops_per_second, 0) << "measured";
}

TEST_F(ClusterSection, IsWrittenInline) {
  const RunConfig config = parse_with_cluster(by_file_ + "clock = 'wall'\n");
  const std::string written = to_toml(config);
  EXPECT_THAT(written, HasSubstr("profile = \"\"\nnum_ranks = 0\nranks_per_node = 4\ndevices_per_node = 0\n"
                                 "within_node = { latency_microseconds = 3.0, gigabytes_per_second = 450.0 }\n"
                                 "between_nodes = { latency_microseconds = 10.0, gigabytes_per_second = 12.5 }\nrails "
                                 "= 1\nmeasured_nodes = 0\n"
                                 "teraflops_per_rank = 0.3\n"));
  EXPECT_THAT(written, HasSubstr("[cluster]\nclock = \"wall\"\n"));
  fs::remove(file_);
  EXPECT_EQ(parse_run_config(written, "config.toml"), config) << "the file is needed no more";
}

TEST_F(ClusterSection, IsDescribedInOneWay) {
  EXPECT_THAT(error_with_cluster(concat(by_file_, "ranks_per_node = 2\n")),
              AllOf(HasSubstr("run.toml:3: cluster.ranks_per_node contradicts cluster.config (run.toml:2)"),
                    HasSubstr("one way")));
  EXPECT_THAT(error_with_cluster(by_file_, {"cluster.ranks_per_node=2"}),
              HasSubstr("--set cluster.ranks_per_node=2: cluster.ranks_per_node contradicts cluster.config"));
}

TEST_F(ClusterSection, AFileGivenOnTheCommandLineReplacesInlineFields) {
  const std::string override_text = concat("cluster.config=", file_.string());
  EXPECT_EQ(parse_with_cluster(inline_cluster, {override_text}).cluster.description, expected_);
  EXPECT_THAT(error_with_cluster(inline_cluster, {override_text, "cluster.ranks_per_node=8"}),
              HasSubstr("--set cluster.ranks_per_node=8: cluster.ranks_per_node contradicts cluster.config"));
}

TEST_F(ClusterSection, ClocksOtherThanRealNeedIt) {
  for (const std::string clock : {"wall", "virtual"}) {
    EXPECT_THAT(error_with_cluster("", {"cluster.clock=" + clock}),
                AllOf(HasSubstr(concat("cluster.clock \"", clock, "\"")), HasSubstr("cluster.config"),
                      HasSubstr("configs/clusters/")));
  }
}

TEST_F(ClusterSection, TheModelledClockStandsForAnotherJob) {
  const RunConfig own = parse_with_cluster(by_file_ + "clock = 'modelled'\n");
  EXPECT_EQ(predicted_job(own).model, own.model);
  EXPECT_EQ(predicted_job(own).sequence_length, own.train.sequence_length);
  EXPECT_EQ(own.cluster.true_cluster(), expected_);
  EXPECT_EQ(own.cluster.as_timed().flops_per_second, 0.3e12);

  const RunConfig other = parse_with_cluster(
      concat(by_file_, "clock = 'modelled'\nstands_for = 'llama-3.1-8b'\nstands_for_sequence_length = 8192\n",
             "stands_for_precision = 'bf16'\ntruth = 'h100-sxm'\n"),
      {"parallel.data_parallel=8", "parallel.tensor_parallel=8", "train.micro_batch=1"});
  const PredictedJob job = predicted_job(other);
  EXPECT_EQ(job.model.num_layers, 32);
  EXPECT_EQ(job.sequence_length, 8192);
  EXPECT_EQ(job.precision, Precision::bf16);
  EXPECT_EQ(other.model, own.model);
  EXPECT_EQ(num_training_ranks(other), 1);
  EXPECT_EQ(other.cluster.description, expected_);
  EXPECT_EQ(other.cluster.true_cluster().device.name, "H100 SXM 80GB");
  EXPECT_EQ(parse_run_config(to_toml(other), "config.toml"), other);
}

TEST_F(ClusterSection, MistakesOfTheModelledClockAreNamed) {
  const std::string modelled = by_file_ + "clock = 'modelled'\n";
  EXPECT_THAT(error_with_cluster("[cluster]\nclock = 'modelled'\n"), HasSubstr("none is described"));
  EXPECT_THAT(error_with_cluster(concat(inline_cluster, "clock = 'modelled'\n")),
              AllOf(HasSubstr("cluster.config does not say how fast"), HasSubstr("h100-sxm")));
  EXPECT_THAT(error_with_cluster(concat(by_file_, "stands_for = 'llama-3.1-8b'\n")),
              AllOf(HasSubstr("cluster.stands_for"), HasSubstr("cluster.clock is \"real\"")));
  for (const std::string key :
       {"stands_for_sequence_length=8", "stands_for_precision=bf16", "truth=h100-sxm", "truth_layout_error=0.1"}) {
    EXPECT_THAT(error_with_cluster(by_file_, {"cluster." + key}), HasSubstr("set cluster.clock = \"modelled\"")) << key;
  }
  EXPECT_THAT(error_with_cluster(modelled, {"cluster.truth=configs/clusters/no-such.toml"}),
              AllOf(HasSubstr("cluster.truth"), HasSubstr("no-such.toml")));
  EXPECT_THAT(error_with_cluster(concat(modelled, "truth = { ranks_per_nodes = 4 }\n")),
              HasSubstr("did you mean \"ranks_per_node\"?"));
  EXPECT_THAT(error_with_cluster(modelled, {"cluster.stands_for=no-such-model"}),
              AllOf(HasSubstr("cluster.stands_for"), HasSubstr("no-such-model")));
  EXPECT_THAT(error_with_cluster(concat(modelled, "stands_for = { vocabulary_size = 4 }\n")),
              HasSubstr("did you mean \"vocab_size\"?"));
  EXPECT_THAT(error_with_cluster(concat(modelled, "stands_for = 'mistral-7b-v0.3'\n"),
                                 {"cluster.stands_for_sequence_length=100000"}),
              HasSubstr("exceeds max_position_embeddings (32768)"));
  EXPECT_THAT(error_with_cluster(modelled, {"parallel.pipeline_parallel=32", "cluster.stands_for=llama-3.2-1b"}),
              HasSubstr("pipeline_parallel"))
      << "the layout is that of the job that it stands for";
}

TEST_F(ClusterSection, FilesThatCannotBeReadAreNamed) {
  EXPECT_THAT(
      error_with_cluster("[cluster]\nconfig = 'nowhere.toml'\n"),
      AllOf(HasSubstr("run.toml:2: cluster.config"), HasSubstr("nowhere.toml"), HasSubstr("the path of a .toml file")));
  EXPECT_THAT(error_with_cluster("[cluster]\nconfig = 3\n"),
              HasSubstr("cluster.config must be a path (a string), got 3"));
  EXPECT_THAT(error_with_cluster("[cluster]\nconfig = ''\n"), HasSubstr("must be a path"));
  EXPECT_THAT(message_of_file("ranks_per_node = = 4"), HasSubstr("cluster.toml:1:18: not valid TOML"));
}

TEST_F(ClusterSection, MistakesInTheFileNameItsLine) {
  const std::string text = cluster_text;
  const auto with = [&](const std::string& old, const std::string& replacement) {
    return message_of_file(std::string(text).replace(text.find(old), old.size(), replacement));
  };
  EXPECT_THAT(with("ranks_per_node", "rank_per_node"),
              HasSubstr("cluster.toml:1: unknown key \"rank_per_node\" in the description of a cluster; did you mean "
                        "\"ranks_per_node\"?"));
  EXPECT_THAT(with("ranks_per_node", "colour"),
              HasSubstr("its keys are num_ranks, ranks_per_node, devices_per_node, within_node, between_nodes, rails, "
                        "network_by_nodes, measured_nodes, teraflops_per_rank, device"));
  EXPECT_THAT(with("ranks_per_node = 4", ""), HasSubstr("cluster.toml: ranks_per_node is missing"));
  EXPECT_THAT(with("ranks_per_node = 4", "ranks_per_node = 0"),
              HasSubstr("cluster.toml:1: ranks_per_node must be at least 1 and at most 65536, got 0"));
  EXPECT_THAT(with("0.3", "0"), HasSubstr("cluster.toml:2: teraflops_per_rank must be at least 1e-09"));
  EXPECT_THAT(with("latency_microseconds = 3", "latency_microseconds = -3"),
              HasSubstr("cluster.toml:4: within_node needs latency_microseconds at least 0 and at most 1e+09, got -3"));
  EXPECT_THAT(with("gigabytes_per_second = 450.0", ""),
              HasSubstr("cluster.toml:3: within_node has no gigabytes_per_second; expected"));
  EXPECT_THAT(
      with("gigabytes_per_second = 450.0", "gigabits_per_second = 450.0"),
      HasSubstr("within_node has an unknown key \"gigabits_per_second\"; did you mean \"gigabytes_per_second\"?"));
  EXPECT_THAT(with("gigabytes_per_second = 12.5", "gigabytes_per_second = 0"),
              HasSubstr("cluster.toml:8: between_nodes needs gigabytes_per_second at least 1e-09"));
  EXPECT_THAT(message_of_file("ranks_per_node = 1\nwithin_node = 3\n[between_nodes]\n"),
              HasSubstr("cluster.toml:2: within_node must be a table such as { latency_microseconds = 5.0"));
}

TEST_F(ClusterSection, InlineMistakesNameTheLine) {
  EXPECT_THAT(error_with_cluster("[cluster]\nranks_per_node = 2\n"),
              HasSubstr("run.toml:1: [cluster]: within_node is missing: a cluster has ranks_per_node and two links"));
  EXPECT_THAT(error_with_cluster("[cluster]\nwithin_node = 3\n"),
              HasSubstr("run.toml:2: cluster.within_node must be a table"));
  EXPECT_THAT(error_with_cluster("[cluster]\nteraflops = 3\n"), HasSubstr("\"teraflops\" in [cluster]"));
}

TEST_F(ClusterSection, TheExampleClustersAreValid) {
  for (const std::string name : {"two-nodes-of-4", "two-small-nodes"}) {
    const std::string path = concat(COPUS_SOURCE "/configs/clusters/", name, ".toml");
    const ClusterDescription description =
        parse_with_cluster("", {concat("cluster.config=", path)}).cluster.description;
    EXPECT_EQ(description.ranks_per_node, 4) << name;
    EXPECT_GT(description.within_node.bytes_per_second, description.between_nodes.bytes_per_second) << name;
    EXPECT_LT(description.within_node.latency_seconds, description.between_nodes.latency_seconds) << name;
  }
}

}  // namespace
}  // namespace copus
