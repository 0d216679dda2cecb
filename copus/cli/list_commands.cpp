// `copus models` and `copus clusters`: list the descriptions that ship with the program and can be used by name.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "copus/base/error.h"
#include "copus/base/text/text_table.h"
#include "copus/base/text/units.h"
#include "copus/cli/commands.h"
#include "copus/config/descriptions.h"

namespace copus {

namespace {

using Json = nlohmann::ordered_json;

int print_models_json() {
  Json models = Json::array();
  for (const std::string& name : names_of_shipped_models()) {
    const ModelDescription model = find_model(name);
    Json& described = models.emplace_back(
        Json{{"name", name}, {"architecture", to_string(model.architecture)}, {"parameters", count_parameters(model)}});
    visit_sizes([&](const char* size, int64_t value) { described[size] = value; }, model);
    described["max_position_embeddings"] = model.max_position_embeddings;
  }
  std::cout << models.dump() << '\n';
  return 0;
}

int print_models() {
  TextTable table({"name", "parameters", "layers", "hidden", "heads", "key/value", "vocabulary", "longest"},
                  TextTable::FirstColumn::left);
  for (const std::string& name : names_of_shipped_models()) {
    const ModelDescription model = find_model(name);
    table.add({name, format_count(static_cast<double>(count_parameters(model))), std::to_string(model.num_layers),
               std::to_string(model.hidden_size), std::to_string(model.num_heads), std::to_string(model.num_kv_heads),
               std::to_string(model.vocab_size), std::to_string(model.max_position_embeddings)});
  }
  std::cout << table.text()
            << "\nFor --model of `copus plan` and model.config of a run, which take the path of a config.json too.\n"
               "key/value: key/value heads; longest: tokens of the longest sequence.\n";
  return 0;
}

// A rank's speed in its fastest matrix products, in FLOP/s; 0 if the cluster's description does not give it.
double flops_per_second(const ClusterDescription& cluster) {
  return cluster.flops_per_second > 0 ? cluster.flops_per_second : cluster.device.matmul_flops_per_second;
}

int print_clusters_json() {
  const auto known = [](double value) { return value > 0 ? Json(value) : Json(); };
  const auto link = [](const Link& one) -> Json {
    return {{"latency_seconds", one.latency_seconds}, {"bytes_per_second", one.bytes_per_second}};
  };
  Json clusters = Json::array();
  for (const std::string& name : names_of_shipped_clusters()) {
    const ClusterDescription cluster = find_cluster(name);
    clusters.push_back({{"name", name},
                        {"device", cluster.device.name},
                        {"gpus", cluster.num_ranks > 0 ? Json(cluster.num_ranks) : Json()},
                        {"gpus_per_node", cluster.ranks_per_node},
                        {"memory_bytes", known(cluster.device.memory_bytes)},
                        {"peak_flops_per_second", known(cluster.device.peak_flops_per_second)},
                        {"flops_per_second", known(flops_per_second(cluster))},
                        {"within_node", link(cluster.within_node)},
                        {"between_nodes", link(cluster.between_nodes)},
                        {"rails", cluster.rails},
                        {"measured_nodes", cluster.measured_nodes > 0 ? Json(cluster.measured_nodes) : Json()}});
  }
  std::cout << clusters.dump() << '\n';
  return 0;
}

int print_clusters() {
  TextTable table(
      {"name", "GPUs", "a node", "GB", "peak", "reached", "GB/s within", "between", "rails", "measured", "device"},
      TextTable::FirstColumn::left);
  const auto known = [](double value, double unit = 1) {
    return value > 0 ? format_number("%.4g", value / unit) : std::string("-");
  };
  for (const std::string& name : names_of_shipped_clusters()) {
    const ClusterDescription cluster = find_cluster(name);
    table.add({name, cluster.num_ranks > 0 ? std::to_string(cluster.num_ranks) : "any",
               std::to_string(cluster.ranks_per_node), known(cluster.device.memory_bytes, 1e9),
               known(cluster.device.peak_flops_per_second, 1e12), known(flops_per_second(cluster), 1e12),
               known(cluster.within_node.bytes_per_second, 1e9), known(cluster.between_nodes.bytes_per_second, 1e9),
               std::to_string(cluster.rails), known(static_cast<double>(cluster.measured_nodes)),
               cluster.device.name.empty() ? "-" : cluster.device.name});
  }
  std::cout << table.text()
            << "\nFor --cluster of `copus plan` and cluster.config of a run, which take the path of a TOML file too.\n"
               "GB: memory of a GPU; peak, reached: teraflops of a GPU by its data sheet, and of its best matrix\n"
               "products; GB/s within a node of a GPU, and between nodes of each of the rails; measured: on how many\n"
               "nodes the description was compared with measurements; -: the description does not say.\n";
  return 0;
}

void add_list(CLI::App& program, CommandAction& action, const char* name, const char* description, int (*print)(),
              int (*print_json)()) {
  CLI::App& command = *program.add_subcommand(name, description);
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "Print one JSON list");
  command.footer(concat("Example:\n  copus ", name, " --json"));
  command.callback([=, &action] { action = [=] { return *json ? print_json() : print(); }; });
}

}  // namespace

void add_models(CLI::App& program, CommandAction& action) {
  add_list(program, action, "models", "List the models that --model knows by name", print_models, print_models_json);
}

void add_clusters(CLI::App& program, CommandAction& action) {
  add_list(program, action, "clusters", "List the clusters that --cluster knows by name", print_clusters,
           print_clusters_json);
}

}  // namespace copus
