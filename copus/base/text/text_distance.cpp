#include "copus/base/text/text_distance.h"

#include <algorithm>

#include "copus/base/error.h"
#include "copus/base/text/lower_case.h"

namespace copus {

namespace {

// Returns whether each word of `text` is the beginning of the word of `candidate` in the same position. Words are
// joined by "-" or "_". A word of fewer than three letters is no abbreviation, because too many words begin with it.
bool abbreviates(std::string_view text, std::string_view candidate) {
  constexpr std::string_view joints = "-_";
  constexpr size_t fewest_letters = 3;
  size_t letters = 0;
  while (true) {
    const size_t end = std::min(text.find_first_of(joints), text.size());
    const size_t candidate_end = std::min(candidate.find_first_of(joints), candidate.size());
    if (!candidate.substr(0, candidate_end).starts_with(text.substr(0, end))) return false;
    letters += end;
    const bool is_last = end == text.size(), is_candidates_last = candidate_end == candidate.size();
    if (is_last || is_candidates_last) return is_last && is_candidates_last && letters >= fewest_letters;
    text.remove_prefix(end + 1);
    candidate.remove_prefix(candidate_end + 1);
  }
}

}  // namespace

size_t edit_distance(std::string_view one, std::string_view other) {
  // Row i holds the distances between the first i characters of `one` and every prefix of `other`.
  std::vector<size_t> before_last(other.size() + 1);
  std::vector<size_t> last(other.size() + 1);
  std::vector<size_t> current(other.size() + 1);
  for (size_t j = 0; j <= other.size(); ++j) current[j] = j;
  for (size_t i = 1; i <= one.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, current);
    current[0] = i;
    for (size_t j = 1; j <= other.size(); ++j) {
      const size_t substitution = last[j - 1] + (one[i - 1] != other[j - 1]);
      current[j] = std::min({last[j] + 1, current[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1]) {
        current[j] = std::min(current[j], before_last[j - 2] + 1);
      }
    }
  }
  return current.back();
}

std::optional<std::string> nearest(std::string_view text, const std::vector<std::string>& candidates) {
  const std::string lower = lower_case(std::string(text));
  std::optional<std::string> best;
  size_t best_distance = std::max<size_t>(1, text.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // The distance is at least the difference in length, so candidates of very different length are skipped.
    const size_t fewest_edits = std::max(lower.size(), candidate.size()) - std::min(lower.size(), candidate.size());
    if (fewest_edits >= best_distance) continue;
    const size_t distance = edit_distance(lower, lower_case(std::string(candidate)));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (best) return best;
  const auto meant = std::find_if(candidates.begin(), candidates.end(), [&](const std::string& candidate) {
    return abbreviates(lower, lower_case(std::string(candidate)));
  });
  return meant != candidates.end() ? std::optional(*meant) : std::nullopt;
}

std::string join(const std::vector<std::string>& texts, std::string_view separator) {
  std::string result;
  for (const std::string& text : texts) result += concat(&text == &texts.front() ? "" : separator, text);
  return result;
}

std::string suggest(std::string_view text, const std::vector<std::string>& candidates, std::string_view introduction) {
  const std::optional<std::string> similar = nearest(text, candidates);
  return similar ? concat("did you mean \"", *similar, "\"?") : concat(introduction, " ", join(candidates, ", "));
}

}  // namespace copus
