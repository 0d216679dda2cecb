#include "copus/description/configuration_text.h"

#include <gmock/gmock.h>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

std::string refusal(const char* text) {
  return user_error([&] { parse_configuration_change(text); });
}

Configuration parse(const char* text) { return apply(parse_configuration_change(text), {}); }

const Configuration interleaved{{.data_parallel = 2,
                                 .tensor_parallel = 2,
                                 .pipeline_parallel = 2,
                                 .virtual_stages = 2,
                                 .schedule = PipelineSchedule::interleaved_1f1b,
                                 .sequence_parallel = true,
                                 .zero_stage = 1,
                                 .recompute = Recompute::full},
                                32,
                                4};

TEST(ConfigurationText, IsReadPartByPartInAnyOrder) {
  const char* const all = "d=2,t=2,p=2,B=32,b=4,v=2,schedule=interleaved,sp=1,zero=1,recompute=full";
  EXPECT_EQ(parse(all), interleaved);
  EXPECT_EQ(parse("recompute=full,b=4,B=32,zero=1,sp=1,schedule=interleaved,v=2,p=2,t=2,d=2"), interleaved);
  EXPECT_EQ(to_string(interleaved), all);
}

TEST(ConfigurationText, NamesWhatItNames) {
  const ConfigurationChange change = parse_configuration_change("B=32,zero=0");
  EXPECT_EQ(change.values.global_batch, 32);
  EXPECT_TRUE(change.names("B") && change.names("zero"));
  EXPECT_FALSE(change.names("b") || change.names("d") || change.names("no such part"));
  EXPECT_EQ(to_string(change), "B=32,zero=0") << "by default or not";
}

TEST(ConfigurationText, OptionsAreWrittenWhereTheyAreNotAsByDefault) {
  EXPECT_EQ(to_string(ParallelStrategy()), "d=1,t=1,p=1");
  EXPECT_EQ(to_string(Configuration()), "d=1,t=1,p=1,B=1,b=1");
  EXPECT_EQ(to_string(ParallelStrategy{.data_parallel = 4, .zero_stage = 1}), "d=4,t=1,p=1,zero=1");
  EXPECT_EQ(to_string(Configuration{{.pipeline_parallel = 2, .recompute = Recompute::full}, 16, 4}),
            "d=1,t=1,p=2,B=16,b=4,recompute=full");
}

TEST(ConfigurationText, IsReadBackWhateverIsMeantByWhatIsLeftOut) {
  const Configuration plain{{.data_parallel = 2, .tensor_parallel = 2, .pipeline_parallel = 2}, 8, 2};
  for (const Configuration& configuration : {plain, interleaved}) {
    for (const Configuration& otherwise : {plain, interleaved}) {
      const std::string text = to_string(configuration, otherwise);
      EXPECT_EQ(apply(parse_configuration_change(text), otherwise), configuration) << text;
    }
  }
  EXPECT_EQ(to_string(plain, plain), "d=2,t=2,p=2,B=8,b=2");
}

TEST(ConfigurationText, NamesThePartThatIsWrong) {
  EXPECT_THAT(refusal("d=2,t"), AllOf(HasSubstr("\"t\""), HasSubstr("NAME=VALUE")));
  EXPECT_THAT(refusal(""), HasSubstr("d=2,t=1,p=2,B=32"));
  EXPECT_THAT(refusal("d=2,"), HasSubstr("NAME=VALUE"));
  EXPECT_THAT(refusal("=2"), HasSubstr("its parts are d (data parallelism), t ("));
  EXPECT_THAT(refusal("d="), HasSubstr("\"d=\": expected a whole number from 1 to 131072"));
  EXPECT_THAT(refusal("d=two"), HasSubstr("\"d=two\": expected a whole number from 1 to 131072"));
  EXPECT_THAT(refusal("d=2.5"), HasSubstr("\"d=2.5\""));
  EXPECT_THAT(refusal("d=8x"), HasSubstr("\"d=8x\""));
  EXPECT_THAT(refusal("t=0"), HasSubstr("\"t=0\""));
  EXPECT_THAT(refusal("B=99999999999999999999"), HasSubstr("from 1 to 16777216"));
  EXPECT_THAT(refusal("zero=4"), AllOf(HasSubstr("\"zero=4\""), HasSubstr("from 0 to 3")));
  EXPECT_THAT(refusal("sp=2"), HasSubstr("from 0 to 1"));
  EXPECT_THAT(refusal("schedule=zb"), AllOf(HasSubstr("\"schedule=zb\""), HasSubstr("zb-h1")));
  EXPECT_THAT(refusal("recompute=1"), HasSubstr("none, attention, full"));
  EXPECT_THAT(refusal("q=32"), AllOf(HasSubstr("\"q=32\""), HasSubstr("b (the micro-batch)")));
  EXPECT_THAT(refusal("shedule=1f1b"), HasSubstr("did you mean \"schedule\"?"));
  EXPECT_THAT(refusal("d=2,d=4"), HasSubstr("\"d\" is given twice"));
}

TEST(ConfigurationText, AWholeConfigurationSaysEachDegreeAndBatchOnce) {
  const auto refusal_of = [](const char* text) { return user_error([&] { parse_configuration(text); }); };
  EXPECT_EQ(parse_configuration(to_string(interleaved)), interleaved);
  EXPECT_EQ(parse_configuration("d=2,t=1,p=1,B=4,b=1").strategy.virtual_stages, 1);
  EXPECT_EQ(refusal_of("d=2,t=1,p=1,B=4"),
            "\"d=2,t=1,p=1,B=4\" does not say b (the micro-batch); expected all of d=1,t=1,p=1,B=1,b=1");
  EXPECT_THAT(refusal_of("d=2,d=2,t=1,p=1,B=4,b=1"), HasSubstr("\"d\" is given twice"));
  EXPECT_THAT(refusal_of("d=2,t=1,p=1,e=2,B=4,b=1"), HasSubstr("a configuration has no \"e\""));
  EXPECT_THAT(refusal_of("2x1x1"), HasSubstr("\"2x1x1\" is no part of a configuration"));
  EXPECT_EQ(parse_strategy(to_string(interleaved.strategy)), interleaved.strategy);
  EXPECT_THAT(user_error([] { parse_strategy("d=2,t=1"); }), HasSubstr("does not say p (pipeline parallelism)"));
  EXPECT_THAT(user_error([] { parse_strategy("d=2,t=1,p=1,B=4"); }), HasSubstr("says B (the global batch)"));
}

TEST(ConfigurationText, IsARowOfATable) {
  using testing::ElementsAre;
  EXPECT_THAT(configuration_rows({interleaved, {}}),
              ElementsAre(ElementsAre("B", "b", "d", "t", "p", "v", "schedule", "sp", "zero", "recompute"),
                          ElementsAre("32", "4", "2", "2", "2", "2", "interleaved", "1", "1", "full"),
                          ElementsAre("1", "1", "1", "1", "1", "-", "-", "-", "-", "-")));
  Configuration keeps = interleaved;
  keeps.strategy.zero_stage = 3;
  keeps.strategy.reshard_after_forward = false;
  EXPECT_THAT(configuration_rows({interleaved, keeps}),
              ElementsAre(testing::Contains("reshard"), testing::Contains("-"), testing::Contains("0")));
  EXPECT_THAT(configuration_rows({{}}).front(), ElementsAre("B", "b", "d", "t", "p"));
}

TEST(ConfigurationChange, LeavesWhatItDoesNotNameButForWhatTheLayoutExcludes) {
  const auto changed = [&](const char* text) { return apply(parse_configuration_change(text), interleaved); };
  Configuration expected = interleaved;
  expected.global_batch = 64;
  EXPECT_EQ(changed("B=64"), expected);
  expected = {{.data_parallel = 8, .zero_stage = 1, .recompute = Recompute::full}, 32, 4};
  EXPECT_EQ(changed("d=8,t=1,p=1"), expected);
  EXPECT_EQ(changed("d=1,t=4,p=2").strategy.zero_stage, 0);
  EXPECT_TRUE(changed("d=1,t=4,p=2").strategy.sequence_parallel);
  EXPECT_EQ(changed("p=1,v=2").strategy.virtual_stages, 2) << "what is asked for is not silently dropped";
}

TEST(ConfigurationChange, MatchesWhereAllThatIsNamedIsSo) {
  EXPECT_TRUE(matches(parse_configuration_change("d=2,b=4"), interleaved));
  EXPECT_FALSE(matches(parse_configuration_change("d=2,b=2"), interleaved));
}

TEST(ConfigurationChange, IsToldSoThatItCanBeRepeated) {
  const Configuration small{{.tensor_parallel = 2, .pipeline_parallel = 2}, 16, 4};
  const Configuration large{{.data_parallel = 4, .zero_stage = 1}, 32, 4};
  EXPECT_EQ(describe_change(small, large), "d=1,t=2,p=2,B=16,zero=0 -> d=4,t=1,p=1,B=32,zero=1");
  EXPECT_EQ(describe_change(large, {large.strategy, 64, 4}), "B=32 -> B=64");
  EXPECT_EQ(describe_change(small, small), "");
  for (const auto& [from, to] : {std::pair{small, large}, {large, small}, {large, interleaved}, {interleaved, small}}) {
    const std::string told = describe_change(from, to);
    EXPECT_EQ(apply(parse_configuration_change(told.substr(told.find("-> ") + 3)), from), to) << told;
  }
}

}  // namespace
}  // namespace copus
