#include "copus/workshop/self_test/self_test.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <sstream>
#include <utility>

#include "copus/base/cores.h"
#include "copus/base/error.h"
#include "copus/comm/gpu/device_world.h"
#include "copus/model/caching_allocator.h"
#include "copus/train/device.h"
#include "copus/train/step_agreement.h"
#include "copus/workshop/self_test/collectives.h"
#include "copus/workshop/self_test/parts.h"

namespace copus {

namespace {

constexpr int64_t most_usual_ranks = 8;
constexpr int clock_messages = 5;
constexpr size_t most_failures = 10;  // that are told of one family

std::string host_name() {
  char name[256] = {};
  COPUS_CHECK(::gethostname(name, sizeof name - 1) == 0);
  return name;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// On rank 0: what the clock of every rank's host says beyond the one here, halfway between question and answer of the
// quickest of a few (Cristian 1989). Every rank calls it.
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

}  // namespace

std::string usual_device() { return visible_gpus() > 0 ? "cuda" : "cpu"; }

int64_t usual_ranks(const std::string& device) {
  if (device != "cpu" && visible_gpus() > 1) return visible_gpus();
  int64_t ranks = 2;
  while (2 * ranks <= std::min(usable_cores(), most_usual_ranks)) ranks *= 2;
  return ranks;
}

std::vector<GroupCheck> check_groups(at::Device memory, World& world) {
  std::vector<GroupCheck> checks;
  for (GroupFamily& family : group_families(world.size())) {
    GroupCheck check{.family = std::move(family), .memory = memory.is_cpu() ? "host" : memory.str()};
    world.health().set_place(concat("checking groups of ", check.family.members(), " in ", check.memory, " memory"));
    world.prepare(check.family.uses());
    std::string mine;
    if (const std::vector<int64_t>* const ranks = check.family.group_of(world.rank())) {
      if (const auto wrong = find_wrong_result(world.group(*ranks), memory)) {
        mine = concat("group of ranks ", describe_ranks(*ranks), ", on rank ", world.rank(), ": ", *wrong);
      }
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

struct SelfTest::Implementation {
  SelfTestOptions options;
  at::Device device;
  std::string gpu_connection;
  std::unique_ptr<World> world;
  TimeLimit limit;
};

SelfTest::SelfTest(const SelfTestOptions& options, std::unique_ptr<World> world) {
  const at::Device device = find_device(options.device, options.local_rank, world->size());
  std::string gpu_connection;
  if (!device.is_cpu() && world->size() > 1) {
    gpu_connection = ranks_share_a_device(*world, *gpu_runtime(device)) ? "; GPUs through the host" : "; GPUs by NCCL";
  }
  world = connect_devices(std::move(world), device, options.wait_seconds);
  install_caching_allocator();
  configure_aten(1, options.local_ranks);
  World& joined = *world;
  implementation_ = std::make_unique<Implementation>(
      Implementation{options, device, std::move(gpu_connection), std::move(world), TimeLimit(options.seconds, joined)});
}

SelfTest::~SelfTest() = default;

World& SelfTest::world() { return *implementation_->world; }

std::string SelfTest::gpu_connection() const { return implementation_->gpu_connection; }

std::vector<RankPlace> SelfTest::places() {
  World& world = *implementation_->world;
  const std::string mine =
      concat(host_name(), '\n', device_name(implementation_->device), '\n', implementation_->options.local_rank, '\n');
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

std::vector<GroupCheck> SelfTest::check_groups() {
  const Implementation& i = *implementation_;
  std::vector<GroupCheck> checks = copus::check_groups(at::kCPU, *i.world);
  if (i.device.is_cpu()) return checks;
  std::vector<GroupCheck> of_device = copus::check_groups(i.device, *i.world);
  checks.insert(checks.end(), of_device.begin(), of_device.end());
  return checks;
}

std::vector<GroupSpeed> SelfTest::measure_groups() {
  Implementation& i = *implementation_;
  return copus::measure_groups(i.device, i.limit, *i.world);
}

std::vector<RelayoutCheck> SelfTest::check_relayouts() {
  Implementation& i = *implementation_;
  return copus::check_relayouts(i.options.corpus, i.device, i.limit, *i.world);
}

std::vector<LayoutCheck> SelfTest::check_layouts() {
  Implementation& i = *implementation_;
  return copus::check_layouts(i.options.corpus, i.device, i.limit, *i.world);
}

bool SelfTest::is_shortened() const { return implementation_->limit.was_over(); }

}  // namespace copus
