#include "copus/cli/generate/tokenizer_text.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/process/standard_descriptors.h"
#include "copus/base/text/json_text.h"

namespace copus {

extern const char* const tokenizer_process_py;

namespace {

namespace fs = std::filesystem;

std::vector<std::string> pythons() {
  const fs::path of_clone = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / ".venv/bin/python";
  if (fs::exists(of_clone)) return {of_clone.string(), "python3"};
  return {"python3"};
}

// Limits how long a call on the socket waits.
void limit_waiting(int socket, std::chrono::milliseconds longest) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timeval limit{.tv_sec = seconds.count(), .tv_usec = std::chrono::microseconds(longest - seconds).count()};
  for (const int direction : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    COPUS_CHECK(::setsockopt(socket, SOL_SOCKET, direction, &limit, sizeof(limit)) == 0, errno);
  }
}

std::string in_seconds(std::chrono::milliseconds time) {
  return concat(std::chrono::duration<double>(time).count(), " s");
}

// Starts a Python process whose input and output are `socket`. Its option -P prevents imports from the current folder.
// Returns an error number, or 0.
int spawn_python(const std::string& python, const std::string& file, int socket, pid_t& process) {
  std::array<std::string, 5> texts = {python, "-P", "-c", tokenizer_process_py, file};
  std::array<char*, texts.size() + 1> arguments{};
  for (size_t i = 0; i < texts.size(); ++i) arguments[i] = texts[i].data();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
  const int error = ::posix_spawnp(&process, python.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

TokenizerText::TokenizerText(const fs::path& place, std::chrono::milliseconds longest_answer)
    : file_(fs::is_directory(place) ? place / "tokenizer.json" : place), longest_answer_(longest_answer) {
  if (!fs::is_regular_file(file_)) {
    throw UserError(concat("there is no ", file_.string(), "; expected a file of Hugging Face's tokenizers. Where a ",
                           "tokenizer has other files, transformers writes this one: ",
                           "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"));
  }
  std::string reasons;
  for (const std::string& python : pythons()) {
    const std::optional<std::string> reason = start(python);
    if (!reason) return;
    reasons += concat(reasons.empty() ? "" : "; ", python, ": ", *reason);
  }
  throw UserError(concat("text in the tokens of ", file_.string(), " needs Python 3.11 or newer with the package ",
                         "tokenizers (", reasons, "). Install it (pip install tokenizers), or give and read token ids ",
                         "by --ids"));
}

std::optional<std::string> TokenizerText::start(const std::string& python) {
  std::array<int, 2> ends{};
  COPUS_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, errno);
  socket_ = checked_descriptor(ends[0]);
  limit_waiting(socket_, longest_answer_);
  const int error = spawn_python(python, file_.string(), ends[1], process_);
  ::close(ends[1]);
  if (error != 0) {
    stop();
    return std::strerror(error);
  }
  const std::optional<std::string> greeting = next_answer();
  const nlohmann::json answer = greeting ? parse_json(*greeting) : nlohmann::json();
  if (answer.contains("end_of_document")) {
    end_of_document_ = integer_of(answer.at("end_of_document"));
    return std::nullopt;
  }
  stop();
  if (answer.contains("error")) {
    throw UserError(concat(file_.string(), " is not a file of Hugging Face's tokenizers, or the tokenizer_config.json ",
                           "beside it is damaged: ", answer.at("error").get<std::string>()));
  }
  if (answer.contains("missing")) return answer.at("missing").get<std::string>();
  return concat("it ended at once, or gave no answer within ", in_seconds(longest_answer_));
}

// Kills the process: a hanging process would not end when its input ends, and the process has nothing to save.
void TokenizerText::stop() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  if (process_ <= 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(std::exchange(process_, -1), nullptr, 0);
}

std::optional<std::string> TokenizerText::next_answer() {
  size_t end = received_.find('\n');
  while (end == std::string::npos) {
    std::array<char, 4096> piece;
    const ssize_t count = ::recv(socket_, piece.data(), piece.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    received_.append(piece.data(), static_cast<size_t>(count));
    end = received_.find('\n');
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

bool TokenizerText::send(const std::string& line) const {
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t count = ::send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    rest.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

std::string TokenizerText::ask(const std::string& question) {
  const std::optional<std::string> answer = send(question + '\n') ? next_answer() : std::nullopt;
  if (!answer) {
    throw UserError(concat("the Python process with the tokenizer of ", file_.string(),
                           " has ended early, or gave no answer within ", in_seconds(longest_answer_)));
  }
  return *answer;
}

std::vector<int64_t> TokenizerText::encode(const std::string& text) {
  return parse_json(ask(json_text(nlohmann::json(text)))).get<std::vector<int64_t>>();
}

std::string TokenizerText::add(int64_t token) { return parse_json(ask(concat(token))).get<std::string>(); }

std::string TokenizerText::finish() { return parse_json(ask("null")).get<std::string>(); }

}  // namespace copus
