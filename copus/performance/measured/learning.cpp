#include "copus/performance/measured/learning.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"

namespace copus {
namespace {

using Vector = std::array<double, num_factors>;
using Matrix = std::array<Vector, num_factors>;

// The standard deviation by which a layout deviates from its prediction when the factors are right. It was 0.05 in 260
// published runs of 11 sets, counting runs within 1.6 times the fastest of their set (docs/decisions/performance.md).
// For comparison, Calculon (Isaev et al. 2023) reports mean errors of 4 %, vTrain (Bang et al. 2023) of 8 % on one
// node; a standard deviation is 1.25 times a mean error.
constexpr double layout_deviation = 0.05;
constexpr double own_deviation = 0.03;

// The drift of a machine (clocks, temperature, neighbours) between a measurement and its use. More steps in a row do
// not average it out.
constexpr double drift_deviation = 0.01;

// The spread of step times that is assumed before any measurement, because two equal steps do not prove that there is
// no spread. It has the weight of assumed_spread_steps measured steps.
constexpr double assumed_spread = 0.05;
constexpr double assumed_spread_steps = 4;

// Beyond this distance, in standard deviations, a cell's influence on the factors no longer grows (Huber 1964), so that
// badly predicted cells do not spoil the others.
constexpr double huber_limit = 2;
constexpr double layout_limit = 2;

// The quartiles of a normal distribution are 2 x 0.6745 standard deviations apart. The standard deviation of the median
// of n draws is sqrt(pi / 2) times that of their mean.
constexpr double quartile_distance = 1.349;
constexpr double median_variance = std::numbers::pi / 2;

Matrix covariance_of(const FactorPrior& deviations) {
  Matrix prior{};
  const auto at = [&prior](Factor row, Factor column) -> double& {
    return prior[static_cast<size_t>(row)][static_cast<size_t>(column)];
  };
  const double compute = deviations.compute * deviations.compute;
  at(Factor::compute, Factor::compute) = compute;
  at(Factor::compute, Factor::bubble) = at(Factor::bubble, Factor::compute) = compute;
  at(Factor::bubble, Factor::bubble) = compute + deviations.bubble * deviations.bubble;
  at(Factor::tensor_links, Factor::tensor_links) = deviations.links * deviations.links;
  at(Factor::data_links, Factor::data_links) = deviations.links * deviations.links;
  return prior;
}

// Inverts a symmetric positive definite matrix by Gauss-Jordan elimination, which needs no pivoting for such a matrix.
Matrix inverse(Matrix matrix) {
  Matrix result{};
  for (size_t i = 0; i < num_factors; ++i) result[i][i] = 1;
  for (size_t pivot = 0; pivot < num_factors; ++pivot) {
    const double scale = 1 / matrix[pivot][pivot];
    for (size_t j = 0; j < num_factors; ++j) {
      matrix[pivot][j] *= scale;
      result[pivot][j] *= scale;
    }
    for (size_t i = 0; i < num_factors; ++i) {
      const double share = matrix[i][pivot];
      if (i == pivot || share == 0) continue;
      for (size_t j = 0; j < num_factors; ++j) {
        matrix[i][j] -= share * matrix[pivot][j];
        result[i][j] -= share * result[pivot][j];
      }
    }
  }
  return result;
}

Vector times(const Matrix& matrix, const Vector& vector) {
  Vector result{};
  for (size_t i = 0; i < num_factors; ++i) {
    for (size_t j = 0; j < num_factors; ++j) result[i] += matrix[i][j] * vector[j];
  }
  return result;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < num_factors; ++i) sum += a[i] * b[i];
  return sum;
}

Vector exponentials(const Vector& logarithms) {
  Vector result{};
  std::transform(logarithms.begin(), logarithms.end(), result.begin(), [](double value) { return std::exp(value); });
  return result;
}

struct Prediction {
  double seconds = 0;
  // The fraction of each factor in the seconds: the gradient of log(seconds) by the logarithms of the factors.
  Vector shares{};
};

Prediction predict(const Vector& factors, const StepTimeParts& parts) {
  Prediction prediction;
  Vector& shares = prediction.shares;
  const auto add = [&](Factor factor, double seconds) { shares[static_cast<size_t>(factor)] += seconds; };
  add(Factor::compute, parts.compute + parts.optimizer);
  add(Factor::tensor_links, parts.tensor_communication);
  add(Factor::data_links, parts.data_communication);
  add(Factor::bubble, parts.bubble);
  for (size_t i = 0; i < num_factors; ++i) prediction.seconds += shares[i] *= factors[i];
  for (double& share : shares) share /= prediction.seconds;
  return prediction;
}

double squared(double value) { return value * value; }

// Returns a cell's weight by its distance in standard deviations: 1 up to the limit, smaller beyond.
double huber_weight(double distance) { return std::min(1.0, huber_limit / std::abs(distance)); }

double huber_loss(double distance) {
  const double beyond = std::max(0.0, std::abs(distance) - huber_limit);
  return (squared(distance) - squared(beyond)) / 2;
}

// Returns the weight of a layout whose measurements deviate by this number of standard deviations. Beyond the limit, a
// larger deviation has less influence (Cauchy's loss), because some layouts are slow for reasons that other layouts do
// not share: of 224 published runs that were predicted to be fast, 13 took 1.5 to 32 times as long as predicted
// (docs/decisions/performance.md).
double cauchy_weight(double distance) { return 1 / (1 + squared(distance / layout_limit)); }

double cauchy_loss(double distance) { return squared(layout_limit) / 2 * std::log1p(squared(distance / layout_limit)); }

// The cells of one layout, given the factors. A residual r_i = log(measured) - log(predicted) is L + own + noise, where
// L is the layout's deviation and `own` the cell's. Computes the most probable L, and the weights of the cells and of
// L.
struct LayoutFit {
  struct Cell {
    double residual, variance;  // variance of own + noise
    Vector shares;
    double weight = 1;
  };
  std::vector<Cell> cells;
  double deviation = 0;  // L
  double weight = 1;     // of L's prior
  double loss = 0;

  // Reweights iteratively, always from weights of 1, until nothing changes. Cauchy's loss may have several minima. The
  // fixed start makes the result depend on the residuals alone.
  void solve() {
    constexpr int most_iterations = 50;
    constexpr double tolerance = 1e-14;
    for (int iteration = 0; iteration < most_iterations; ++iteration) {
      double information = weight / squared(layout_deviation), sum = 0;
      for (const Cell& cell : cells) {
        information += cell.weight / cell.variance;
        sum += cell.weight / cell.variance * cell.residual;
      }
      const double before = std::exchange(deviation, sum / information);
      weight = cauchy_weight(deviation / layout_deviation);
      for (Cell& cell : cells) cell.weight = huber_weight((cell.residual - deviation) / std::sqrt(cell.variance));
      if (iteration > 0 && std::abs(deviation - before) < tolerance) break;
    }
    loss = cauchy_loss(deviation / layout_deviation);
    for (const Cell& cell : cells) loss += huber_loss((cell.residual - deviation) / std::sqrt(cell.variance));
  }

  // Weighted means over the cells. `variance`: of the mean residual, given L.
  struct Means {
    double residual = 0, variance = 0;
    Vector shares{};
  };
  Means means() const {
    double information = 0;
    Means result;
    for (const Cell& cell : cells) {
      const double its = cell.weight / cell.variance;
      information += its;
      result.residual += its * cell.residual;
      for (size_t i = 0; i < num_factors; ++i) result.shares[i] += its * cell.shares[i];
    }
    result.variance = 1 / information;
    result.residual *= result.variance;
    for (double& share : result.shares) share *= result.variance;
    return result;
  }

  // Adds the layout's information about the factors. One part comes from the cells' mean, whose variance includes the
  // variance of L. The other part comes from the cells' deviations from this mean, which do not depend on L.
  void add_to(Matrix& precision, Vector& downhill) const {
    const Means mean = means();
    const auto add = [&](const Vector& shares, double residual, double information) {
      for (size_t i = 0; i < num_factors; ++i) {
        downhill[i] += information * residual * shares[i];
        for (size_t j = 0; j < num_factors; ++j) precision[i][j] += information * shares[i] * shares[j];
      }
    };
    add(mean.shares, mean.residual, 1 / (squared(layout_deviation) / weight + mean.variance));
    for (const Cell& cell : cells) {
      Vector shares = cell.shares;
      for (size_t i = 0; i < num_factors; ++i) shares[i] -= mean.shares[i];
      add(shares, cell.residual - mean.residual, cell.weight / cell.variance);
    }
  }
};

}  // namespace

Measurement measurement_of(const std::vector<double>& step_seconds) {
  COPUS_CHECK(!step_seconds.empty() && *std::min_element(step_seconds.begin(), step_seconds.end()) > 0,
              step_seconds.size(), " steps");
  std::vector<double> logarithms(step_seconds.size());
  std::transform(step_seconds.begin(), step_seconds.end(), logarithms.begin(),
                 [](double seconds) { return std::log(seconds); });
  const Quartiles spread = quartiles(logarithms);
  return {std::ssize(step_seconds), quantile(step_seconds, 0.5), (spread.upper - spread.lower) / quartile_distance};
}

int64_t MeasuredCell::steps() const {
  int64_t sum = 0;
  for (const Measurement& measurement : measurements) sum += measurement.steps;
  return sum;
}

double MeasuredCell::seconds() const {
  std::vector<Measurement> sorted = measurements;
  std::sort(sorted.begin(), sorted.end(),
            [](const Measurement& a, const Measurement& b) { return a.median_seconds < b.median_seconds; });
  const int64_t all = steps();
  int64_t below = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    below += sorted[i].steps;
    if (2 * below > all) return sorted[i].median_seconds;
    if (2 * below == all) return std::midpoint(sorted[i].median_seconds, sorted[i + 1].median_seconds);
  }
  fail_check("a cell with measurements", __FILE__, __LINE__, "");
}

double MeasuredCell::relative_noise() const {
  double squares = assumed_spread_steps * squared(assumed_spread), count = assumed_spread_steps;
  for (const Measurement& measurement : measurements) {
    squares += static_cast<double>(measurement.steps - 1) * squared(measurement.relative_spread);
    count += static_cast<double>(measurement.steps - 1);
  }
  return std::sqrt(median_variance * squares / count / static_cast<double>(steps()) + squared(drift_deviation));
}

Knowledge::Knowledge() { learn(); }

Knowledge::Knowledge(std::map<Configuration, MeasuredCell> cells, const FactorPrior& prior)
    : prior_(prior), cells_(std::move(cells)) {
  learn();
}

Knowledge Knowledge::under(const FactorPrior& prior) const {
  return prior == prior_ ? *this : Knowledge(cells_, prior);
}

int64_t Knowledge::measured_steps(const Configuration& configuration) const {
  const auto cell = cells_.find(configuration);
  return cell == cells_.end() ? 0 : cell->second.steps();
}

StepTimeParts Knowledge::under_factors(const StepTimeParts& parts) const {
  return {.compute = factor(Factor::compute) * parts.compute,
          .tensor_communication = factor(Factor::tensor_links) * parts.tensor_communication,
          .bubble = factor(Factor::bubble) * parts.bubble,
          .data_communication = factor(Factor::data_links) * parts.data_communication,
          .optimizer = factor(Factor::compute) * parts.optimizer};
}

double Knowledge::relative_deviation(Factor factor) const {
  const auto i = static_cast<size_t>(factor);
  return std::sqrt(covariance_[i][i]);
}

// Finds the most probable logarithms theta of the factors and their covariance by Gauss-Newton. The factors have a
// prior. For each cell log(measured) = log(predicted(theta)) + L + own + noise. L is the same for all cells of a
// layout, so measuring one layout often does not determine theta exactly.
void Knowledge::learn() {
  evidence_.clear();
  layouts_.clear();
  // Caches pointers, because a map look-up takes longer than a prediction.
  struct Member {
    const StepTimeParts* parts;
    Evidence* evidence;
  };
  std::map<Layout, std::vector<Member>> members;
  for (const auto& [configuration, cell] : cells_) {
    const double seconds = cell.seconds();
    COPUS_CHECK(cell.steps() > 0 && seconds > 0 && cell.parts.total() > 0, cell.steps(), " steps");
    Evidence& evidence = evidence_[configuration];
    evidence = {std::log(seconds), squared(cell.relative_noise()), squared(own_deviation)};
    members[{configuration.strategy, configuration.micro_batch}].push_back({&cell.parts, &evidence});
  }
  const auto fit_layouts = [&](const Vector& theta) {
    const Vector factors = exponentials(theta);
    std::vector<LayoutFit> fits;
    fits.reserve(members.size());
    for (const auto& [layout, cells] : members) {
      LayoutFit& fit = fits.emplace_back();
      fit.cells.reserve(cells.size());
      for (const Member& cell : cells) {
        const Prediction prediction = predict(factors, *cell.parts);
        fit.cells.push_back({.residual = cell.evidence->log_seconds - std::log(prediction.seconds),
                             .variance = squared(own_deviation) + cell.evidence->noise_variance,
                             .shares = prediction.shares});
      }
      fit.solve();
    }
    return fits;
  };

  const Matrix prior = inverse(covariance_of(prior_));
  const auto loss = [&](const Vector& theta, const std::vector<LayoutFit>& fits) {
    return std::accumulate(fits.begin(), fits.end(), dot(theta, times(prior, theta)) / 2,
                           [](double sum, const LayoutFit& fit) { return sum + fit.loss; });
  };
  constexpr int most_iterations = 100, most_halvings = 20;
  constexpr double tolerance = 1e-9;  // of a logarithm; below it, losses differ only by rounding
  Vector theta{};
  std::vector<LayoutFit> fits = fit_layouts(theta);
  for (int iteration = 0; iteration < most_iterations; ++iteration) {
    Matrix precision = prior;
    Vector downhill = times(prior, theta);
    for (double& value : downhill) value = -value;
    for (const LayoutFit& fit : fits) fit.add_to(precision, downhill);
    covariance_ = inverse(precision);
    const Vector step = times(covariance_, downhill);
    const double longest = std::abs(
        *std::max_element(step.begin(), step.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
    if (longest < tolerance) break;
    const double before = loss(theta, fits);
    const Vector from = theta;
    bool is_lower = false;
    double share = 1;
    for (int halving = 0; halving < most_halvings && !is_lower; ++halving, share /= 2) {
      for (size_t i = 0; i < num_factors; ++i) theta[i] = from[i] + share * step[i];
      fits = fit_layouts(theta);
      is_lower = loss(theta, fits) < before;
    }
    if (!is_lower) {
      theta = from;
      fits = fit_layouts(theta);
      break;
    }
  }
  factors_ = exponentials(theta);

  auto fit = fits.begin();
  for (const auto& [layout, cells] : members) {
    const LayoutFit::Means means = fit->means();
    layouts_[layout] = {means.residual, means.shares, means.variance, squared(layout_deviation) / fit->weight};
    for (size_t i = 0; i < cells.size(); ++i) {
      const LayoutFit::Cell& cell = fit->cells[i];
      Evidence& evidence = *cells[i].evidence;
      evidence.own_variance = cell.variance / cell.weight - evidence.noise_variance;
    }
    ++fit;
  }
}

// The corrected value is z = log(predicted) + L + own. Let k = Var L / (Var L + Var mean). Given the factors, L has a
// mean of k times the layout's mean deviation, and the variance k Var mean. If the cell itself was measured as y = z +
// noise, let m = Var own / (Var own + Var noise). Then z = (1 - m) (log(predicted) + L) + m y, with an additional
// variance of m Var noise.
Corrected Knowledge::correct(const Configuration& configuration, const StepTimeParts& parts) const {
  const Prediction prediction = predict(factors_, parts);
  COPUS_CHECK(prediction.seconds > 0, prediction.seconds);
  Vector shares = prediction.shares;
  double logarithm = std::log(prediction.seconds), variance = squared(layout_deviation);
  const auto of_layout = layouts_.find({configuration.strategy, configuration.micro_batch});
  if (of_layout != layouts_.end()) {
    const LayoutEvidence& layout = of_layout->second;
    const double known_share = layout.deviation_variance / (layout.deviation_variance + layout.noise_variance);
    logarithm += known_share * layout.deviation;
    variance = known_share * layout.noise_variance;
    for (size_t i = 0; i < num_factors; ++i) shares[i] -= known_share * layout.shares[i];
  }
  variance += dot(shares, times(covariance_, shares));
  const auto found = of_layout != layouts_.end() ? evidence_.find(configuration) : evidence_.end();
  if (found == evidence_.end()) return {std::exp(logarithm), std::sqrt(variance + squared(own_deviation))};
  const Evidence& evidence = found->second;
  const double measured_share = evidence.own_variance / (evidence.own_variance + evidence.noise_variance);
  return {std::exp(std::lerp(logarithm, evidence.log_seconds, measured_share)),
          std::sqrt(squared(1 - measured_share) * variance + measured_share * evidence.noise_variance)};
}

Knowledge observe(const Knowledge& before, const Configuration& configuration, const StepTimeParts& parts,
                  const Measurement& measurement) {
  std::map<Configuration, MeasuredCell> cells = before.cells();
  MeasuredCell& cell = cells[configuration];
  cell.parts = parts;
  cell.measurements.push_back(measurement);
  if (std::ssize(cell.measurements) > max_measurements) cell.measurements.erase(cell.measurements.begin());
  return Knowledge(std::move(cells), before.prior_);
}

}  // namespace copus
