#include "cli/reporting/report_words.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/frame/text.hpp"

namespace kvcodec::cli {
namespace {

using Lines = std::vector<const ModelLine*>;

template <class Wanted>
Lines chosen(const ModelRun& run, const Wanted& wanted) {
  Lines lines;
  for (const ModelLine& line : run.lines)
    if (wanted(line)) lines.push_back(&line);
  return lines;
}

bool measured(const ModelLine& line) { return line.rise.half_width && std::isfinite(line.rise.mean); }

/// The one with the fewest bits; nullptr if none has a rate.
const ModelLine* smallest(const Lines& lines) {
  const ModelLine* best = nullptr;
  for (const ModelLine* line : lines)
    if (std::isfinite(line->bits) && (!best || line->bits < best->bits)) best = line;
  return best;
}

std::string named(const ModelLine& line) {
  std::string text = fmt::format("{} with {:.3f} bits per value", line.label, line.bits);
  if (line.bits_with_book > line.bits)
    text += fmt::format(" ({:.3f} with its book over these documents)", line.bits_with_book);
  return text + fmt::format(", rise {}", interval_text(line.rise));
}

std::string settings_text(size_t count) {
  return count == 1 ? "1 setting" : fmt::format("{} settings", count);
}

std::string below(const ModelRun& run, size_t settings, double loss) {
  const Lines lines =
      chosen(run, [&](const ModelLine& line) { return measured(line) && *line.rise.high() < loss; });
  const ModelLine* best = smallest(lines);
  if (!best)
    return fmt::format(
        "No setting has a 95% interval of the rise that lies wholly below a loss of {:g} nats per token.",
        loss);
  return fmt::format(
      "Of {}, {} a 95% interval of the rise that lies wholly below a loss of {:g} nats per token; the smallest is {}.",
      settings_text(settings), lines.size() == 1 ? "1 has" : fmt::format("{} have", lines.size()), loss,
      named(*best));
}

/// By name, while there are few.
std::string labels(const Lines& lines) {
  constexpr size_t kFew = 8;
  if (lines.size() > kFew) return settings_text(lines.size());
  std::string text;
  for (const ModelLine* line : lines) text += (text.empty() ? "" : ", ") + line->label;
  return text;
}

std::string unclear(const ModelRun& run) {
  const Lines lines =
      chosen(run, [](const ModelLine& line) { return measured(line) && line.rise.holds_zero(); });
  const ModelLine* best = smallest(lines);
  if (!best) return "No interval holds 0: each setting can be told from no loss.";
  return fmt::format(
      "{} be told from no loss: the interval holds 0. The smallest is {}. That does not show that it loses nothing: "
      "these documents would fit a loss of up to {:.2g} nats per token as well.",
      lines.size() == 1 ? "1 setting cannot" : fmt::format("{} settings cannot", lines.size()), named(*best),
      *best->rise.high());
}

std::string clear(const ModelRun& run) {
  const Lines worse =
      chosen(run, [](const ModelLine& line) { return measured(line) && *line.rise.low() > 0; });
  const Lines better =
      chosen(run, [](const ModelLine& line) { return measured(line) && *line.rise.high() < 0; });
  std::string text;
  if (!worse.empty()) text = fmt::format("The interval lies wholly above 0, a loss, for {}.", labels(worse));
  if (!better.empty())
    text += fmt::format(
        "{}It lies wholly below 0 for {}: the text became likelier, which is a change too, and no gain to count on.",
        text.empty() ? "" : " ", labels(better));
  return text;
}

/// How much of this is chance.
std::string caution(size_t settings) {
  std::string text = "A 95% interval misses its true value in one of twenty cases";
  if (settings >= 10)
    text +=
        fmt::format(": about {:.0f} of these {} do", std::ceil(static_cast<double>(settings) / 20), settings);
  return text + ". It speaks of documents like these only.";
}

}  // namespace

std::string interval_text(const Interval& interval) {
  if (!std::isfinite(interval.mean)) return "-";
  const std::string mean = fmt::format("{:.5f}", interval.mean);
  return interval.half_width ? fmt::format("{} ± {:.5f}", mean, *interval.half_width) : mean;
}

std::vector<std::string> conclusion(const ModelRun& run, double loss) {
  const size_t settings = chosen(run, measured).size();
  if (settings == 0)
    return {
        "There is no interval for any setting, since one document alone says nothing about others: "
        "what is lost cannot be told from chance."};
  std::vector<std::string> sentences{below(run, settings, loss), unclear(run), clear(run), caution(settings)};
  std::erase(sentences, "");
  if (settings < run.lines.size())
    sentences.push_back(fmt::format("{} no interval and {} left out of this.",
                                    run.lines.size() - settings == 1
                                        ? "1 setting has"
                                        : fmt::format("{} settings have", run.lines.size() - settings),
                                    run.lines.size() - settings == 1 ? "is" : "are"));
  return sentences;
}

}  // namespace kvcodec::cli
