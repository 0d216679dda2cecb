#include "copus/plan/plan_refusal.h"

#include <algorithm>
#include <cmath>

#include "copus/base/text/text_distance.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_fields.h"

namespace copus {

namespace {

// The largest number of GPUs to suggest.
constexpr int64_t most_gpus = allowed_degrees.high;

template <class Value>
bool leaves_out(const std::vector<Value>& some, const std::vector<Value>& all) {
  return std::any_of(all.begin(), all.end(),
                     [&](const Value& value) { return std::find(some.begin(), some.end(), value) == some.end(); });
}

// The options that excluded configurations: "--schedule and --micro-batch".
std::string restricting_options(const PlanQuestion& question) {
  const SearchSpace& space = question.space;
  const SearchSpace all = question.whole_space();
  std::vector<std::string> options;
  if (leaves_out(space.schedules, all.schedules)) options.emplace_back("--schedule");
  if (leaves_out(space.recomputes, all.recomputes)) options.emplace_back("--recompute");
  if (!space.micro_batches.empty()) options.emplace_back("--micro-batch");
  if (leaves_out(space.zero_stages, all.zero_stages)) options.emplace_back("--zero");
  if (leaves_out(space.sequence_parallel, all.sequence_parallel)) options.emplace_back("--sp");
  return join(options, " and ");
}

std::string batches_in_words(const std::vector<int64_t>& batches) {
  if (batches.size() == 1) return concat("a global batch of ", batches.front());
  return concat("any global batch of ", batches.front(), " to ", batches.back());
}

// "92 or 96".
std::string joined_by_or(const std::vector<int64_t>& numbers) {
  std::vector<std::string> texts;
  for (const int64_t number : numbers) texts.push_back(std::to_string(number));
  return join(texts, " or ");
}

// Whether the cluster's devices can hold any configuration of the space.
bool something_fits(const PlanQuestion& question, const SearchSpace& space) {
  MemoryModel memory(question.model, question.sequence_length, question.system);
  const std::vector<Configuration> all = enumerate(question.model, question.sequence_length, space);
  return std::any_of(all.begin(), all.end(), [&](const Configuration& configuration) {
    return memory.predict(configuration).parts.total() <= memory_of_rank(question.cluster, space.world_size);
  });
}

// Of the options that affect only memory and time, keeps the ones that save most memory.
SearchSpace thriftiest(SearchSpace space) {
  if (std::find(space.recomputes.begin(), space.recomputes.end(), Recompute::full) != space.recomputes.end()) {
    space.recomputes = {Recompute::full};
  }
  space.reshard_after_forward = {true};
  if (space.micro_batches.empty()) space.micro_batches = {1};
  return space;
}

// Returns the smallest number of GPUs on which some configuration fits, or 0 if more than most_nodes nodes would be
// needed. Beyond the first node, only whole nodes are tried.
int64_t enough_gpus(const PlanQuestion& question) {
  constexpr int64_t most_nodes = 1024;
  const int64_t node = question.cluster.ranks_per_node;
  const int64_t available = question.cluster.num_ranks > 0 ? question.cluster.num_ranks : most_gpus;
  SearchSpace space = thriftiest(question.space);
  const auto next = [&](int64_t count) { return count < node ? count + 1 : (count / node + 1) * node; };
  for (int64_t count = next(question.space.world_size); count <= std::min(available, most_nodes * node);
       count = next(count)) {
    space.world_size = count;
    if (something_fits(question, space)) return count;
  }
  return 0;
}

// Returns a note if the smallest configuration fails to fit only because the sequences are too long.
std::string about_long_sequences(const PlanQuestion& question, const TableCell& smallest) {
  const MemoryParts& parts = smallest.memory.parts;
  const double of_sequence = parts.activations + parts.logits + parts.workspace - question.system.memory.fixed_bytes;
  const double available = question.memory_of_rank();
  if (smallest.configuration.micro_batch > 1 || parts.total() - of_sequence > available / 2) return "";
  return concat(". Activations and logits of one sequence of ", question.sequence_length, " tokens take ",
                format_number("%.1f", of_sequence / gibibyte),
                " GiB of this: context parallelism, which cuts sequences, would help and is not planned; ",
                "shorter sequences (--sequence-length) help too");
}

// With one decimal, never below the number: "595.4".
std::string rounded_up(double number) { return format_number("%.1f", std::ceil(10 * number) / 10); }

}  // namespace

std::string why_nothing_is_possible(const PlanQuestion& question) {
  const auto possible = [&](const SearchSpace& space) {
    return !enumerate(question.model, question.sequence_length, space).empty();
  };
  std::vector<std::string> changes;
  const std::string options = restricting_options(question);
  const bool by_options = !options.empty() && possible(question.whole_space());
  if (by_options) changes.push_back(concat("leave out ", options));

  const int64_t asked = question.space.world_size;
  const std::vector<int64_t> counts = nearest_that_work(asked - 1, asked + 1, {1, 2 * asked}, [&](int64_t count) {
    SearchSpace space = question.space;
    space.world_size = count;
    return possible(space);
  });
  if (!counts.empty()) changes.push_back(concat("take ", joined_by_or(counts), " GPUs"));

  // Of as many consecutive batches as there are GPUs, one is divisible by that number, so the search below is bounded.
  const int64_t smallest = question.space.global_batches.front(), largest = question.space.global_batches.back();
  const Range<int64_t> looked_at{std::max<int64_t>(1, smallest - asked), largest + asked};
  const std::vector<int64_t> batches = nearest_that_work(smallest - 1, largest + 1, looked_at, [&](int64_t batch) {
    SearchSpace space = question.space;
    space.global_batches = {batch};
    return possible(space);
  });
  if (!batches.empty()) changes.push_back(concat("take a global batch of ", joined_by_or(batches)));
  const std::string_view asks_more = demands(question.program);
  return concat(
      "no layout of ", asked, " GPUs can train ", question.model_name, " with ",
      batches_in_words(question.space.global_batches), by_options ? concat(" and ", options) : "",
      ", however much memory there were: the degrees of data, tensor and pipeline parallelism must multiply ",
      "to the number of GPUs; data parallelism times the micro-batch must divide the batch, tensor parallelism ",
      "the heads, and the pipeline has no more ranks than there are layers",
      asks_more.empty() ? "" : concat("; ", asks_more),
      changes.empty() ? "" : concat(". The smallest changes that help: ", join(changes, "; or ")));
}

std::string why_nothing_fits(const PlanQuestion& question, const PerformanceTable& table) {
  COPUS_CHECK(table.smallest, "a table without cells or smallest one");
  const TableCell& smallest = *table.smallest;
  std::vector<std::string> changes;
  const std::string options = restricting_options(question);
  if (!options.empty() && something_fits(question, question.whole_space())) {
    changes.push_back(concat("leave out ", options));
  }
  if (const int64_t enough = enough_gpus(question); enough > 0) {
    changes.push_back(concat("take ", enough, " GPUs instead of ", question.space.world_size));
  }
  // If ranks share devices, a device needs the memory of all its ranks.
  const double needed =
      smallest.memory.parts.total() * (question.cluster.device.memory_bytes / question.memory_of_rank());
  changes.push_back(concat("take GPUs with ", rounded_up(needed / gibibyte),
                           " GiB of memory (memory_gigabytes = ", rounded_up(needed / 1e9), ")"));
  const auto reason = out_of_memory_reason(smallest.memory, question.memory_of_rank());
  return concat("no configuration of ", question.model_name, " fits on ", question.space.world_size, " x ",
                question.device_name(), " with ", batches_in_words(question.space.global_batches), ": of ",
                table.too_large, " that are possible, the one that needs least, ", to_string(smallest.configuration),
                ", ", reason.value_or("does not fit"), ". The smallest changes that help: ", join(changes, "; or "),
                about_long_sequences(question, smallest));
}

}  // namespace copus
