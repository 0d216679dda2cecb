#include "copus/workshop/self_test/self_test.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/process/cores.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/train/run/device.h"
#include "copus/train/step/step_agreement.h"
#include "copus/workshop/self_test/collectives.h"
#include "copus/workshop/self_test/parts.h"
#include "copus/workshop/self_test/repetitions.h"

namespace copus {

namespace {

constexpr int64_t most_usual_ranks = 8;
constexpr int clock_messages = 5;
constexpr size_t most_failures = 10;  // per family of groups; more are not reported

std::string host_name() {
  char name[256] = {};
  COPUS_CHECK(::gethostname(name, sizeof name - 1) == 0);
  return name;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns, on rank 0, the offset of every rank's host clock from rank 0's. The clocks are compared halfway between
// question and answer in the fastest of a few exchanges (Cristian 1989). Every rank calls this.
std::vector<double> clock_offsets(World& world) {
  Communicator& everyone = world.everyone();
  double theirs = 0;
  if (world.rank() != 0) {
    for (int i = 0; i < clock_messages; ++i) {
      everyone.receive(&theirs, 1, DataType::float64, 0);
      theirs = wall_seconds();
      everyone.send(&theirs, 1, DataType::float64, 0);
    }
    return {};
  }
  std::vector<double> offsets = {0};
  for (int64_t rank = 1; rank < world.size(); ++rank) {
    double least = std::numeric_limits<double>::infinity(), offset = 0;
    for (int i = 0; i < clock_messages; ++i) {
      const double asked = wall_seconds();
      everyone.send(&asked, 1, DataType::float64, rank);
      everyone.receive(&theirs, 1, DataType::float64, rank);
      const double answered = wall_seconds();
      if (answered - asked >= least) continue;
      least = answered - asked;
      offset = theirs - (asked + answered) / 2;
    }
    offsets.push_back(offset);
  }
  return offsets;
}

// The places of all ranks, on rank 0. Every rank calls it.
std::vector<RankPlace> places_of(World& world, at::Device device, int64_t local_rank) {
  const std::string mine = concat(host_name(), '\n', device_name(device), '\n', local_rank, '\n');
  const std::vector<double> offsets = clock_offsets(world);
  const std::vector<std::string> all = gather_bytes(mine, world);
  std::vector<RankPlace> places;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    RankPlace place;
    std::istringstream lines(all[rank]);
    std::getline(lines, place.host);
    std::getline(lines, place.device);
    lines >> place.local_rank;
    place.clock_offset_seconds = offsets[rank];
    places.push_back(std::move(place));
  }
  return places;
}

}  // namespace

std::string usual_device() { return visible_gpus() > 0 ? "cuda" : "cpu"; }

int64_t usual_ranks(const std::string& device) {
  if (device != "cpu" && visible_gpus() > 1) return visible_gpus();
  int64_t ranks = 2;
  while (2 * ranks <= std::min(usable_cores(), most_usual_ranks)) ranks *= 2;
  return ranks;
}

std::vector<GroupCheck> check_groups(at::Device memory, uint64_t seed, World& world) {
  std::vector<GroupCheck> checks;
  for (GroupFamily& family : group_families(world.size())) {
    GroupCheck check{.family = std::move(family), .memory = memory.is_cpu() ? "host" : memory.str()};
    world.health().set_place(concat("checking groups of ", check.family.members(), " in ", check.memory, " memory"));
    world.require(check.family.uses());
    std::string mine;
    if (const std::vector<int64_t>* const ranks = check.family.group_of(world.rank())) {
      Communicator& group = world.group(*ranks);
      std::optional<std::string> wrong = find_wrong_result(group, memory);
      const std::optional<std::string> unrepeated = find_unrepeated_result(group, memory, seed);
      if (!wrong && unrepeated) wrong = concat(*unrepeated, " (random numbers of --seed ", seed, ")");
      if (wrong) mine = concat("group of ranks ", describe_ranks(*ranks), ", on rank ", world.rank(), ": ", *wrong);
    }
    check.wrong_ranks = mine.empty() ? 0 : 1;
    world.everyone().all_reduce(&check.wrong_ranks, 1, DataType::int64);
    if (check.wrong_ranks > 0) {
      for (const std::string& failure : gather_bytes(mine, world)) {
        if (!failure.empty() && check.failures.size() < most_failures) check.failures.push_back(failure);
      }
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

void run_self_test(const SelfTestOptions& options, std::unique_ptr<World> joined, SelfTestListener& listener) {
  const double begin = monotonic_seconds();
  const at::Device device = find_device(options.device, options.local_rank, joined->size());
  const std::unique_ptr<World> owned = connect_devices(std::move(joined), device, options.wait_seconds);
  World& world = *owned;
  install_caching_allocator();
  configure_aten(1, options.local_ranks);
  TimeLimit limit(options.seconds, world);
  const std::string connection = world.device_connection();
  listener.introduce(connection.empty() ? "" : concat("; ", connection), places_of(world, device, options.local_rank),
                     options.seed);
  std::vector<GroupCheck> groups = check_groups(at::kCPU, options.seed, world);
  if (!device.is_cpu()) std::ranges::move(check_groups(device, options.seed, world), std::back_inserter(groups));
  listener.add(groups);
  if (const CommunicatorCosts costs = world.communicator_costs(); costs.are_measured()) listener.add(costs);
  // With wrong results in groups, everything that follows would be wrong as well, or hang.
  if (listener.passed()) {
    listener.add(check_layouts(options.corpus, device, limit, world));
    listener.add(check_relayouts(options.corpus, device, limit, world));
    listener.add(measure_groups(device, limit, world));
  }
  listener.finish(limit.was_over(), monotonic_seconds() - begin);
  world.everyone().barrier();  // a rank that exits with 1 must not look to the others like a rank that died
}

}  // namespace copus
