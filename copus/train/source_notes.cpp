#include "copus/train/source_notes.h"

#include <algorithm>
#include <cstdint>

#include "copus/base/error.h"
#include "copus/base/units.h"

namespace copus {

namespace {

double reads_of_a_sequence(const TrainingSource& source, double samples) {
  return source.share * samples / static_cast<double>(source.sequences);
}

std::string describe_source(const TrainingSource& source, double samples) {
  const double reads = reads_of_a_sequence(source, samples);
  return concat(
      source.path, ": ", counted(source.sequences, "sequence"), ", ", format_number("%.4g", 100 * source.share),
      " % of the samples",
      samples > 0 ? concat(", ", format_number(reads < 100 ? "%.3g" : "%.0f", reads), " epochs in this run") : "");
}

}  // namespace

std::vector<std::string> describe_sources(const std::vector<TrainingSource>& sources, double samples) {
  std::vector<std::string> lines;
  if (sources.size() < 2) return lines;
  if (sources.size() <= most_sources_told) {
    for (const TrainingSource& source : sources)
      lines.push_back(concat("source     ", describe_source(source, samples)));
    return lines;
  }
  const auto [least, most] = std::ranges::minmax_element(
      sources, {}, [](const TrainingSource& source) { return reads_of_a_sequence(source, 1); });
  lines.push_back(concat("sources    ", sources.size(), "; read most often: ", describe_source(*most, samples)));
  lines.push_back(concat("           read least often: ", describe_source(*least, samples)));
  return lines;
}

}  // namespace copus
