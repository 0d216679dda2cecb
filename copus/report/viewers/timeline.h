// Writes a timeline of the ranks' work in a few steps, as a file for Perfetto (ui.perfetto.dev) or chrome://tracing.
// The file has the Trace Event Format, with one process per rank and tracks for computing and communication.
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

// The timeline of one rank. On each track, events are sorted by their start. Events on the compute track do not
// overlap.
struct RankTimeline {
  std::string name;  // "rank 3 (dp 0, tp 1, pp 1)"
  std::vector<TimelineEvent> events;
  bool operator==(const RankTimeline&) const = default;
};

// Convert a timeline to bytes and back, to gather all ranks' timelines on one rank. from_bytes throws InternalError for
// invalid bytes.
std::string to_bytes(const RankTimeline& timeline);
RankTimeline timeline_from_bytes(std::string_view bytes);

// Writes the timelines, by rank, and returns when they are on the disk. Adds an event "idle" wherever a rank computes
// nothing within a step, which lasts from its first start to its last end over all ranks. Communication that overlaps
// other communication of the same rank gets a separate track. Throws UserError if the file cannot be written.
void write_timeline(const std::filesystem::path& path, const std::vector<RankTimeline>& ranks);

}  // namespace copus
