// Tests finding clusters and models by name and by path, and every field of a cluster's file.
#include "copus/config/descriptions.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/config/shipped_files.h"

namespace copus {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* full_cluster_text = R"(num_ranks = 16
ranks_per_node = 8
devices_per_node = 2
rails = 4
network_by_nodes = [[1, 1.0], [2, 0.83], [64, 0.1]]
measured_nodes = 64
[within_node]
latency_microseconds = 3
gigabytes_per_second = 450.0
efficiency = [[1e6, 0.1], [64e6, 0.75]]
[between_nodes]
latency_microseconds = 10.0
gigabytes_per_second = 12.5
tree_microseconds = 40
[device]
name = "H100"
memory_gigabytes = 80
memory_gigabytes_per_second = 2520
peak_teraflops = 989.4
matmul_teraflops = 794.5
matmul_by_rows = [[128, 0.3], [4096, 1]]
matmul_by_columns = [[256, 0.4]]
matmul_by_depth = [[512, 0.5]]
attention_forward = [[512, 0.4], [2048, 0.6]]
attention_backward = [[512, 0.2]]
launch_microseconds = 4
[communicators]
collective_megabytes = 610
exchange_megabytes = 20
message_megabytes = 17
context_megabytes = 520
split_milliseconds = 350
)";

TEST(Descriptions, AClusterFileMaySayAll) {
  const ClusterDescription expected{
      .num_ranks = 16,
      .ranks_per_node = 8,
      .devices_per_node = 2,
      .within_node = {3e-6, 450e9, Curve({{1e6, 0.1}, {64e6, 0.75}})},
      .between_nodes = {.latency_seconds = 10e-6, .bytes_per_second = 12.5e9, .tree_seconds = 40e-6},
      .rails = 4,
      .network_by_nodes = Curve({{1, 1}, {2, 0.83}, {64, 0.1}}),
      .measured_nodes = 64,
      .device = {.name = "H100",
                 .memory_bytes = 80e9,
                 .memory_bytes_per_second = 2520e9,
                 .peak_flops_per_second = 989.4e12,
                 .matmul_flops_per_second = 794.5e12,
                 .matmul_by_rows = Curve({{128, 0.3}, {4096, 1}}),
                 .matmul_by_columns = Curve({{256, 0.4}}),
                 .matmul_by_depth = Curve({{512, 0.5}}),
                 .attention_forward = Curve({{512, 0.4}, {2048, 0.6}}),
                 .attention_backward = Curve({{512, 0.2}}),
                 .launch_seconds = 4e-6},
      .communicators = {.collective_bytes = 610e6,
                        .exchange_bytes = 20e6,
                        .message_bytes = 17e6,
                        .context_bytes = 520e6,
                        .split_seconds = 0.35}};
  EXPECT_EQ(parse_cluster(full_cluster_text, "c.toml"), expected);
  EXPECT_EQ(parse_cluster(to_toml(expected), "c.toml"), expected) << to_toml(expected);
}

// Replaces `old` in a valid cluster file, parses the file, and returns the error message.
std::string complaint(const std::string& old, const std::string& replacement) {
  std::string text = full_cluster_text;
  text.replace(text.find(old), old.size(), replacement);
  return user_error([&] { parse_cluster(text, "c.toml"); });
}

TEST(Descriptions, MistakesInCurvesAreNamed) {
  EXPECT_THAT(complaint("[[256, 0.4]]", "0.4"),
              HasSubstr("c.toml:22: device.matmul_by_columns must be a list of points in ascending order such as "
                        "[[1e6, 0.2], [64e6, 0.9]], got 0.4"));
  EXPECT_THAT(complaint("[[256, 0.4]]", "[256, 0.4]"), HasSubstr("got 256 as a point"));
  EXPECT_THAT(complaint("[[256, 0.4]]", "[[256, 0.4, 1]]"), HasSubstr("got a list as a point"));
  EXPECT_THAT(complaint("[[256, 0.4]]", "[[256, 'x']]"), HasSubstr("must be a number, got the string \"x\""));
  EXPECT_THAT(complaint("[[256, 0.4]]", "[[256, '40%']]"), HasSubstr("; a share of 40% is written 0.4"));
  EXPECT_THAT(complaint("[[256, 0.4]]", "[[0, 0.4]]"), HasSubstr("has a point at 0; expected at least 1e-09"));
  EXPECT_THAT(complaint("[[256, 0.4]]", "[[256, 0]]"),
              HasSubstr("has a share of 0 at 256; expected at least 1e-09 and at most 10"));
  EXPECT_THAT(complaint("[64, 0.1]", "[2, 0.1]"),
              HasSubstr("c.toml:5: network_by_nodes must be a list of points in ascending order"));
  EXPECT_THAT(complaint("[64, 0.1]", "[2, 0.1]"), HasSubstr("got a point at 2 after one at 2"));
  EXPECT_THAT(complaint("[[1e6, 0.1], [64e6, 0.75]]", "[[1e6, 30.0]]"), HasSubstr("within_node has a share of 30"));
}

TEST(Descriptions, MistakesInTheDeviceAreNamed) {
  EXPECT_THAT(complaint("peak_teraflops", "peek_teraflops"),
              HasSubstr("c.toml:19: device has an unknown key \"peek_teraflops\"; did you mean \"peak_teraflops\"?"));
  EXPECT_THAT(complaint("peak_teraflops = 989.4", "peak_teraflops = 0"),
              HasSubstr("c.toml:19: device.peak_teraflops must be at least 1e-09"));
  EXPECT_THAT(complaint("name = \"H100\"", "name = 100"), HasSubstr("device.name must be a string, got 100"));
  EXPECT_THAT(complaint("rails = 4", "rails = 0"), HasSubstr("c.toml:4: rails must be at least 1"));
  EXPECT_THAT(complaint("num_ranks = 16", "num_ranks = -1"), HasSubstr("c.toml:1: num_ranks must be at least 0"));
  EXPECT_THAT(user_error([] {
                parse_cluster("device = 3\nranks_per_node = 1\nwithin_node = {}\nbetween_nodes = {}\n", "c.toml");
              }),
              HasSubstr("within_node has no latency_microseconds"));
  // Tree times apply only to links between nodes.
  EXPECT_THAT(complaint("gigabytes_per_second = 450.0", "gigabytes_per_second = 450.0\ntree_microseconds = 4"),
              HasSubstr("within_node has an unknown key \"tree_microseconds\""));
}

TEST(Descriptions, ACalibrationFileHoldsCriticalBatches) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "calibration.json";
  const auto file = [](int version, const std::string& critical_batches) {
    return concat("{\"version\": ", version, ", \"critical_batches\": ", critical_batches, "}");
  };
  const std::string point =
      "{\"tokens\": 1e6, \"noise_scale_tokens\": 200, \"critical_batch_tokens\": 300, \"deviation\": 0.1}";
  write_file_durably(path, file(2, "[" + point + "]"));
  const std::vector<MeasuredCriticalBatch> expected = {{1e6, 200, 300, 0.1}};
  EXPECT_EQ(read_calibration_file(path, "x"), expected);
  write_file_durably(path, file(1, "[" + point + "]"));
  EXPECT_THAT(
      user_error([&] { read_calibration_file(path, "x"); }),
      HasSubstr("its format is of version 1, and this Copus reads version 2 alone; run `copus calibrate` again"));
  std::string endless = point;
  endless.replace(endless.find("1e6"), 3, "1e300");
  for (const std::string& text : {std::string("[1.5]"), std::string("{"), file(2, "[]"), file(2, "[1]"),
                                  file(2, "[{\"tokens\": 1}]"), file(2, "[" + endless + "]"), file(2, deep_json())}) {
    write_file_durably(path, text);
    EXPECT_THAT(user_error([&] { read_calibration_file(path, "x"); }), HasSubstr("holds no \"critical_batches\""))
        << text;
  }
}

TEST(Descriptions, EveryShippedFileIsReadByItsName) {
  const std::vector<std::string> clusters = names_of_shipped_clusters();
  EXPECT_THAT(clusters, testing::IsSupersetOf({"a100-sxm", "h100-sxm", "mi210", "two-small-nodes"}));
  for (const std::string& name : clusters) {
    const std::string path = concat(COPUS_SOURCE "/configs/clusters/", name, ".toml");
    EXPECT_EQ(find_cluster(name), read_cluster_file(path, "test")) << name;
    EXPECT_EQ(find_cluster(path), find_cluster(name)) << name;
  }
  const std::vector<std::string> models = names_of_shipped_models();
  EXPECT_THAT(models, testing::IsSupersetOf({"llama-3.2-3b", "llama-2-13b", "qwen2.5-32b", "llama-2-7b"}));
  for (const std::string& name : models) {
    const std::string path = concat(COPUS_SOURCE "/configs/models/", name, ".json");
    EXPECT_EQ(find_model(name), parse_model_description(read_text_file(path), path)) << name;
    EXPECT_EQ(find_model(path), find_model(name)) << name;
  }
}

// The parameter counts are from model cards and papers.
TEST(Descriptions, ShippedModelsHaveTheirPublishedSizes) {
  const std::vector<std::pair<const char*, int64_t>> sizes = {
      {"llama-2-7b", 6738415616},     {"llama-2-13b", 13015864320},     {"llama-3.1-8b", 8030261248},
      {"llama-3.1-70b", 70553706496}, {"llama-3.1-405b", 405853388800}, {"llama-3.2-3b", 3212749824},
      {"qwen2.5-32b", 32763876352}};
  for (const auto& [name, parameters] : sizes) EXPECT_EQ(count_parameters(find_model(name)), parameters) << name;
}

TEST(Descriptions, ShippedDevicesHaveWhatAPlanNeeds) {
  for (const std::string name : {"h100-sxm", "a100-sxm", "mi210"}) {
    const ClusterDescription cluster = find_cluster(name);
    EXPECT_EQ(cluster.ranks_per_node, 8) << name;
    EXPECT_GT(cluster.device.memory_bytes, 0) << name;
    EXPECT_GT(cluster.device.memory_bytes_per_second, 1e12) << name;
    EXPECT_GT(cluster.device.matmul_flops_per_second, 5e13) << name;
    EXPECT_GT(cluster.device.peak_flops_per_second, cluster.device.matmul_flops_per_second) << name;
    EXPECT_GT(cluster.within_node.bytes_per_second, cluster.between_nodes.bytes_per_second) << name;
  }
}

TEST(Descriptions, UnknownNamesListThoseThatThereAre) {
  EXPECT_THAT(user_error([] { find_cluster("h100-smx"); }),
              AllOf(HasSubstr("--cluster h100-smx: there is no such file"), HasSubstr("did you mean h100-sxm?"),
                    HasSubstr("a100-sxm, "), HasSubstr("two-small-nodes")));
  EXPECT_THAT(user_error([] { find_model("t5-large"); }),
              AllOf(HasSubstr("--model t5-large"),
                    HasSubstr("a .json file, or one of gemma-2-2b, gemma-3-1b, gpt2, granite-3.1-2b, "),
                    testing::Not(HasSubstr("did you mean"))));
}

TEST(Descriptions, ANameMayBeTooLongForAFile) {
  const std::string name(5000, 'x');
  EXPECT_THAT(user_error([&] { find_cluster(name); }), HasSubstr("there is no such file"));
  EXPECT_THAT(user_error([&] { find_model(name); }), HasSubstr("there is no such file"));
  EXPECT_THAT(user_error([&] { read_model_file(name, "cluster.stands_for"); }), HasSubstr("cluster.stands_for"));
}

TEST(Descriptions, AModelMayBeAFolder) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json") << read_text_file(COPUS_SOURCE "/configs/models/llama-2-7b.json");
  EXPECT_EQ(find_model(folder.path().string()), find_model("llama-2-7b"));
  fs::remove(folder.path() / "config.json");
  EXPECT_THAT(user_error([&] { find_model(folder.path().string()); }), HasSubstr("config.json"));
}

}  // namespace
}  // namespace copus
