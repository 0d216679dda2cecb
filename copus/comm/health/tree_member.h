// One rank's part in how the ranks of a job meet, watch over one another, and part, along a tree (rank_tree.h). It is
// a state machine: it is told what happens and what time it is, and gives texts for its neighbours. It knows no
// threads, connections or clocks.
//
// Meeting: each rank hands its card (its address, say) to its parent when those of all below it have come. Rank 0 then
// gives all cards to all, down the tree. Watching: neighbours send each other heartbeats. Whoever finds a failure
// sends it to rank 0 by way of the neighbours of the rank that failed, which know where that rank was; rank 0 decides
// which failure was the first, and tells all. A rank whose parent is gone decides that for those below it. Parting: a
// rank that has come to the end says so to its parent, and again when all below it have; rank 0 then ends the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/comm/health/rank_tree.h"
#include "copus/comm/rank_failure.h"

namespace copus {

// How often a rank sends heartbeats to its neighbours, and after how long a silence it counts as failed.
inline constexpr auto heartbeat_interval = std::chrono::milliseconds(200);
inline constexpr auto longest_silence = std::chrono::milliseconds(3000);
// A report of which nobody hears for so long counts for the rank that made it and those below it.
inline constexpr auto longest_decision = std::chrono::milliseconds(1000);

class TreeMember {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Text {
    int64_t to;
    char kind;
    std::string content;
  };
  struct Decision {
    FailureReport failure;
    bool told = false;  // to the user, by the rank that failed
  };

  // Of ranks that have yet to meet. A neighbour that is not there `wait_seconds` after `started` counts as failed.
  TreeMember(int64_t rank, int64_t size, int64_t pid, double wait_seconds, Time started);

  const RankTree& tree() const { return tree_; }

  // What happens. A neighbour is expected to show that it is there once it is connected. A connection that is lost does
  // not come back.
  void connect(int64_t neighbour, Time now);
  void lose(int64_t neighbour);
  // The parent could not be found in time.
  void miss_parent();
  void take(int64_t neighbour, char kind, std::string_view content, Time now);
  // Looks for what is late, and sends heartbeats that are due. To be called several times a second.
  void look(Time now);

  // What this rank does. Its card is one line.
  void come(const std::string& card);
  void set_place(std::string_view place) { own_.place = place; }
  void report(const Decision& report, Time now);
  void leave(Time now);

  // Texts for neighbours since the last call. Heartbeats need not be sent where others still wait.
  std::vector<Text> take_texts();
  static bool is_heartbeat(char kind);

  bool has_met() const { return has_met_; }
  std::vector<std::string> cards() const;  // of all ranks in their order, once they have met
  bool has_ended() const { return has_ended_; }
  const std::optional<Decision>& decision() const { return decision_; }
  // Whether it is this member's own decision, and did not come from its parent.
  bool decides_itself() const { return decides_itself_; }
  // Where a rank last said that it was; empty but for this one and its neighbours.
  std::string place_of(int64_t rank) const;

 private:
  // What is known of this rank, or of a neighbour.
  struct Signs {
    int64_t pid = 0;
    std::string place;
    bool connected = false, lost = false;
    Time heard{};
    bool left = false, all_below_left = false;
  };

  bool is_neighbour(int64_t rank) const { return neighbours_.contains(rank); }
  void send(int64_t to, char kind, std::string content);
  void send_down(char kind, const std::string& content);
  void hand_on_cards();
  void meet(std::string cards);
  void judge_absence(Time now);
  void judge_silence(Time now);
  void find(int64_t neighbour, const std::string& cause, Time now);
  void pass_on(Decision report, bool is_located, Time now);
  void decide(const Decision& decision);
  void hand_on_leaving();
  void end();

  const RankTree tree_;
  const double wait_seconds_;
  const Time started_;
  Signs own_;
  std::map<int64_t, Signs> neighbours_;
  std::vector<Text> texts_;
  Time looked_, beaten_{};

  std::map<int64_t, std::string> cards_below_;  // by child: those of the ranks below it, a line each
  std::string own_card_;
  std::string cards_;  // of all ranks, a line each
  bool has_met_ = false;

  // A report that is on its way, of this rank or, on rank 0, one that has been sent on to be completed.
  std::optional<Decision> undecided_;
  Time undecided_since_{};
  std::optional<Decision> decision_;
  bool decides_itself_ = false;

  std::optional<Time> first_left_;
  bool told_leaving_ = false, told_all_left_ = false;
  bool has_ended_ = false;
};

}  // namespace copus
