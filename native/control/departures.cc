#include "control/departures.h"

#include <algorithm>
#include <utility>

namespace ringtune {
namespace {

std::string sentence(const Departure& departure) {
  return (departure.who.empty() ? "rank " + std::to_string(departure.rank) : departure.who) + " " +
         (departure.how.empty() ? "has shut down" : departure.how);
}

}  // namespace

void Departures::note(Departure departure) {
  if (departure.failed && !cause_) cause_ = departure;
  departures_.push_back(std::move(departure));
}

std::string Departures::message(const Request& request, const RankSet& awaited) const {
  const std::string tensor = title_of(request);
  if (cause_) {
    const bool itself = awaited.contains(cause_->rank);
    return sentence(*cause_) + ", while " + tensor + " waited for " +
           (itself ? "it" : "rank " + rank_list(awaited.ranks()) + ", which left after that");
  }
  std::string text = "tensor " + tensor + " cannot complete: ";
  constexpr std::size_t kNamed = 3;
  const std::vector<int> ranks = awaited.ranks();
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) text += (i > 0 ? ", " : "") + text_of(ranks[i]);
  if (ranks.size() > kNamed) text += " and " + std::to_string(ranks.size() - kNamed) + " more";
  return text + ". All ranks must run the same collectives before shutdown().";
}

std::string Departures::text_of(int rank) const {
  const auto found = std::find_if(departures_.begin(), departures_.end(),
                                  [rank](const Departure& departure) { return departure.rank == rank; });
  return sentence(found != departures_.end() ? *found : Departure{.rank = rank});
}

}  // namespace ringtune
