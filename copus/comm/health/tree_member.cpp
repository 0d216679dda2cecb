#include "copus/comm/health/tree_member.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr char here = 'a';       // up: the cards of the sender's subtree, one per line
constexpr char everyone = 'e';   // down: the cards of all ranks: they have met
constexpr char heartbeat = 'h';  // both ways: "pid", a line with the place
constexpr char failed = 'f';     // towards a failed rank's neighbour or rank 0: "rank pid told located", place, cause
constexpr char decided = 'd';    // down: as in `failed`
constexpr char leaving = 'l';    // up: the sender has reached the end of the job
constexpr char all_left = 'b';   // up: the sender's whole subtree has reached the end
constexpr char ended = 'g';      // down: all ranks have reached the end

// If this member itself was paused for longer than this, it cannot tell from the clock which neighbours were silent.
constexpr auto own_pause = std::chrono::milliseconds(1000);
// How long rank 0 waits for a neighbour of the failed rank to add where that rank was.
constexpr auto longest_completion = std::chrono::milliseconds(300);

constexpr const char* lost_connection = "its process ended, or the network to its machine broke";
constexpr const char* no_cards = "sent what are no addresses of ranks";

double seconds_between(TreeMember::Time from, TreeMember::Time to) {
  return std::chrono::duration<double>(to - from).count();
}

// Returns whether the text has one line per rank.
bool are_cards(std::string_view text, int64_t ranks) {
  return text.ends_with('\n') && std::count(text.begin(), text.end(), '\n') == ranks;
}

std::string to_text(const TreeMember::Decision& report, bool is_located) {
  const FailureReport& failure = report.failure;
  return concat(failure.rank, ' ', failure.pid, ' ', report.told, ' ', is_located, '\n', failure.place, '\n',
                failure.cause);
}

struct Report {
  TreeMember::Decision decision;
  bool is_located = false;  // whether the report has passed a rank that knows where the failed rank was
};

// Empty if the text is not a report of a job with `size` ranks.
std::optional<Report> report_of(std::string_view text, int64_t size) {
  std::istringstream words{std::string(text)};
  Report report;
  FailureReport& failure = report.decision.failure;
  words >> failure.rank >> failure.pid >> report.decision.told >> report.is_located;
  if (!words || failure.rank < -1 || failure.rank >= size) return std::nullopt;
  words.get();
  std::getline(words, failure.place);
  std::getline(words, failure.cause);
  return report;
}

}  // namespace

TreeMember::TreeMember(int64_t rank, int64_t size, int64_t pid, double wait_seconds, Time started)
    : tree_(rank, size), wait_seconds_(wait_seconds), started_(started), looked_(started) {
  own_.pid = pid;
  if (!tree_.is_root()) neighbours_[tree_.parent()];
  for (const int64_t child : tree_.children()) neighbours_[child];
}

bool TreeMember::is_heartbeat(char kind) { return kind == heartbeat; }

std::vector<TreeMember::Text> TreeMember::take_texts() { return std::exchange(texts_, {}); }

std::string TreeMember::place_of(int64_t rank) const {
  if (rank == tree_.rank()) return own_.place;
  const auto found = neighbours_.find(rank);
  return found == neighbours_.end() ? "" : found->second.place;
}

void TreeMember::send(int64_t to, char kind, std::string content) {
  const Signs& signs = neighbours_.at(to);
  if (signs.connected && !signs.lost) texts_.push_back({to, kind, std::move(content)});
}

void TreeMember::send_down(char kind, const std::string& content) {
  for (const int64_t child : tree_.children()) send(child, kind, content);
}

void TreeMember::connect(int64_t neighbour, Time now) {
  Signs& signs = neighbours_.at(neighbour);
  signs.connected = true;
  signs.heard = now;
  if (neighbour < tree_.rank()) hand_on_cards();
}

void TreeMember::lose(int64_t neighbour) {
  Signs& signs = neighbours_.at(neighbour);
  if (std::exchange(signs.lost, true) || has_ended_ || decision_) return;
  find(neighbour, lost_connection, looked_);
}

void TreeMember::take(int64_t neighbour, char kind, std::string_view content, Time now) {
  if (!is_neighbour(neighbour)) return;
  Signs& signs = neighbours_.at(neighbour);
  signs.heard = now;
  const bool from_parent = neighbour < tree_.rank();
  switch (kind) {
    case here:
      if (from_parent) return;
      if (!are_cards(content, RankTree(neighbour, tree_.size()).end() - neighbour))
        return find(neighbour, no_cards, now);
      cards_below_[neighbour] = content;
      return hand_on_cards();
    case everyone:
      if (!from_parent || has_met_) return;
      if (!are_cards(content, tree_.size())) return find(neighbour, no_cards, now);
      return meet(std::string(content));
    case heartbeat: {
      const size_t end_of_line = std::min(content.find('\n'), content.size());
      std::istringstream(std::string(content.substr(0, end_of_line))) >> signs.pid;
      signs.place = content.substr(std::min(end_of_line + 1, content.size()));
      return;
    }
    case failed:
      if (const auto report = report_of(content, tree_.size())) pass_on(report->decision, report->is_located, now);
      return;
    case decided: {
      const auto report = report_of(content, tree_.size());
      if (!from_parent || decision_ || !report) return;
      decide(report->decision);
      decides_itself_ = false;
      return;
    }
    case leaving:
    case all_left:
      if (from_parent) return;
      (kind == leaving ? signs.left : signs.all_below_left) = true;
      if (!first_left_) first_left_ = now;
      return hand_on_leaving();
    case ended:
      if (from_parent) end();
      return;
    default:
      return;
  }
}

void TreeMember::look(Time now) {
  if (has_ended_ || decision_) return;
  if (now - std::exchange(looked_, now) > own_pause) {
    for (auto& [rank, signs] : neighbours_) signs.heard = now;
  }
  judge_absence(now);
  judge_silence(now);
  if (undecided_ && now - undecided_since_ > (tree_.is_root() ? longest_completion : longest_decision)) {
    decide(*undecided_);
  }
  if (decision_ || now - beaten_ < heartbeat_interval) return;
  beaten_ = now;
  for (const auto& [rank, signs] : neighbours_) send(rank, heartbeat, concat(own_.pid, '\n', own_.place));
}

// Treats neighbours that have not joined in time, or have not reached the end of the job in time, as failed.
void TreeMember::judge_absence(Time now) {
  if (!has_met_ && seconds_between(started_, now) > wait_seconds_) {
    for (const int64_t child : tree_.children()) {
      if (neighbours_.at(child).connected) continue;
      report({did_not_come(child, wait_seconds_)}, now);
      break;
    }
  }
  if (first_left_ && seconds_between(*first_left_, now) > wait_seconds_) {
    const std::string cause = concat("kept others waiting at the end of the job for ", wait_seconds_, " s");
    if (!own_.left) return report({{tree_.rank(), "", cause}}, now);
    for (const int64_t child : tree_.children()) {
      if (!neighbours_.at(child).left) return report({{child, "", cause}}, now);
    }
  }
}

void TreeMember::judge_silence(Time now) {
  for (const auto& [rank, signs] : neighbours_) {
    if (!signs.connected || signs.lost || now - signs.heard <= longest_silence) continue;
    return find(rank, concat("no heartbeat for ", seconds_between({}, Time(longest_silence)), " s"), now);
  }
}

// A neighbour has failed. If it is the parent, only this member can tell its own subtree, so it decides alone.
void TreeMember::find(int64_t neighbour, const std::string& cause, Time now) {
  const Signs& signs = neighbours_.at(neighbour);
  const Decision found{{neighbour, signs.place, cause, signs.pid}};
  if (neighbour < tree_.rank()) {
    if (!decision_) decide(found);
  } else {
    report(found, now);
  }
}

void TreeMember::report(const Decision& report, Time now) {
  if (decision_ || has_ended_ || undecided_) return;
  undecided_ = report;
  undecided_since_ = now;
  pass_on(report, false, now);
}

void TreeMember::miss_parent() {
  if (!decision_) decide({did_not_come(tree_.parent(), wait_seconds_)});
}

// Forwards a report: first to a neighbour of the failed rank, which knows where that rank was, then to rank 0, which
// decides.
void TreeMember::pass_on(Decision report, bool is_located, Time now) {
  if (decision_ || has_ended_) return;
  FailureReport& failure = report.failure;
  const bool is_own = failure.rank == tree_.rank();
  if (failure.rank < 0 || is_own || is_neighbour(failure.rank)) {
    is_located = true;
    if (failure.rank >= 0) {
      const Signs& signs = is_own ? own_ : neighbours_.at(failure.rank);
      if (failure.place.empty()) failure.place = signs.place;
      if (failure.pid == 0) failure.pid = signs.pid;
    }
  }
  if (!is_located) {
    const int64_t next = tree_.towards(failure.rank);
    const Signs& signs = neighbours_.at(next);
    if (signs.connected && !signs.lost) {
      if (tree_.is_root() && !undecided_) {
        undecided_ = report;
        undecided_since_ = now;
      }
      return send(next, failed, to_text(report, false));
    }
  }
  if (tree_.is_root()) return decide(report);
  const Signs& parent = neighbours_.at(tree_.parent());
  if (!parent.connected || parent.lost) return decide(report);
  send(tree_.parent(), failed, to_text(report, true));
}

void TreeMember::decide(const Decision& decision) {
  decision_ = decision;
  decides_itself_ = true;
  send_down(decided, to_text(decision, true));
}

void TreeMember::come(const std::string& card) {
  own_card_ = card;
  hand_on_cards();
}

void TreeMember::hand_on_cards() {
  const std::vector<int64_t> children = tree_.children();
  if (has_met_ || own_card_.empty() || cards_below_.size() < children.size()) return;
  std::string cards = own_card_ + '\n';
  for (const int64_t child : children) cards += cards_below_.at(child);
  if (tree_.is_root()) return meet(std::move(cards));
  send(tree_.parent(), here, std::move(cards));
}

// Resets the heartbeat timer, so that the next heartbeat, with this rank's pid, is sent immediately.
void TreeMember::meet(std::string cards) {
  has_met_ = true;
  beaten_ = {};
  send_down(everyone, cards);
  cards_ = std::move(cards);
}

std::vector<std::string> TreeMember::cards() const {
  std::vector<std::string> cards;
  std::istringstream lines(cards_);
  for (std::string card; std::getline(lines, card);) cards.push_back(card);
  COPUS_CHECK(std::ssize(cards) == tree_.size(), cards.size(), " cards of ", tree_.size(), " ranks");
  return cards;
}

void TreeMember::leave(Time now) {
  own_.left = true;
  if (!first_left_) first_left_ = now;
  hand_on_leaving();
}

void TreeMember::hand_on_leaving() {
  if (!own_.left || has_ended_) return;
  if (!tree_.is_root() && !std::exchange(told_leaving_, true)) send(tree_.parent(), leaving, "");
  const std::vector<int64_t> children = tree_.children();
  const auto has_all_left = [&](int64_t child) { return neighbours_.at(child).all_below_left; };
  if (!std::all_of(children.begin(), children.end(), has_all_left)) return;
  if (tree_.is_root()) return end();
  if (!std::exchange(told_all_left_, true)) send(tree_.parent(), all_left, "");
}

void TreeMember::end() {
  has_ended_ = true;
  send_down(ended, "");
}

}  // namespace copus
