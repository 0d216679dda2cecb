#include "copus/workshop/profile/cells.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>

#include "copus/base/error.h"
#include "copus/base/philox.h"

namespace copus {

namespace {

constexpr const char* example = "\"d2 t1 p4 v1 1f1b sp0 zero1 none gb64 mb2\"";

// The number behind the prefix, as in "gb64".
std::optional<int64_t> number_after(const std::string& prefix, const std::string& word) {
  if (!word.starts_with(prefix)) return std::nullopt;
  int64_t number = 0;
  const char* const end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data() + prefix.size(), end, number);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

// Whether the word was a part of a configuration's name.
bool read_word(const std::string& word, Configuration& configuration) {
  ParallelStrategy& strategy = configuration.strategy;
  for (const PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                          PipelineSchedule::interleaved_1f1b, PipelineSchedule::zb_h1}) {
    if (word != to_string(schedule)) continue;
    strategy.schedule = schedule;
    return true;
  }
  for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::full}) {
    if (word != to_string(recompute)) continue;
    strategy.recompute = recompute;
    return true;
  }
  if (word == "sp0" || word == "sp1") {
    strategy.sequence_parallel = word == "sp1";
    return true;
  }
  struct Part {
    const char* prefix;
    int64_t* value;
    int64_t least;
  };
  const std::array parts = {Part{"d", &strategy.data_parallel, 1},     Part{"t", &strategy.tensor_parallel, 1},
                            Part{"p", &strategy.pipeline_parallel, 1}, Part{"v", &strategy.virtual_stages, 1},
                            Part{"zero", &strategy.zero_stage, 0},     Part{"gb", &configuration.global_batch, 1},
                            Part{"mb", &configuration.micro_batch, 1}};
  return std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
    const std::optional<int64_t> number = number_after(part.prefix, word);
    if (!number || *number < part.least || *number >= int64_t{1} << 24) return false;
    *part.value = *number;
    return true;
  });
}

// A place in which configurations that teach the same lie close together.
std::vector<double> place_of(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  std::vector<double> place;
  for (const int64_t size : {strategy.data_parallel, strategy.tensor_parallel, strategy.pipeline_parallel,
                             strategy.virtual_stages, configuration.micro_batch, configuration.num_microbatches()}) {
    place.push_back(std::log2(static_cast<double>(size)));
  }
  for (const bool is_so : {strategy.sequence_parallel, strategy.zero_stage == 1,
                           strategy.schedule == PipelineSchedule::gpipe, strategy.schedule == PipelineSchedule::zb_h1,
                           strategy.recompute == Recompute::attention, strategy.recompute == Recompute::full}) {
    place.push_back(is_so ? 1 : 0);
  }
  return place;
}

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

std::string cell_name(const Configuration& configuration) {
  const ParallelStrategy& s = configuration.strategy;
  return concat("d", s.data_parallel, " t", s.tensor_parallel, " p", s.pipeline_parallel, " v", s.virtual_stages, " ",
                to_string(s.schedule), " sp", s.sequence_parallel ? 1 : 0, " zero", s.zero_stage, " ",
                to_string(s.recompute), " gb", configuration.global_batch, " mb", configuration.micro_batch);
}

Configuration parse_cell_name(const std::string& name, const Configuration& otherwise) {
  Configuration configuration = otherwise;
  std::istringstream words(name);
  bool is_empty = true;
  for (std::string word; words >> word; is_empty = false) {
    if (read_word(word, configuration)) continue;
    throw UserError(concat("the configuration \"", name, "\": \"", word,
                           "\" is no part of one; expected parts such as ", "those of ", example,
                           " (what is left out is as in the run)"));
  }
  if (is_empty) throw UserError(concat("a configuration has an empty name; expected parts such as those of ", example));
  return configuration;
}

std::vector<Configuration> choose_cells(const std::vector<Configuration>& candidates, int64_t count, uint64_t seed) {
  std::vector<Configuration> chosen;
  if (candidates.empty()) return chosen;
  std::vector<std::vector<double>> places;
  std::transform(candidates.begin(), candidates.end(), std::back_inserter(places), place_of);
  std::vector<double> distances(candidates.size(), std::numeric_limits<double>::infinity());
  size_t next = philox(stream_key(seed, "cells of a profile"), 0, 0)[0] % candidates.size();
  const size_t wanted = std::min(static_cast<size_t>(count), candidates.size());
  while (chosen.size() < wanted) {
    chosen.push_back(candidates[next]);
    for (size_t i = 0; i < places.size(); ++i) {
      distances[i] = std::min(distances[i], squared_distance(places[i], places[next]));
    }
    distances[next] = -1;
    next = static_cast<size_t>(std::max_element(distances.begin(), distances.end()) - distances.begin());
  }
  return chosen;
}

}  // namespace copus
