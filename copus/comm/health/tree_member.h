// Implements, for one rank, the protocol by which the ranks of a job meet, monitor each other and part along a tree
// (rank_tree.h). It is a state machine without threads, connections or clocks: its inputs are events and times, its
// outputs are texts for the rank's neighbours.
//
// - Meeting: each rank has a card (for example its address). When the cards of a rank's whole subtree have arrived, the
//   rank passes them to its parent. Rank 0 then sends all cards down the tree.
// - Monitoring: neighbours send each other heartbeats. A rank that notices a failure reports it to rank 0. The report
//   travels through the failed rank's neighbours, which add where that rank last was. Rank 0 decides which failure was
//   the first and tells all ranks. A rank whose parent is gone decides for its own subtree.
// - Parting: a rank that has reached the end of the job tells its parent, and tells it again when its whole subtree has
//   reached the end. When all ranks have, rank 0 ends the job.
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

// The interval of heartbeats between neighbours, and the silence after which a neighbour counts as failed.
inline constexpr auto heartbeat_interval = std::chrono::milliseconds(200);
inline constexpr auto longest_silence = std::chrono::milliseconds(3000);
// If a report gets no answer for this long, the reporting rank makes the decision for itself and its subtree.
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
    bool told = false;  // whether the failed rank has reported the failure to the user itself
  };

  // For ranks that have not met yet. A neighbour that is still missing `wait_seconds` after `started` counts as failed.
  TreeMember(int64_t rank, int64_t size, int64_t pid, double wait_seconds, Time started);

  const RankTree& tree() const { return tree_; }

  // Events. From the time a neighbour is connected, it must send heartbeats. A lost connection is not made again.
  void connect(int64_t neighbour, Time now);
  void lose(int64_t neighbour);
  // Records that the parent could not be found in time.
  void miss_parent();
  void take(int64_t neighbour, char kind, std::string_view content, Time now);
  // Checks for late events, and sends heartbeats that are due. Call it several times a second.
  void look(Time now);

  // Actions of this rank. A card is one line of text.
  void come(const std::string& card);
  void set_place(std::string_view place) { own_.place = place; }
  void report(const Decision& report, Time now);
  void leave(Time now);

  // Returns the texts to send to neighbours since the last call. The caller may drop a heartbeat while earlier texts
  // are still queued.
  std::vector<Text> take_texts();
  static bool is_heartbeat(char kind);

  bool has_met() const { return has_met_; }
  std::vector<std::string> cards() const;  // of all ranks, by rank, once they have met
  bool has_ended() const { return has_ended_; }
  const std::optional<Decision>& decision() const { return decision_; }
  // Whether this member decided which rank has failed, instead of receiving the decision from its parent.
  bool decides_itself() const { return decides_itself_; }
  // The place that a rank last set. Known only for this rank and its neighbours; otherwise empty.
  std::string place_of(int64_t rank) const;

 private:
  // What is known about this rank or a neighbour.
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

  std::map<int64_t, std::string> cards_below_;  // by child: the cards of its subtree, one per line
  std::string own_card_;
  std::string cards_;  // of all ranks, one per line
  bool has_met_ = false;

  // A report for which there is no decision yet: this rank's own report or, on rank 0, a report that a neighbour of the
  // failed rank is to complete.
  std::optional<Decision> undecided_;
  Time undecided_since_{};
  std::optional<Decision> decision_;
  bool decides_itself_ = false;

  std::optional<Time> first_left_;
  bool told_leaving_ = false, told_all_left_ = false;
  bool has_ended_ = false;
};

}  // namespace copus
