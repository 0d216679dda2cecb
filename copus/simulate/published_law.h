// Computes published scaling laws in absolute units: how a model's loss falls with the tokens that it has read, and how
// the critical batch grows with these tokens. The authors fitted the laws to their own runs. Policies do not know which
// law holds. Once a run has measured three critical batches, `copus` uses a posterior whose prior rests on published
// laws, some of them these (statistics/efficiency_belief.h).
#pragma once

#include "copus/base/named_values.h"

namespace copus {

// How the critical batch grows.
enum class PublishedLaw {
  kaplan,   // with the loss: 2.1e8 tokens / L^(1 / 0.21) (Kaplan et al. 2020, arXiv 2001.08361)
  bergsma,  // with the tokens: 0.0471 D^0.462 sequences of 2048 (Bergsma et al. 2025, arXiv 2505.13738)
  olmo,     // with the tokens, to 4096 sequences of 4096 at 503 B, as measured for OLMo (worth.h)
};
template <>
inline constexpr auto named_values<PublishedLaw> = std::to_array<NamedValue<PublishedLaw>>(
    {{PublishedLaw::kaplan, "kaplan"}, {PublishedLaw::bergsma, "bergsma"}, {PublishedLaw::olmo, "olmo"}});

// Returns the critical batch, in tokens, of a model that has read this number of tokens and has this loss, in nats per
// token. Bergsma's law was fitted to whole runs of D tokens each; here it is used within one run, with D as the tokens
// read so far.
double published_critical_batch(PublishedLaw law, double tokens, double loss);

// Returns the loss of a model after D tokens, in nats per token: 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28 (Hoffmann et
// al. 2022, arXiv 2203.15556), but at most the loss of a uniform guess over the vocabulary.
struct PublishedLoss {
  double parameters = 1;  // N
  double vocabulary = 1;

  double at(double tokens) const;
  // The loss after infinitely many tokens.
  double least() const;
  // Returns the number of tokens after which the model has this loss. The loss must be above least() and below the loss
  // of a uniform guess.
  double tokens_to(double loss) const;
};

}  // namespace copus
