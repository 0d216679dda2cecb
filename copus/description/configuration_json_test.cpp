#include "copus/description/configuration_json.h"

#include <gmock/gmock.h>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using testing::HasSubstr;

Configuration every_field_unusual() {
  return {.strategy = {.data_parallel = 2,
                       .tensor_parallel = 3,
                       .pipeline_parallel = 4,
                       .virtual_stages = 5,
                       .schedule = PipelineSchedule::interleaved_1f1b,
                       .sequence_parallel = true,
                       .zero_stage = 3,
                       .recompute = Recompute::attention,
                       .reshard_after_forward = false,
                       .zero_replicas = 2},
          .global_batch = 96,
          .micro_batch = 6};
}

TEST(ConfigurationJson, ReadsBackEqual) {
  EXPECT_EQ(configuration_from_json(to_json(every_field_unusual())), every_field_unusual());
  EXPECT_EQ(configuration_from_json(to_json(Configuration())), Configuration());
}

TEST(ConfigurationJson, HasStableNames) {
  EXPECT_EQ(to_json(every_field_unusual()),
            R"({"data_parallel":2,"tensor_parallel":3,"pipeline_parallel":4,"virtual_stages":5,)"
            R"("schedule":"interleaved","sequence_parallel":true,"zero_stage":3,"recompute":"attention",)"
            R"("reshard_after_forward":false,"zero_replicas":2,)"
            R"("global_batch":96,"micro_batch":6})");
}

TEST(ConfigurationJson, LaterFieldsMayBeAbsent) {
  std::string text = to_json(Configuration());
  const std::string later = R"("reshard_after_forward":true,"zero_replicas":1,)";
  ASSERT_NE(text.find(later), std::string::npos);
  text.erase(text.find(later), later.size());
  EXPECT_EQ(configuration_from_json(text), Configuration());
}

TEST(ConfigurationJson, RefusesDeepNesting) {
  std::string text = to_json(Configuration());
  const std::string schedule = "\"1f1b\"";
  text.replace(text.find(schedule), schedule.size(), deep_json());
  EXPECT_THAT(user_error([&] { configuration_from_json(text); }), HasSubstr("not a JSON object"));
}

TEST(ConfigurationJson, NamesTheFieldThatIsWrong) {
  const std::string good = to_json(Configuration());
  const auto message_with = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return user_error([&] { configuration_from_json(text); });
  };
  EXPECT_THAT(message_with("\"micro_batch\":1", "\"micro_batch\":0"), HasSubstr("\"micro_batch\""));
  EXPECT_THAT(message_with("\"micro_batch\":1", "\"micro_batch\":1.5"), HasSubstr("not an integer"));
  EXPECT_THAT(message_with("\"micro_batch\":1", "\"micro_batch\":18446744073709551615"),
              HasSubstr("not an integer of 64"));
  EXPECT_THAT(message_with("data_parallel", "date_parallel"), HasSubstr("no \"data_parallel\""));
  EXPECT_THAT(message_with("1f1b", "2f2b"), HasSubstr("\"2f2b\", which is not known"));
  EXPECT_THAT(message_with("\"zero_stage\":0", "\"zero_stage\":-1"),
              HasSubstr("\"zero_stage\" of a configuration is below 0"));
  EXPECT_THAT(user_error([] { configuration_from_json("{"); }), HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace copus
