// `copus bench agreement`: the cost of the agreement that all ranks reach once a step, simulated for more ranks than a
// test could start. The cost of a message is given.
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/cli/option_checks.h"
#include "copus/workshop/bench/agreement_cost.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/table.h"

namespace copus {
namespace {

struct AgreementCommandOptions {
  std::vector<int64_t> ranks{8, 64, 512, 1024, 8192};
  bool json = false;
};

// Costs of messages over TCP in a fast network.
constexpr MessageCosts stated_costs{.latency_seconds = 25e-6, .seconds_per_message = 5e-6, .bytes_per_second = 1e9};

nlohmann::json to_json(const AgreementCost& cost) {
  return {
      {"messages", cost.messages}, {"bytes", cost.bytes}, {"most_peers", cost.most_peers}, {"seconds", cost.seconds}};
}

constexpr int agreement_widths[] = {-12, 8, 14, 12, 8, 12};

void print_cost(const char* way, const AgreementCost& cost) {
  print_cells(agreement_widths, {way, std::to_string(cost.ranks), std::to_string(cost.messages),
                                 format_bytes(static_cast<double>(cost.bytes)), std::to_string(cost.most_peers),
                                 format_number("%.3f", 1e3 * cost.seconds)});
}

int run_agreement_bench(const AgreementCommandOptions& options) {
  if (std::ranges::count(options.ranks, options.ranks.front()) == std::ssize(options.ranks)) {
    throw UserError("--ranks needs different numbers, to tell how the seconds grow");
  }
  std::vector<AgreementCost> with_all, by_rounds;
  for (const int64_t ranks : options.ranks) {
    with_all.push_back(cost_of_agreement_with_all(ranks, stated_costs));
    by_rounds.push_back(cost_of_agreement_by_rounds(ranks, stated_costs));
  }
  const double slope = seconds_by_doubling(by_rounds);
  if (options.json) {
    nlohmann::json result{{"latency_seconds", stated_costs.latency_seconds},
                          {"seconds_per_message", stated_costs.seconds_per_message},
                          {"bytes_per_second", stated_costs.bytes_per_second},
                          {"seconds_by_doubling", slope}};
    for (size_t i = 0; i < by_rounds.size(); ++i) {
      result["rows"].push_back(
          {{"ranks", options.ranks[i]}, {"with_all", to_json(with_all[i])}, {"by_rounds", to_json(by_rounds[i])}});
    }
    std::cout << json_text(result) << '\n' << std::flush;
    return 0;
  }
  std::cout << "one agreement, simulated: a message is under way for " << 1e6 * stated_costs.latency_seconds
            << " us, takes a processor " << 1e6 * stated_costs.seconds_per_message
            << " us at either end, and a connection carries " << stated_costs.bytes_per_second / 1e9 << " GB/s\n\n";
  print_cells(agreement_widths, {"", "ranks", "messages", "bytes", "peers", "ms"});
  for (size_t i = 0; i < by_rounds.size(); ++i) {
    print_cost("with all", with_all[i]);
    print_cost("by rounds", by_rounds[i]);
  }
  std::cout << "\nby rounds, twice the ranks take " << format_number("%.1f", 1e6 * slope) << " us more\n" << std::flush;
  return 0;
}

}  // namespace

void add_agreement_bench(CLI::App& bench, CommandAction& action) {
  auto options = std::make_shared<AgreementCommandOptions>();
  CLI::App& agreement = *bench.add_subcommand(
      "agreement", "Simulate what it costs all ranks to agree once a step, with messages to all others and by rounds");
  agreement.add_option("--ranks", options->ranks, "Numbers of ranks, two or more")
      ->check(number_in(Range<int64_t>{1, int64_t{1} << 16}))
      ->expected(2, 32)
      ->capture_default_str();
  agreement.add_flag("--json", options->json, "Print one JSON object");
  agreement.footer("Example:\n  copus bench agreement --ranks 16 1024 16384");
  agreement.callback([options, &action] { action = [options] { return run_agreement_bench(*options); }; });
}

}  // namespace copus
