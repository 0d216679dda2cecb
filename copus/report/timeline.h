// A timeline of the ranks' work in a few steps, as one file that Perfetto (ui.perfetto.dev) and chrome://tracing open:
// the Trace Event Format, one process per rank, with a track for computing and one for communication.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace copus {

enum class TimelineTrack { compute, communication };

struct TimelineEvent {
  std::string category;  // category to filter by: "pipeline", "collective", "message", "optimizer",
                         // "statistics"
  std::string name;      // text of its box: "F", "B", "W", "all_reduce data"
  double begin = 0;      // seconds of the rank's clock, comparable between ranks
  double end = 0;
  int64_t step = 0;
  int64_t chunk = -1;        // -1: none
  int64_t micro_batch = -1;  // -1: none
  TimelineTrack track = TimelineTrack::compute;
  bool operator==(const TimelineEvent&) const = default;
};

// The timeline of one rank, in the order in which the events began on each track. Events on the compute track do not
// overlap.
struct RankTimeline {
  std::string name;  // "rank 3 (dp 0, tp 1, pp 1)"
  std::vector<TimelineEvent> events;
  bool operator==(const RankTimeline&) const = default;
};

// Converts a timeline to bytes and back, to gather all ranks' timelines on one. Reading throws InternalError for other
// bytes.
std::string to_bytes(const RankTimeline& timeline);
RankTimeline timeline_from_bytes(std::string_view bytes);

// Writes the timelines, by rank, durably. Where a rank computes nothing between the first begin and the last end of a
// step (of all ranks), an event "idle" is added. Communication that overlaps other communication of its rank goes to a
// track of its own. Throws UserError when the file cannot be written.
void write_timeline(const std::filesystem::path& path, const std::vector<RankTimeline>& ranks);

}  // namespace copus
