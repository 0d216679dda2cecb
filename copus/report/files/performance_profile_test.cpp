#include "copus/report/files/performance_profile.h"

#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ClusterDescription small_cluster() {
  ClusterDescription cluster;
  cluster.num_ranks = 8;
  cluster.ranks_per_node = 4;
  cluster.within_node = {1e-6, 2e11, Curve({{1e3, 0.1}, {1e6, 0.7}})};
  cluster.between_nodes = {5e-6, 1e10};
  cluster.network_by_nodes = Curve({{1, 1}, {2, 0.8}});
  cluster.device.name = "Example 9";
  cluster.device.matmul_flops_per_second = 1.0 / 3;
  return cluster;
}

ModelDescription small_model() {
  ModelDescription model;
  model.vocab_size = 256;
  model.hidden_size = 64;
  model.intermediate_size = 128;
  model.num_layers = 2;
  model.num_heads = model.num_kv_heads = 4;
  model.head_dim = 16;
  return model;
}

ProfileSubject small_subject(std::optional<ClockKind> clock = ClockKind::virtual_time) {
  return profile_subject(small_model(), 128, "fp32", small_cluster(), clock);
}

PerformanceProfile small_profile() {
  PerformanceProfile profile{small_subject(), {}};
  Configuration plain;
  plain.global_batch = 8;
  const Configuration rich{{2, 4, 3, 2, PipelineSchedule::interleaved_1f1b, true, 1, Recompute::attention}, 48, 2};
  const StepTimeParts parts{1.0 / 3, 0.1, 0.2, 0.05, 1e-3};
  profile.knowledge = observe(profile.knowledge, plain, parts, {10, 1.0 / 7, 0.01});
  profile.knowledge = observe(profile.knowledge, rich, parts, {10, 0.9, 0.02});
  profile.knowledge = observe(profile.knowledge, rich, parts, {5, 0.8, 0});
  return profile;
}

class PerformanceProfileTest : public TestDirectory {
 protected:
  nlohmann::json written() {
    write_profile(path_, small_profile());
    return nlohmann::json::parse(read_text_file(path_));
  }

  // The message about a file that `change` has damaged.
  std::string message_after(const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = written();
    change(json);
    write_file_durably(path_, json.dump());
    return user_error([&] { read_profile(path_); });
  }

  const std::filesystem::path path_ = directory_ / "profile.json";
};

TEST_F(PerformanceProfileTest, ComesBackToTheSameBits) {
  write_profile(path_, small_profile());
  EXPECT_EQ(read_profile(path_), small_profile());
  EXPECT_EQ(read_knowledge(path_, small_subject()), small_profile().knowledge);
  EXPECT_EQ(read_knowledge(path_, small_subject(std::nullopt)), small_profile().knowledge);
  EXPECT_EQ(list_directory(directory_), std::vector<std::string>{"profile.json"});
}

TEST_F(PerformanceProfileTest, AnEmptyOneComesBackToo) {
  write_profile(path_, {small_subject(), {}});
  EXPECT_EQ(read_profile(path_).knowledge, Knowledge());
}

TEST_F(PerformanceProfileTest, FieldNames) {
  const nlohmann::json json = written();
  EXPECT_EQ(json.at("format"), "copus-profile");
  EXPECT_EQ(json.at("version"), 1);
  EXPECT_EQ(json.at("subject").at("num_hidden_layers"), 2);
  EXPECT_EQ(json.at("subject").at("clock"), "virtual");
  const nlohmann::json& cell = json.at("cells").at(1);
  EXPECT_THAT(cell.at("configuration").get<std::string>(), HasSubstr(",schedule=interleaved,sp=1,"));
  EXPECT_THAT(cell.at("configuration").get<std::string>(), HasSubstr(",recompute=attention"));
  EXPECT_EQ(cell.at("predicted_seconds").at("tensor_communication"), 0.1);
  EXPECT_EQ(cell.at("steps"), 15);
  EXPECT_EQ(cell.at("median_seconds"), 0.9);
  EXPECT_EQ(cell.at("measurements").at(1).at("median_seconds"), 0.8);
}

TEST_F(PerformanceProfileTest, DeepNestingIsDamage) {
  for (const char* before : {"{\"format\":", "{\"format\":\"copus-profile\",\"version\":"}) {
    write_file_durably(path_, concat(before, deep_json(), "}"));
    EXPECT_THAT(user_error([&] { read_profile(path_); }), HasSubstr("is no profile, or a damaged one"));
  }
}

TEST_F(PerformanceProfileTest, DamageIsNamedWithWhatToDo) {
  const auto expect = [](const std::string& message, const std::string& what) {
    EXPECT_THAT(message, AllOf(HasSubstr("profile.json: is no profile, or a damaged one: "), HasSubstr(what),
                               HasSubstr("measure again"), HasSubstr("remove the file")));
  };
  const auto cell = [](nlohmann::json& json) -> nlohmann::json& { return json["cells"][0]; };
  expect(message_after([](auto& json) { json = nlohmann::json::array(); }), "no \"format\"");
  expect(message_after([](auto& json) { json["format"] = "copus-checkpoint"; }), "copus-checkpoint");
  expect(message_after([](auto& json) { json["version"] = 2; }),
         "its format is of version 2, and this Copus reads version 1");
  expect(message_after([](auto& json) { json["version"] = "1"; }), "its format is of version \"1\"");
  expect(message_after([](auto& json) { json["subject"].erase("cluster"); }), "no \"cluster\"");
  expect(message_after([](auto& json) { json["subject"]["clock"] = nullptr; }), "\"clock\"");
  expect(message_after([](auto& json) { json["cells"] = 3; }), "\"cells\" is not a list");
  expect(message_after([](auto& json) { json["cells"].push_back(json["cells"][0]); }), "twice");
  expect(message_after([&](auto& json) { cell(json)["configuration"] = "d=1,t=1,p=1,B=1,b=1,schedule=2f2b"; }),
         "\"schedule=2f2b\"");
  expect(message_after([&](auto& json) { cell(json)["configuration"] = "d=0,t=1,p=1,B=1,b=1"; }), "from 1 to");
  expect(message_after([&](auto& json) { cell(json)["configuration"] = "d=1,t=1,p=1"; }), "does not say B");
  expect(message_after([&](auto& json) { cell(json)["predicted_seconds"]["compute"] = -1; }), "negative");
  expect(message_after([&](auto& json) { cell(json)["predicted_seconds"]["bubble"] = nullptr; }), "not a number");
  expect(message_after([&](auto& json) {
           for (auto& part : cell(json)["predicted_seconds"]) part = 0;
         }),
         "all 0");
  expect(message_after([&](auto& json) { cell(json)["measurements"] = nlohmann::json::array(); }), "no measurements");
  expect(message_after([&](auto& json) { cell(json)["measurements"][0]["steps"] = 0; }), "steps");
  expect(message_after([&](auto& json) { cell(json)["measurements"][0]["median_seconds"] = 0; }), "not above 0");
  expect(message_after([&](auto& json) { cell(json)["measurements"][0]["relative_spread"] = -1; }), "out of range");
  expect(message_after([&](auto& json) { cell(json)["measurements"][0]["relative_spread"] = 1e200; }), "out of range");

  const std::string text = written().dump();
  write_file_durably(path_, text.substr(0, text.size() / 2));
  expect(user_error([&] { read_profile(path_); }), "");
  EXPECT_THAT(user_error([&] { read_profile(directory_ / "nowhere.json"); }), HasSubstr("nowhere.json"));
}

TEST_F(PerformanceProfileTest, AProfileOfSomethingElseIsRefused) {
  write_profile(path_, small_profile());
  const auto expect = [&](const ProfileSubject& subject, const std::string& what) {
    EXPECT_THAT(user_error([&] { read_knowledge(path_, subject); }),
                AllOf(HasSubstr("profile.json: this profile was measured for something else: " + what),
                      HasSubstr("copus profile"), HasSubstr("leave the profile out")));
  };
  ProfileSubject other = small_subject();
  other.sizes.hidden_size = 128;
  expect(other, "hidden_size is 64 there and 128 here");
  other = small_subject();
  other.sequence_length = 256;
  expect(other, "sequence_length is 128 there and 256 here");
  other = small_subject();
  other.precision = "bf16";
  expect(other, "precision is \"fp32\" there and \"bf16\" here");
  expect(small_subject(ClockKind::real), "clock is \"virtual\" there and \"real\" here");
  ClusterDescription cluster = small_cluster();
  cluster.device.name = "Example 10";
  expect(profile_subject(small_model(), 128, "fp32", cluster, {}), "device is \"Example 9\" there");
  cluster = small_cluster();
  cluster.between_nodes.efficiency = Curve({{1e6, 0.5}});
  expect(profile_subject(small_model(), 128, "fp32", cluster, {}), "the description of the cluster is another one");
}

TEST_F(PerformanceProfileTest, WhatChangesNoTimeMakesNoOtherSubject) {
  ClusterDescription cluster = small_cluster();
  cluster.num_ranks = 64;
  cluster.device.memory_bytes = 1e9;
  cluster.device.peak_flops_per_second = 1;
  ModelDescription model = small_model();
  model.rope_theta = 5e5;
  EXPECT_EQ(profile_subject(model, 128, "fp32", cluster, ClockKind::virtual_time), small_subject());
}

}  // namespace
}  // namespace copus
