#include "copus/train/run/source_notes.h"

#include <algorithm>
#include <cstdint>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/record/step_record.h"

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

std::vector<std::string> describe_evaluation(const std::vector<HeldOutSource>& sources,
                                             const std::vector<HeldOutPart>& read) {
  int64_t all = 0, samples = 0;
  for (const HeldOutSource& source : sources) all += source.samples;
  for (const HeldOutPart& part : read) samples += part.samples;
  std::vector<std::string> lines;
  if (sources.empty() || (sources.size() == 1 && samples == all)) return lines;
  lines.push_back(concat("evaluates  ", samples, " of ", counted(all, "held-out sequence"), " (",
                         format_number("%.3g", 100.0 * static_cast<double>(samples) / static_cast<double>(all)), " %",
                         samples < all ? "; evaluate.max_batches" : "", ")",
                         read.size() > most_sources_told || read.size() < sources.size()
                             ? concat(", of ", read.size(), " of ", sources.size(), " sources")
                             : "",
                         sources.size() > most_logged_sources
                             ? concat("; of more than ", most_logged_sources, " sources the log has no loss of each")
                             : ""));
  if (read.size() < 2 || read.size() > most_sources_told) return lines;
  for (const HeldOutPart& part : read) {
    const HeldOutSource& source = sources[static_cast<size_t>(part.source)];
    lines.push_back(concat("           ", source.name, ": ", part.samples, " of ", source.samples, ", counts ",
                           format_number("%.4g", 100 * part.weight), " %"));
  }
  return lines;
}

}  // namespace copus
