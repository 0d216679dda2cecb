#include "copus/comm/job/member/packing.h"

#include <bit>

namespace copus {

namespace {

constexpr int64_t bytes_of_number = 8;
constexpr int64_t bits_of_byte = 8;
constexpr int64_t least_bytes_of_loss = 5 * bytes_of_number;  // a process and a report with empty texts

}  // namespace

void Packer::add(int64_t number) {
  const auto bits = static_cast<uint64_t>(number);
  for (int64_t i = 0; i < bytes_of_number; ++i) bytes_ += static_cast<char>(bits >> (i * bits_of_byte) & 0xff);
}

void Packer::add(double number) { add(std::bit_cast<int64_t>(number)); }

void Packer::add(std::string_view text) {
  add(std::ssize(text));
  bytes_ += text;
}

void Packer::add(const FailureReport& report) {
  add(report.rank);
  add(report.pid);
  add(std::string_view(report.place));
  add(std::string_view(report.cause));
}

void Packer::add(const Epoch& epoch) {
  add(epoch.number);
  add(epoch.num_parting);
  for (const std::vector<int64_t>& numbers : {epoch.processes, epoch.machines}) {
    add(std::ssize(numbers));
    for (const int64_t number : numbers) add(number);
  }
  add(std::ssize(epoch.lost));
  for (const auto& [process, report] : epoch.lost) {
    add(process);
    add(report);
  }
  add(std::string_view(epoch.note));
}

std::string_view Unpacker::take(int64_t count) {
  if (count < 0 || count > std::ssize(bytes_)) {
    cut_off_ = true;
    bytes_ = {};
    return {};
  }
  const std::string_view taken = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return taken;
}

int64_t Unpacker::number() {
  uint64_t bits = 0;
  const std::string_view bytes = take(bytes_of_number);
  for (int64_t i = 0; i < std::ssize(bytes); ++i) {
    bits |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (i * bits_of_byte);
  }
  return static_cast<int64_t>(bits);
}

double Unpacker::real() { return std::bit_cast<double>(number()); }

std::string Unpacker::text() {
  const int64_t length = number();
  return std::string(take(length));
}

int64_t Unpacker::count(int64_t least_bytes) {
  const int64_t count = number();
  if (count >= 0 && count <= std::ssize(bytes_) / least_bytes) return count;
  cut_off_ = true;
  bytes_ = {};
  return 0;
}

FailureReport Unpacker::report() {
  FailureReport report;
  report.rank = number();
  report.pid = number();
  report.place = text();
  report.cause = text();
  report.announced = true;
  return report;
}

Epoch Unpacker::epoch() {
  Epoch epoch;
  epoch.number = number();
  epoch.num_parting = number();
  for (std::vector<int64_t>* const numbers : {&epoch.processes, &epoch.machines}) {
    numbers->resize(count(bytes_of_number));
    for (int64_t& one : *numbers) one = number();
  }
  epoch.lost.resize(count(least_bytes_of_loss));
  for (auto& [process, lost] : epoch.lost) {
    process = number();
    lost = report();
  }
  epoch.note = text();
  if (epoch.num_parting < 0 || epoch.num_staying() < 0) cut_off_ = true;
  return epoch;
}

}  // namespace copus
