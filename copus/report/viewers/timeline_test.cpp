#include "copus/report/viewers/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using Json = nlohmann::json;

TimelineEvent compute(const std::string& name, double begin, double end, int64_t step = 1, int64_t micro_batch = 0) {
  return {"pipeline", name, begin, end, step, 0, micro_batch, TimelineTrack::compute};
}

TimelineEvent communication(const std::string& name, double begin, double end, int64_t step = 1) {
  return {"collective", name, begin, end, step, -1, -1, TimelineTrack::communication};
}

// Timelines of two ranks and two steps; rank 0 begins step 2 while rank 1 is still in step 1.
std::vector<RankTimeline> two_ranks() {
  return {{"rank 0 (dp 0, tp 0, pp 0)",
           {compute("F", 0, 1), communication("send activation", 1, 1.25), compute("B", 4, 5.5),
            communication("all_reduce data", 5, 7), communication("all_reduce data", 6, 8), compute("F", 8, 9, 2)}},
          {"rank 1 (dp 0, tp 0, pp 1)",
           {communication("receive activation", 0, 1.25), compute("F", 1.25, 2.25), compute("B", 2.25, 3.75),
            compute("optimizer", 8, 8.5), compute("F", 10, 11, 2)}}};
}

class TimelineTest : public TestDirectory {
 protected:
  Json events_of(const std::vector<RankTimeline>& ranks) const {
    const auto path = directory_ / "trace.json";
    write_timeline(path, ranks);
    return Json::parse(read_text_file(path)).at("traceEvents");
  }

  // Boxes of a rank with this name: microseconds of begin and end, and step.
  static std::vector<std::tuple<double, double, int64_t>> boxes(const Json& events, int64_t rank,
                                                                const std::string& name) {
    std::vector<std::tuple<double, double, int64_t>> found;
    for (const Json& event : events) {
      if (event.at("ph") != "X" || event.at("pid") != rank + 1 || event.at("name") != name) continue;
      const double begin = event.at("ts");
      found.emplace_back(begin, begin + event.at("dur").get<double>(), event.at("args").at("step").get<int64_t>());
    }
    return found;
  }
};

TEST_F(TimelineTest, BytesAreReadBackEqual) {
  for (RankTimeline timeline : two_ranks()) {
    timeline.events[0].begin = 1.0 / 3;
    EXPECT_EQ(timeline_from_bytes(to_bytes(timeline)), timeline);
  }
  EXPECT_THROW(timeline_from_bytes("{}"), InternalError);
  EXPECT_THROW(timeline_from_bytes("not a timeline"), InternalError);
}

TEST_F(TimelineTest, NamesRanksAndTracks) {
  std::map<std::string, std::vector<std::string>> names;
  for (const Json& event : events_of(two_ranks())) {
    if (event.at("ph") != "M" || !event.at("args").contains("name")) continue;
    names[event.at("name")].push_back(event.at("args").at("name"));
  }
  EXPECT_EQ(names["process_name"],
            (std::vector<std::string>{"rank 0 (dp 0, tp 0, pp 0)", "rank 1 (dp 0, tp 0, pp 1)"}));
  EXPECT_EQ(names["thread_name"], (std::vector<std::string>{"compute", "communication", "communication 2",  //
                                                            "compute", "communication"}));
}

TEST_F(TimelineTest, AnEventKeepsWhatIsKnownOfIt) {
  const auto events = events_of({{"rank 0", {compute("W", 0.5, 0.75, 3, 2), communication("barrier", 1, 2, 3)}}});
  Json found = Json::array();
  for (Json event : events) {
    event.erase("pid");
    event.erase("tid");
    if (event.at("ph") == "X" && event.at("name") != "idle") found.push_back(event);
  }
  EXPECT_EQ(found, Json::parse(R"([
    {"ph": "X", "cat": "pipeline", "name": "W", "ts": 500000.0, "dur": 250000.0,
     "args": {"step": 3, "chunk": 0, "micro_batch": 2}},
    {"ph": "X", "cat": "collective", "name": "barrier", "ts": 1000000.0, "dur": 1000000.0, "args": {"step": 3}}])"));
}

TEST_F(TimelineTest, BoxesOfOneThreadDoNotOverlap) {
  std::map<std::pair<int64_t, int64_t>, double> free_at;
  for (const Json& event : events_of(two_ranks())) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts");
    double& end = free_at[{event.at("pid"), event.at("tid")}];
    EXPECT_GE(begin, end) << event;
    EXPECT_GT(event.at("dur"), 0) << event;
    end = begin + event.at("dur").get<double>();
  }
  EXPECT_EQ(free_at.size(), 5);
}

TEST_F(TimelineTest, ThreadNumbersAreUniqueAndNeverThoseOfTheIdleTask) {
  std::map<int64_t, int64_t> process_of;
  for (const Json& event : events_of(two_ranks())) {
    const int64_t process = event.at("pid");
    const int64_t thread = event.at("tid");
    EXPECT_EQ(process_of.try_emplace(thread, process).first->second, process);
    EXPECT_GT(process, 0);
    EXPECT_NE(thread, process);
  }
}

TEST_F(TimelineTest, IdleIsWhereAStepComputesNothing) {
  const auto events = events_of(two_ranks());
  using Boxes = std::vector<std::tuple<double, double, int64_t>>;
  // Step 1 ends at 8.5 on rank 1, but rank 0 begins step 2 at 8, which ends at 11.
  EXPECT_EQ(boxes(events, 0, "idle"), (Boxes{{1e6, 4e6, 1}, {5.5e6, 8e6, 1}, {9e6, 11e6, 2}}));
  EXPECT_EQ(boxes(events, 1, "idle"), (Boxes{{0, 1.25e6, 1}, {3.75e6, 8e6, 1}, {8.5e6, 10e6, 2}}));
}

TEST_F(TimelineTest, TimeBetweenStepsIsNotIdle) {
  const auto events = events_of({{"rank 0", {compute("F", 0, 1, 1), compute("F", 5, 6, 2)}}});
  EXPECT_TRUE(boxes(events, 0, "idle").empty());
}

TEST_F(TimelineTest, ComputationsThatOverlapAreOurMistake) {
  EXPECT_THROW(events_of({{"rank 0", {compute("F", 0, 2), compute("B", 1, 3)}}}), InternalError);
}

TEST_F(TimelineTest, NoEventsGiveAnEmptyTrace) { EXPECT_TRUE(events_of({}).empty()); }

}  // namespace
}  // namespace copus
