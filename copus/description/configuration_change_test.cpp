#include "copus/description/configuration_change.h"

#include <gmock/gmock.h>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const char* text) {
  return user_error([&] { parse_configuration_change(text); });
}

TEST(ConfigurationChange, IsReadPartByPart) {
  ConfigurationChange expected;
  expected.data_parallel = 2;
  expected.tensor_parallel = 1;
  expected.pipeline_parallel = 4;
  expected.global_batch = 32;
  EXPECT_EQ(parse_configuration_change("d=2,t=1,p=4,B=32"), expected);
  expected.micro_batch = 4;
  expected.virtual_stages = 2;
  expected.schedule = PipelineSchedule::interleaved_1f1b;
  expected.zero_stage = 1;
  expected.sequence_parallel = false;
  expected.recompute = Recompute::full;
  EXPECT_EQ(parse_configuration_change("d=2,t=1,p=4,B=32,Bm=4,v=2,schedule=interleaved,zero=1,sp=0,recompute=full"),
            expected);
}

TEST(ConfigurationChange, NamesThePartThatIsWrong) {
  EXPECT_THAT(refusal("d=2,t"), AllOf(HasSubstr("\"t\""), HasSubstr("NAME=VALUE")));
  EXPECT_THAT(refusal(""), HasSubstr("d=2,t=1,p=2,B=32"));
  EXPECT_THAT(refusal("d=2,"), HasSubstr("NAME=VALUE"));
  EXPECT_THAT(refusal("d=two"), AllOf(HasSubstr("\"d=two\""), HasSubstr("whole number, at least 1")));
  EXPECT_THAT(refusal("d=2.5"), HasSubstr("\"d=2.5\""));
  EXPECT_THAT(refusal("t=0"), HasSubstr("\"t=0\""));
  EXPECT_THAT(refusal("zero=3"), AllOf(HasSubstr("\"zero=3\""), HasSubstr("from 0 to 1")));
  EXPECT_THAT(refusal("schedule=zb"), AllOf(HasSubstr("\"schedule=zb\""), HasSubstr("zb-h1")));
  EXPECT_THAT(refusal("recompute=1"), HasSubstr("none, attention, full"));
  EXPECT_THAT(refusal("b=32"), AllOf(HasSubstr("\"b\""), HasSubstr("B and Bm")));
  EXPECT_THAT(refusal("d=2,d=4"), HasSubstr("\"d\" is given twice"));
}

TEST(ConfigurationChange, LeavesWhatItDoesNotNameButForWhatTheLayoutExcludes) {
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

TEST(ConfigurationChange, IsToldInWords) {
  const Configuration small{{.tensor_parallel = 2, .pipeline_parallel = 2}, 16, 4};
  const Configuration large{{.data_parallel = 4, .zero_stage = 1}, 32, 4};
  EXPECT_EQ(describe_change(small, large), "batch 16 -> 32, layout 1x2x2 -> 4x1x1, zero 0 -> 1");
  EXPECT_EQ(describe_change(small, small), "");
  EXPECT_EQ(describe_configuration(small), "batch 16 of micro-batches of 4 in layout 1x2x2");
  EXPECT_EQ(describe_configuration(large), "batch 32 of micro-batches of 4 in layout 4x1x1 (zero 1)");
}

}  // namespace
}  // namespace copus
