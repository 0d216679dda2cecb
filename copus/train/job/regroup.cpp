#include "copus/train/job/regroup.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>

#include "copus/base/error.h"
#include "copus/description/configuration_fields.h"
#include "copus/description/configuration_text.h"
#include "copus/description/mesh.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/precision.h"
#include "copus/report/logs/run_log.h"
#include "copus/train/state/state_record.h"
#include "copus/train/step/step_completion.h"

namespace copus {

namespace {

// What each member reports about itself first.
struct Standing {
  int64_t holds = 0;        // SurvivingState::holds_state
  int64_t step = 0;         // number of completed steps
  int64_t decided = 0;      // latest step whose agreed numbers it has
  int64_t moved = 0;        // 1: has its part of a moved state; 2: also knows that all members have theirs
  int64_t holds_moved = 0;  // whether its part of the moved state has tensors
};
constexpr int64_t words_of_standing = sizeof(Standing) / sizeof(int64_t);

void broadcast_words(std::vector<int64_t>& words, int64_t from, Communicator& everyone) {
  int64_t size = std::ssize(words);
  everyone.broadcast(&size, 1, DataType::int64, from);
  words.resize(size);
  everyone.broadcast(words.data(), size, DataType::int64, from);
}

// The tensors of a rank's bucket in the arena of its process.
BucketState tensors_at(const BucketOffsets& offsets, at::ScalarType dtype, std::byte* memory,
                       const StateAddresses& addresses, int64_t rank, int64_t bucket, size_t num_slots) {
  const at::ScalarType master_dtype = master_dtype_of(dtype);
  const int64_t shard = offsets.shard_end - offsets.shard_begin;
  const auto tensor = [&](int64_t count, at::ScalarType type, const auto& find) {
    if (count == 0) return kernels::empty({0}, type, at::kCPU);
    return kernels::over_host_memory(memory + find(), {count}, type, [] {});
  };
  const auto of_kind = [&](int64_t count, at::ScalarType type, StateKind kind) {
    return tensor(count, type, [&] { return addresses.offset(rank, bucket, kind); });
  };
  BucketState state;
  state.slots.resize(num_slots);
  state.gradient =
      tensor(offsets.kept_gradients.size(), master_dtype, [&] { return addresses.gradient(rank, bucket); });
  if (offsets.gradient_only) return state;
  state.weight = of_kind(offsets.kept_weights.size(), dtype, StateKind::weights);
  state.master = dtype == master_dtype ? state.weight.narrow(0, offsets.shard_begin - offsets.kept_weights.begin, shard)
                                       : of_kind(shard, master_dtype, StateKind::master);
  for (size_t slot = 0; slot < num_slots; ++slot) {
    state.slots[slot] = of_kind(shard, master_dtype, slot_kind(slot));
  }
  return state;
}

bool contains(const std::vector<int64_t>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

class Regrouping {
 public:
  Regrouping(const RunConfig& config, World& members, const Epoch& epoch, bool measures_noise, SurvivingState& state)
      : config_(config),
        everyone_(members.everyone()),
        members_(members),
        processes_(epoch.processes),
        machines_(epoch.machines),
        staying_(epoch.num_staying()),
        measures_noise_(measures_noise),
        dtype_(compute_dtype(config.execution.precision)),
        state_(state) {}

  std::optional<Regrouped> run(
      const std::function<std::optional<MannedConfiguration>(const Configuration& before, int64_t ranks)>& choose) {
    const double begin = members_.clock().now();
    exchange_standings();
    if (holders_.empty()) {
      speak_for_the_ended();
      exchange_standings();
    }
    if (holders_.empty()) return std::nullopt;
    result_.after_step = latest_step();
    share_addresses();
    assign_actors();
    complete_step();
    share_training();
    complete_for_the_ended();
    fill_whole_weights();
    hash_state();
    choose_configuration(choose);
    move();
    result_.seconds = members_.clock().now() - begin;
    everyone_.all_reduce(&result_.seconds, 1, DataType::float64, Reduction::maximum);
    state_.at_rest.training.add_pause(result_.seconds);
    return result_;
  }

 private:
  // Finds the members that hold state, and whether the latest move was completed.
  void exchange_standings() {
    tell("who is there");
    first_with_addresses_ = -1;
    const std::optional<StateAtRest>& moved = state_.moved;
    const bool knows_all_moved = moved && !moved->all.addresses.words().empty();
    const Standing mine{.holds = knows(),
                        .step = state_.at_rest.training.step,
                        .decided = state_.decided.step,
                        .moved = moved ? 1 + knows_all_moved : 0,
                        .holds_moved = moved && !moved->mine.empty()};
    standings_.resize(members_.size());
    everyone_.all_gather(&mine, standings_.data(), std::vector<int64_t>(members_.size(), words_of_standing),
                         DataType::int64);
    const auto any = [&](auto says) { return std::ranges::any_of(standings_, says); };
    const bool is_moved = any([](const Standing& of) { return of.moved == 2; });
    if (is_moved) {
      const auto knows = std::ranges::find(standings_, 2, &Standing::moved);
      StateInArenas nowhere;
      share(moved ? state_.moved->all : nowhere, knows - standings_.begin());
      everyone_.barrier();  // all must know of the move before any releases the old layout
      if (moved) {
        state_.at_rest = *moved;
        ++state_.moves;
        write_record(state_, state_.at_rest.training);
      }
    }
    state_.moved.reset();
    for (int64_t rank = 0; rank < members_.size(); ++rank) {
      const Standing& of = standings_[rank];
      // After a move, the new layout is the state of members that have released the old one.
      if (is_moved && of.moved != 0 ? of.holds_moved != 0 : of.holds != 0) holders_.push_back(rank);
      if (first_with_addresses_ < 0 && (is_moved ? of.moved == 2 : of.holds != 0)) first_with_addresses_ = rank;
    }
    result_.survivors.clear();
    for (const int64_t rank : holders_) result_.survivors.push_back(processes_[rank]);
  }

  // Restores state if no member holds any: the member that can read the latest record of an ended process adopts the
  // state in that record. The state in this record is complete, because a rank releases a layout only after all ranks
  // have the next one.
  void speak_for_the_ended() {
    tell("reading what the ended have left");
    const FoundRecord mine = latest_record(state_.arena.get(), state_.loaded_in);
    std::vector<RecordAge> all(members_.size());
    constexpr int64_t words_of_age = sizeof(RecordAge) / sizeof(int64_t);
    everyone_.all_gather(&mine.age, all.data(), std::vector<int64_t>(members_.size(), words_of_age), DataType::int64);
    const auto latest = std::ranges::max_element(all);
    speaks_ = latest->loaded_in >= 0 && latest - all.begin() == members_.rank();
    if (speaks_) take_record(mine.text, dtype_, state_);
  }

  int64_t latest_step() const {
    int64_t latest = 0;
    for (const int64_t rank : holders_) latest = std::max({latest, standings_[rank].step, standings_[rank].decided});
    return latest;
  }

  const ParallelStrategy& strategy() const { return state_.at_rest.training.configuration.strategy; }
  bool holds() const { return state_.holds_state(); }
  // Whether this process knows the progress of training.
  bool knows() const { return holds() || speaks_; }
  // The process's rank in the previous layout; -1 if it was none, or has lost its state.
  int64_t rank_before(int64_t process) const {
    const std::vector<int64_t>& before = state_.at_rest.all.processes;
    const auto found = std::find(before.begin(), before.end(), process);
    return found == before.end() || contains(result_.lost, process) ? -1 : found - before.begin();
  }

  // Chooses the member that acts for each rank of the previous layout. Members that hold state act for themselves. For
  // an ended rank, this is the member that acts for the fewest ranks so far, among the members that can read the rank's
  // arena. If no member can read the arena, the rank's state survives only in copies on other ranks. A member that no
  // longer holds its state cannot act even for itself, because it has a new arena or has reused its memory.
  void assign_actors() {
    const std::vector<int64_t>& before = state_.at_rest.all.processes;
    const int64_t ended = std::ssize(result_.lost);
    std::vector<int64_t> reads(ended), all(ended * members_.size());
    for (int64_t i = 0; i < ended; ++i) {
      reads[i] = state_.arena->is_here(result_.lost[i]) && !contains(processes_, result_.lost[i]);
    }
    everyone_.all_gather(reads.data(), all.data(), std::vector<int64_t>(members_.size(), ended), DataType::int64);
    std::vector<int64_t> burden(members_.size());
    for (int64_t rank = 0, next = 0; rank < std::ssize(before); ++rank) {
      const bool is_lost = contains(result_.lost, before[rank]);
      int64_t actor = is_lost ? nobody : std::ranges::find(processes_, before[rank]) - processes_.begin();
      if (is_lost) {
        for (int64_t member = 0; member < members_.size(); ++member) {
          const bool can = all[member * ended + next] != 0;
          if (can && (actor == nobody || burden[member] < burden[actor])) actor = member;
        }
        ++next;
        if (actor != nobody) ++burden[actor];
      }
      actors_.push_back(actor);
    }
  }

  // Completes the latest decided step on ranks that have not completed it.
  void complete_step() {
    tell("completing the last step");
    const int64_t step = result_.after_step;
    const auto is_behind = [&](int64_t rank) { return standings_[rank].step < step; };
    const auto has_numbers = [&](int64_t rank) { return standings_[rank].decided == step; };
    if (std::ranges::any_of(holders_, is_behind)) {
      const auto source = std::ranges::find_if(holders_, has_numbers);
      COPUS_CHECK(source != holders_.end(), "nobody has the numbers of step ", step);
      static_assert(std::is_trivially_copyable_v<StepAgreement>);
      everyone_.broadcast(&state_.decided.agreed, sizeof(StepAgreement), DataType::byte, *source);
      result_.completed_step = std::ranges::all_of(holders_, is_behind);
      // No rank changes its state before all know the numbers, because a rank may fail while it does so.
      state_.decided.step = step;
      everyone_.barrier();
      if (knows() && is_behind(members_.rank())) complete_mine();
    }
  }

  void complete_mine() {
    TrainingState& training = state_.at_rest.training;
    COPUS_CHECK(training.step + 1 == result_.after_step, "after step ", training.step, " completes ",
                result_.after_step);
    StepCompletion completion(config_);
    if (!state_.critical_batches.empty()) completion.learn(state_.critical_batches);
    const StepAgreement& agreed = state_.decided.agreed;
    const std::optional<WeightUpdate> update = completion.update_of(agreed, training);
    if (update) {
      state_.update = update;
      if (holds())
        make_update(rank_before(processes_[members_.rank()]), state_.at_rest.mine, journal_in(state_.journal), *update);
    }
    state_.record = completion.complete(agreed, update, measures_noise_, training);
    state_.decided.step = training.step;
    write_record(state_, training);
  }

  // Makes or completes the latest update of ended ranks, in their memory.
  void complete_for_the_ended() {
    const std::optional<WeightUpdate> update = latest_update();
    const StateInArenas& all = state_.at_rest.all;
    for (int64_t before = 0; before < std::ssize(actors_); ++before) {
      if (actors_[before] != members_.rank() || all.processes[before] == processes_[members_.rank()]) continue;
      std::byte* const memory = state_.arena->stand_in(all.processes[before]);
      const std::vector<BucketState>& state = stood_in_[before] = state_in(memory, before);
      // Earlier updates were complete before any rank could fail.
      if (update && update->number == state_.at_rest.training.optimizer_steps) {
        make_update(before, state, journal_of(before, memory), *update);
      }
      discard_directions(before, state);
    }
    // After an interrupted regroup, the gradients are gone and the directions have already been discarded.
    const std::vector<BucketState>& mine = state_.at_rest.mine;
    if (holds() && mine.front().gradient.defined()) discard_directions(rank_before(processes_[members_.rank()]), mine);
    everyone_.barrier();
    // Gradients are no longer needed; the new layout may reuse their memory.
    for (BucketState& bucket : state_.at_rest.mine) bucket.gradient.reset();
  }

  // The journal of an ended rank, in the arena of its process.
  UpdateJournal journal_of(int64_t rank, std::byte* memory) const {
    const auto bytes = static_cast<size_t>(journal_bytes(config_.optimizer, config_.model));
    return UpdateJournal({memory + state_.at_rest.all.addresses.journal(rank), bytes});
  }

  // Returns the latest update that was begun. The first holder of state sends it to all members, because a member that
  // completes the work of ended ranks may not know it: it may never have been a rank itself.
  std::optional<WeightUpdate> latest_update() {
    static_assert(std::is_trivially_copyable_v<WeightUpdate>);
    WeightUpdate update = state_.update.value_or(WeightUpdate());  // number 0: none
    everyone_.broadcast(&update, sizeof update, DataType::byte, holders_.front());
    return update.number > 0 ? std::optional(update) : std::nullopt;
  }

  void make_update(int64_t rank, const std::vector<BucketState>& state, UpdateJournal journal,
                   const WeightUpdate& update) const {
    ParameterStore parameters(config_.model, dtype_, placement_of(rank), state);
    const std::unique_ptr<Optimizer> optimizer = make_optimizer(parameters, config_.optimizer, state);
    optimizer->set_steps(update.number - 1);
    optimizer->step(update, &journal);
  }

  // Discards a rank's directions for an update on which the ranks did not agree.
  void discard_directions(int64_t rank, const std::vector<BucketState>& state) const {
    if (!needs_whole_matrices(config_.optimizer.kind)) return;
    ParameterStore parameters(config_.model, dtype_, placement_of(rank), state);
    make_optimizer(parameters, config_.optimizer, state)->discard_directions();
  }

  Placement placement_of(int64_t rank) const {
    return place(config_.model, strategy(), config_.train.sequence_length, rank);
  }
  std::vector<BucketOffsets> buckets_of(int64_t rank) const {
    const Placement placement = placement_of(rank);
    return arrange_buckets(list_local_parameters(config_.model, placement), placement);
  }

  // The tensors of a rank of the previous layout, in the arena of its process.
  std::vector<BucketState> state_in(std::byte* memory, int64_t rank) const {
    const StateAddresses& addresses = state_.at_rest.all.addresses;
    const std::vector<BucketOffsets> buckets = buckets_of(rank);
    const size_t num_slots = optimizer_slots(config_.optimizer.kind).size();
    std::vector<BucketState> state;
    for (int64_t bucket = 0; bucket < std::ssize(buckets); ++bucket) {
      state.push_back(tensors_at(buckets[bucket], dtype_, memory, addresses, rank, bucket, num_slots));
    }
    return state;
  }

  // Sends the addresses of a state from member `from` to all members.
  void share(StateInArenas& all, int64_t from) {
    broadcast_words(all.processes, from, everyone_);
    std::vector<std::vector<int64_t>> words = all.addresses.words();
    int64_t lists = std::ssize(words);
    everyone_.broadcast(&lists, 1, DataType::int64, from);
    words.resize(lists);
    for (std::vector<int64_t>& list : words) broadcast_words(list, from, everyone_);
    all.addresses = StateAddresses(std::move(words));
  }

  // Sends the addresses of the state to processes that were no ranks.
  void share_addresses() {
    StateAtRest& rest = state_.at_rest;
    share(rest.all, first_with_addresses_);
    everyone_.broadcast(&state_.moves, 1, DataType::int64, first_with_addresses_);
    std::vector<int64_t> holds_own(members_.size());
    const int64_t here = holds();
    everyone_.all_gather(&here, holds_own.data(), std::vector<int64_t>(members_.size(), 1), DataType::int64);
    for (const int64_t process : rest.all.processes) {
      const int64_t member = std::ranges::find(processes_, process) - processes_.begin();
      if (member == members_.size() || holds_own[member] == 0) result_.lost.push_back(process);
    }
  }

  // Sends them the progress of training and the record of the latest step. All times are the first holder's.
  void share_training() {
    TrainingState& training = state_.at_rest.training;
    const bool has_record = state_.record && state_.record->step == result_.after_step;
    std::vector<int64_t> with_record(members_.size());
    const int64_t word = has_record;
    everyone_.all_gather(&word, with_record.data(), std::vector<int64_t>(members_.size(), 1), DataType::int64);
    const auto first = std::ranges::find(with_record, 1);
    if (first == with_record.end()) {
      state_.record.reset();
    } else {
      const std::string line =
          broadcast_text(has_record ? to_line(*state_.record) : "", first - with_record.begin(), everyone_);
      state_.record = step_record_from_line(line);
    }
    const std::string text = broadcast_text(knows() ? to_json(training) : "", holders_.front(), everyone_);
    const TrainingState shared = parse_training_state(text, "the state of a rank that survives");
    if (config_.adapt.verify) {
      std::optional<Obstacle> differs;
      if (knows() && hash_counters(training) != hash_counters(shared)) differs = Obstacle{"it does not stand there"};
      if (const auto obstacle = agree_on_obstacle(differs, 0, everyone_)) {
        throw InternalError(concat("the ranks do not agree on where training stands after step ", result_.after_step,
                                   ": ", obstacle->reason, "; go on from the last checkpoint with --resume"));
      }
    }
    training = shared;
    result_.before = training.configuration;
  }

  // With ZeRO-1 and 2 in fp32, where each rank holds all weights and updates its shard: copies all shards again,
  // because the gather may have been interrupted anywhere. Shards are copied through memory, and sent as messages
  // between machines. All members process the shards in the same order, so messages between two members arrive in
  // order.
  void fill_whole_weights() {
    const bool weights_are_master = dtype_ == master_dtype_of(dtype_);
    if (!weights_are_master || !strategy().cuts_optimizer() || strategy().cuts_weights()) return;
    tell("gathering the weights");
    std::vector<Work> sends;
    std::vector<std::pair<std::span<std::byte>, int64_t>> receives;  // buffer and sender
    const int64_t here = members_.rank();
    for (int64_t rank = 0; rank < std::ssize(actors_); ++rank) {
      if (actors_[rank] == nobody) continue;
      const MeshCoordinates at = Mesh(strategy()).coordinates(rank);
      for (int64_t share = 0; share < strategy().zero_shards(); ++share) {
        if (share == at.data % strategy().zero_shards()) continue;
        const int64_t owner = owner_of_share(at, share);
        if (actors_[owner] == nobody) {
          is_torn_ = is_torn_ || has_elements(buckets_of(owner));
          continue;
        }
        const bool is_sender = actors_[owner] == here, is_receiver = actors_[rank] == here;
        if (!is_sender && !is_receiver) continue;
        const bool is_near = machine_of(actors_[owner]) == machine_of(actors_[rank]);
        const std::vector<BucketOffsets> buckets = buckets_of(owner);
        for (int64_t bucket = 0; bucket < std::ssize(buckets); ++bucket) {
          if (!has_share(buckets[bucket])) continue;
          if (is_near && is_receiver) {
            copy_share(share_in(rank, bucket, buckets[bucket]), owner, bucket, buckets[bucket]);
          } else if (!is_near && is_sender) {
            const std::span<std::byte> bytes = share_in(owner, bucket, buckets[bucket]);
            sends.push_back(everyone_.start_send(bytes.data(), std::ssize(bytes), DataType::byte, actors_[rank]));
          } else if (!is_near) {
            receives.emplace_back(share_in(rank, bucket, buckets[bucket]), actors_[owner]);
          }
        }
      }
    }
    for (const auto& [bytes, from] : receives) everyone_.receive(bytes.data(), std::ssize(bytes), DataType::byte, from);
    for (const Work& send : sends) send.wait();
    everyone_.barrier();
  }

  static bool has_share(const BucketOffsets& bucket) {
    return !bucket.gradient_only && bucket.shard_begin < bucket.shard_end;
  }
  static bool has_elements(const std::vector<BucketOffsets>& buckets) {
    return std::ranges::any_of(buckets, has_share);
  }

  // Returns the rank of the previous layout that provides a shard of the weights of rank `at`. Prefers ranks for which
  // a member acts, and among these the rank in the same copy of the state as `at`. If no member acts for any of them,
  // returns the rank in the same copy.
  int64_t owner_of_share(const MeshCoordinates& at, int64_t share) const {
    const int64_t shards = strategy().zero_shards(), copies = strategy().zero_replicas;
    const auto owner_in = [&](int64_t copy) {
      return Mesh(strategy()).rank({.data = copy * shards + share, .tensor = at.tensor, .pipeline = at.pipeline});
    };
    for (int64_t i = 0, copy = at.data / shards; i < copies; ++i, copy = (copy + 1) % copies) {
      if (actors_[owner_in(copy)] != nobody) return owner_in(copy);
    }
    return owner_in(at.data / shards);
  }

  int64_t machine_of(int64_t member) const { return state_.arena->machine_of(processes_[member]); }

  // Where a share is within the unsharded weights of a rank that this member acts for.
  std::span<std::byte> share_in(int64_t rank, int64_t bucket, const BucketOffsets& share) const {
    const auto ended = stood_in_.find(rank);
    const at::Tensor& weight = (ended == stood_in_.end() ? state_.at_rest.mine : ended->second)[bucket].weight;
    const auto width = static_cast<int64_t>(weight.element_size());
    return {static_cast<std::byte*>(weight.data_ptr()) + share.shard_begin * width,
            static_cast<size_t>((share.shard_end - share.shard_begin) * width)};
  }

  // Copies the share from its owner's arena.
  void copy_share(std::span<std::byte> to, int64_t owner, int64_t bucket, const BucketOffsets& share) const {
    const StateInArenas& all = state_.at_rest.all;
    const std::byte* const weights =
        state_.arena->of(all.processes[owner]) + all.addresses.offset(owner, bucket, StateKind::weights);
    const int64_t width = std::ssize(to) / (share.shard_end - share.shard_begin);
    std::memcpy(to.data(), weights + share.shard_begin * width, to.size());
  }

  // Hashes the state at rest, including the state of ended ranks, if all of it can be read. Compute weights are
  // omitted, because an interrupted update may have left them outdated. They are derived again after the move.
  void hash_state() {
    if (!config_.adapt.verify || contains(actors_, nobody)) return;
    tell("verifying the state");
    StateHash& hash = result_.hash.emplace(config_.model, optimizer_slots(config_.optimizer.kind));
    if (holds()) {
      hash.add_rank(placement_of(rank_before(processes_[members_.rank()])), state_.at_rest.mine,
                    /*has_compute_weights=*/false);
    }
    for (const auto& [rank, state] : stood_in_) {
      hash.add_rank(placement_of(rank), state, /*has_compute_weights=*/false);
    }
    const TrainingState& training = state_.at_rest.training;
    hash.add_counters(training, training.optimizer_steps, members_.rank(), members_.size());
    hash.add_up(everyone_);
    if (const auto damage = hash.damage()) {
      throw InternalError(concat("when ranks changed after step ", result_.after_step,
                                 " the training state was damaged: ", *damage,
                                 "; go on from the last checkpoint with --resume"));
    }
  }

  void choose_configuration(
      const std::function<std::optional<MannedConfiguration>(const Configuration& before, int64_t ranks)>& choose) {
    tell("choosing a layout");
    std::vector<int64_t> words(num_configuration_fields + staying_);
    if (members_.rank() == 0) {
      if (const auto chosen = choose(result_.before, staying_)) {
        std::ranges::copy(chosen->members, std::ranges::copy(to_words(chosen->configuration), words.begin()).out);
      }
    }
    everyone_.broadcast(words.data(), std::ssize(words), DataType::int64, 0);
    if (words.front() == 0) {
      throw NoConfiguration(
          concat("no layout of the ", staying_, " ranks that are left can train with a global batch of ",
                 result_.before.global_batch, "; go on from the last checkpoint with --resume, in another"));
    }
    result_.now = configuration_of_words(std::span(words).first<num_configuration_fields>());
    const auto members = words.begin() + num_configuration_fields;
    result_.members = {members, members + result_.now.strategy.world_size()};
  }

  // Moves the state. No rank releases the old state before all know that all have the new one.
  void move() {
    StateAtRest& rest = state_.at_rest;
    const ParallelStrategy& to = result_.now.strategy;
    RelayoutRequest request{.model = config_.model,
                            .sequence_length = config_.train.sequence_length,
                            .from = strategy(),
                            .to = to,
                            .recipe = training_recipe(config_.optimizer, dtype_),
                            .ranks_per_node = 0};
    // Numbers the processes as in the plan: ranks of the previous layout first, by rank, then all others.
    std::vector<int64_t> numbers;
    int64_t next = std::ssize(rest.all.processes);
    for (const int64_t process : processes_) {
      const int64_t before = rank_before(process);
      numbers.push_back(before >= 0 ? before : next++);
    }
    for (const int64_t member : result_.members) request.to_processes.push_back(numbers[member]);
    StandIns stand_ins{.ranks = actors_, .state = stood_in_};
    stand_ins.ranks.resize(next, nobody);
    for (size_t member = 0; member < numbers.size(); ++member) {
      stand_ins.ranks[numbers[member]] = static_cast<int64_t>(member);
    }
    for (int64_t before = 0; before < std::ssize(rest.all.processes); ++before) {
      if (!contains(result_.lost, rest.all.processes[before])) continue;
      (actors_[before] == nobody ? request.gone : request.lost).push_back(before);
    }

    tell("preparing the move");
    if (!state_.journal.defined()) {
      state_.journal =
          arena_memory(state_.arena)->allocate(journal_bytes(config_.optimizer, config_.model), at::kByte).zero_();
    }
    StateMover mover(members_, state_.arena, rest.all, processes_, std::move(stand_ins));
    const PreparedRelayout prepared =
        mover.prepare(request, numbers[members_.rank()], rest.mine, dtype_, /*keeps_old=*/true).get();
    check_nothing_is_missing(prepared.plan);
    if (const auto obstacle = agree_on_obstacle(prepared.veto, prepared.plan.hash, everyone_)) {
      throw NoConfiguration(concat("cannot go on in ", to_string(result_.now), ": ", obstacle->reason,
                                   "; go on from the last checkpoint with --resume"));
    }
    std::vector<BucketState> state = rest.mine;
    RankClock& clock = members_.clock();
    const double begin = clock.now();
    clock.begin_communication();
    mover.move(prepared, dtype_, state, [&](const std::string& round) { tell(concat("moving the state, ", round)); });
    clock.end_communication();
    // Adds the predicted time of the cluster's links, which copies within this machine do not use.
    if (mover.reads_arenas() && config_.cluster.clock != ClockKind::real) {
      members_.health().set_expected_step_seconds(0);  // a clock in real time sleeps in advance_to
      clock.advance_to(begin + relayout_seconds(request, config_.cluster.description));
    }
    for (size_t bucket = 0; bucket < prepared.buckets.size(); ++bucket) {
      state[bucket].gradient = allocate_gradient(prepared.buckets[bucket], dtype_, mover.memory());
    }
    journal_in(state_.journal).mark_complete(rest.training.optimizer_steps);

    tell("settling");
    state_.moved.emplace(StateAtRest{.training = rest.training, .mine = state, .all = {}});
    state_.moved->training.configuration = result_.now;
    const StateAddresses of_members(state, *state_.arena, offset_of_journal(state_), everyone_);
    StateInArenas all;
    std::vector<std::vector<int64_t>> words;
    for (const int64_t member : result_.members) {
      all.processes.push_back(processes_[member]);
      words.push_back(of_members.words()[member]);
    }
    all.addresses = StateAddresses(std::move(words));
    state_.moved->all = std::move(all);
    everyone_.barrier();
    rest = *std::exchange(state_.moved, std::nullopt);
    ++state_.moves;
    state_.update.reset();
    write_record(state_, rest.training);
    stood_in_.clear();
    state_.arena->keep_only(processes_);
  }

  void check_nothing_is_missing(const RelayoutPlan& plan) const {
    std::vector<std::string> parts = plan.missing;
    // The plan misses nothing, so the lost part also has a copy on other ranks, which is true only of a tied embedding.
    if (is_torn_ && parts.empty()) parts.emplace_back("embedding");
    if (parts.empty()) return;
    const auto others = std::ssize(parts) - 1;
    throw StateIsLost(concat("the training state of ", parts.front(),
                             others > 0 ? concat(" and ", others, " other parts of the model") : "",
                             " was on no other machine than the one that is lost. It survives a machine where another "
                             "one has it too: as data-parallel replicas "
                             "with parallel.zero_stage = 0, or with parallel.zero_replicas copies of what ZeRO shares "
                             "out"));
  }

  void tell(const std::string& what) { members_.health().set_place(concat("regrouping: ", what)); }

  static constexpr int64_t nobody = -1;

  const RunConfig& config_;
  Communicator& everyone_;
  World& members_;
  const std::vector<int64_t>& processes_;
  const std::vector<int64_t>& machines_;
  const int64_t staying_;  // number of members that stay after this epoch
  const bool measures_noise_;
  const at::ScalarType dtype_;
  SurvivingState& state_;
  bool speaks_ = false;                // whether this process has adopted ended ranks' latest record, and acts for them
  std::vector<Standing> standings_;    // by member
  std::vector<int64_t> holders_;       // members that hold state
  int64_t first_with_addresses_ = -1;  // first member that knows the addresses of the whole state
  std::vector<int64_t> actors_;        // by rank of the previous layout: the member that acts for it, or nobody
  std::map<int64_t, std::vector<BucketState>> stood_in_;  // by rank: state of ended ranks for which this member acts
  bool is_torn_ = false;  // whether unsharded weights lack shares that no remaining process can provide
  Regrouped result_;
};

}  // namespace

bool join_arenas(World& members, const Epoch& epoch, const std::vector<KeptArena>& kept, SurvivingState& state) {
  members.health().set_place("regrouping: sharing memory");
  if (state.arena != nullptr) return state.arena->rejoin(members, epoch.processes, epoch.machines, kept);
  state.arena = StateArena::join(members, epoch.processes, epoch.machines, kept);
  return state.arena != nullptr;
}

std::optional<Regrouped> regroup(
    const RunConfig& config, World& members, const Epoch& epoch, bool measures_noise, SurvivingState& state,
    const std::function<std::optional<MannedConfiguration>(const Configuration& before, int64_t ranks)>& choose) {
  return Regrouping(config, members, epoch, measures_noise, state).run(choose);
}

}  // namespace copus
