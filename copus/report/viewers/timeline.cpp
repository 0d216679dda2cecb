#include "copus/report/viewers/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"

namespace copus {

namespace {

using OrderedJson = nlohmann::ordered_json;

struct Span {
  double begin;
  double end;
};

// The span of each step: from its begin on the first rank that begins it to its end on the last rank.
std::map<int64_t, Span> find_steps(const std::vector<RankTimeline>& ranks) {
  std::map<int64_t, Span> steps;
  for (const RankTimeline& rank : ranks) {
    for (const TimelineEvent& event : rank.events) {
      Span& step = steps.try_emplace(event.step, Span{event.begin, event.end}).first->second;
      step.begin = std::min(step.begin, event.begin);
      step.end = std::max(step.end, event.end);
    }
  }
  return steps;
}

// Returns events for the gaps between a rank's computations, each within one step. If ranks are in different steps at
// the same time, the gap belongs to the earlier step.
std::vector<TimelineEvent> idle_events(const RankTimeline& rank, const std::map<int64_t, Span>& steps) {
  std::vector<TimelineEvent> computing;
  for (const TimelineEvent& event : rank.events) {
    if (event.track == TimelineTrack::compute) computing.push_back(event);
  }
  std::vector<TimelineEvent> idle;
  double now = steps.empty() ? 0 : steps.begin()->second.begin;
  size_t next = 0;
  for (const auto& [number, step] : steps) {
    now = std::max(now, step.begin);
    const auto idle_until = [&, number = number](double end) {
      if (end <= now) return;
      idle.push_back({"idle", "idle", now, end, number, -1, -1, TimelineTrack::compute});
      now = end;
    };
    for (; next < computing.size() && computing[next].step == number; ++next) {
      idle_until(computing[next].begin);
      now = std::max(now, computing[next].end);
    }
    idle_until(next < computing.size() ? std::min(step.end, computing[next].begin) : step.end);
  }
  return idle;
}

// Rounds to nanoseconds. The file uses microseconds; rounding times to whole nanoseconds keeps neighbouring events from
// overlapping.
int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }
double microseconds(int64_t whole_nanoseconds) { return static_cast<double>(whole_nanoseconds) / 1e3; }

// Process and thread numbers in the file. Both avoid 0, which Perfetto treats as the idle task. A thread with its
// process' number is the main thread. Perfetto works best if thread numbers are unique over all processes.
int64_t process_number(int64_t rank) { return rank + 1; }
int64_t thread_number(int64_t rank, int64_t lane) { return process_number(rank) * 1000 + lane; }

class TraceWriter {
 public:
  void add(int64_t rank, const RankTimeline& timeline, const std::vector<TimelineEvent>& idle) {
    add_metadata("process_name", rank, 0, {{"name", timeline.name}});
    add_metadata("process_sort_index", rank, 0, {{"sort_index", rank}});
    std::vector<TimelineEvent> events = timeline.events;
    events.insert(events.end(), idle.begin(), idle.end());
    std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    add_track(rank, "compute", TimelineTrack::compute, 0, events);
    add_track(rank, "communication", TimelineTrack::communication, 1, events);
  }

  std::string text() const { return json_text(OrderedJson{{"traceEvents", trace_}, {"displayTimeUnit", "ms"}}) + "\n"; }

 private:
  void add_metadata(const char* kind, int64_t rank, int64_t lane, const OrderedJson& arguments) {
    trace_.push_back({{"ph", "M"},
                      {"name", kind},
                      {"pid", process_number(rank)},
                      {"tid", thread_number(rank, lane)},
                      {"args", arguments}});
  }

  // Adds the lanes of a track. Boxes of one thread must not overlap, so an event goes to the first lane that is free
  // when it begins.
  void add_track(int64_t rank, const std::string& name, TimelineTrack track, int64_t first_lane,
                 const std::vector<TimelineEvent>& events) {
    std::vector<double> free_at;
    for (const TimelineEvent& event : events) {
      if (event.track != track) continue;
      const auto is_free = [&](double end) { return end <= event.begin; };
      const int64_t index = std::find_if(free_at.begin(), free_at.end(), is_free) - free_at.begin();
      const int64_t lane = first_lane + index;
      if (index == std::ssize(free_at)) {
        COPUS_CHECK(index == 0 || track == TimelineTrack::communication, event.name, " overlaps another on ", name);
        free_at.push_back(event.end);
        add_metadata("thread_name", rank, lane, {{"name", index == 0 ? name : concat(name, " ", index + 1)}});
        add_metadata("thread_sort_index", rank, lane, {{"sort_index", lane}});
      }
      free_at[index] = event.end;
      add_event(rank, lane, event);
    }
  }

  void add_event(int64_t rank, int64_t lane, const TimelineEvent& event) {
    OrderedJson arguments = {{"step", event.step}};
    if (event.chunk >= 0) arguments["chunk"] = event.chunk;
    if (event.micro_batch >= 0) arguments["micro_batch"] = event.micro_batch;
    const int64_t begin = nanoseconds(event.begin);
    trace_.push_back({{"ph", "X"},
                      {"cat", event.category},
                      {"name", event.name},
                      {"pid", process_number(rank)},
                      {"tid", thread_number(rank, lane)},
                      {"ts", microseconds(begin)},
                      {"dur", microseconds(nanoseconds(event.end) - begin)},
                      {"args", arguments}});
  }

  OrderedJson trace_ = OrderedJson::array();
};

}  // namespace

std::string to_bytes(const RankTimeline& timeline) {
  OrderedJson events = OrderedJson::array();
  for (const TimelineEvent& event : timeline.events) {
    events.push_back({event.category, event.name, event.begin, event.end, event.step, event.chunk, event.micro_batch,
                      event.track == TimelineTrack::compute});
  }
  return OrderedJson{{"name", timeline.name}, {"events", events}}.dump();
}

RankTimeline timeline_from_bytes(std::string_view bytes) {
  try {
    const OrderedJson json = OrderedJson::parse(bytes);
    RankTimeline timeline{json.at("name").get<std::string>(), {}};
    for (const OrderedJson& event : json.at("events")) {
      timeline.events.push_back({event.at(0).get<std::string>(), event.at(1).get<std::string>(),
                                 event.at(2).get<double>(), event.at(3).get<double>(), event.at(4).get<int64_t>(),
                                 event.at(5).get<int64_t>(), event.at(6).get<int64_t>(),
                                 event.at(7).get<bool>() ? TimelineTrack::compute : TimelineTrack::communication});
    }
    return timeline;
  } catch (const nlohmann::json::exception& error) {
    throw InternalError(concat("these bytes are no timeline: ", error.what()));
  }
}

void write_timeline(const std::filesystem::path& path, const std::vector<RankTimeline>& ranks) {
  const auto steps = find_steps(ranks);
  TraceWriter writer;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    writer.add(static_cast<int64_t>(rank), ranks[rank], idle_events(ranks[rank], steps));
  }
  write_file_durably(path, writer.text());
}

}  // namespace copus
