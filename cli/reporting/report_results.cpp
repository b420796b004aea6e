#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "cli/frame/text.hpp"
#include "cli/reporting/report.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// Results are kilobytes; a much larger file is something else.
constexpr uint64_t kMaxBytes = uint64_t{1} << 28;

/// A page shows a column for each layer.
constexpr uint64_t kMaxLayerNumber = 1 << 16;

/// No measure comes near this; beyond it sums and axes would overflow.
constexpr double kMaxMeasure = 1e30;

using Object = nlohmann::json;

const Object& at(const Object& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) throw bad_input("there is no '{}'", name);
  return object[name];
}

const Object& at(const Object& object, const char* name, bool (Object::*is_kind)() const noexcept,
                 const char* kind) {
  if (!(at(object, name).*is_kind)()) throw bad_input("'{}' is not {}", name, kind);
  return object[name];
}

uint64_t count_at(const Object& object, const char* name) {
  return at(object, name, &Object::is_number_unsigned, "a count").get<uint64_t>();
}

std::string string_at(const Object& object, const char* name) {
  return at(object, name, &Object::is_string, "a text").get<std::string>();
}

const Object& array_at(const Object& object, const char* name) {
  return at(object, name, &Object::is_array, "a list");
}

double number_of(const Object& value, const char* name) {
  if (value.is_null()) return std::nan("");  // JSON's form of a number that is not finite
  if (!value.is_number()) throw bad_input("'{}' is not a number", name);
  const auto number = value.get<double>();
  if (std::abs(number) > kMaxMeasure) throw bad_input("'{}' is {}; no measure is that large", name, number);
  return number;
}

double number_at(const Object& object, const char* name) { return number_of(at(object, name), name); }

/// Results of earlier versions do not name the program that made them.
std::string optional_string(const Object& object, const char* name) {
  return object.contains(name) ? string_at(object, name) : std::string();
}

std::vector<std::string> optional_strings(const Object& object, const char* name) {
  std::vector<std::string> strings;
  if (!object.contains(name)) return strings;
  for (const Object& one : array_at(object, name)) {
    if (!one.is_string()) throw bad_input("'{}' holds what is not a text", name);
    strings.push_back(one.get<std::string>());
  }
  return strings;
}

Interval interval_at(const Object& object, const char* name) {
  const Object& value = at(object, name);
  Interval interval{number_at(value, "mean"), {}};
  const double half = number_at(value, "half_width_95");
  if (half < 0) throw bad_input("'{}' has a half width of {}; it must not be negative", name, half);
  if (std::isfinite(half)) interval.half_width = half;
  return interval;
}

/// The label without a number at its end ("kivi" of "kivi-2"); the codec if the label is the setting itself.
std::string family_of(const std::string& label, const std::string& codec) {
  if (label.find(':') != std::string::npos) return codec;
  const size_t end = label.find_last_not_of("0123456789.");
  if (end != std::string::npos && end + 1 < label.size() && label[end] == '-' && end > 0)
    return label.substr(0, end);
  return label;
}

void note_setting(Results& results, const std::string& label, const std::string& codec,
                  const std::string& words) {
  auto place = std::ranges::find(results.settings, label, &Setting::label);
  if (place == results.settings.end()) {
    Setting setting{.label = label, .family = family_of(label, codec), .words = {}};
    for (const Setting& other : results.settings) {
      setting.color = other.family == setting.family ? other.color : std::max(setting.color, other.color + 1);
      if (other.family == setting.family) break;
    }
    place = results.settings.insert(results.settings.end(), std::move(setting));
  }
  if (!words.empty() && std::ranges::find(place->words, words) == place->words.end())
    place->words.push_back(words);
}

/// The word given to --codec, and all options of the selection, wherever they were given.
std::string words_of(const Object& setting) {
  std::string words = string_at(setting, "setting");
  if (!setting.contains("selection")) return words;
  const Object& selection = at(setting, "selection");
  words += " --select " + string_at(selection, "by");
  for (const auto& [name, value] : selection.items())
    if (name != "by")
      words += fmt::format(" --{} {}", name,
                           shell_quoted(value.is_string() ? value.get<std::string>() : value.dump()));
  return words;
}

template <class Run>
Run& run_of(std::vector<Run>& runs, const std::string& what, const Interval& own) {
  constexpr double kRounding = 1e-6;
  for (Run& run : runs)
    if (run.what == what && std::abs(run.own.mean - own.mean) <= kRounding) return run;
  return runs.emplace_back(Run{what, own, {}});
}

RecallLine recall_line(const Object& setting) {
  const Object& share = at(setting, "recall");
  RecallLine line{string_at(setting, "label"), number_at(setting, "bits_per_value"),
                  number_at(share, "share"),   number_at(share, "low_95"),
                  number_at(share, "high_95"), {}};
  for (const Object& cell : array_at(share, "cells")) {
    const RecallLine::Place place{number_at(cell, "length"),
                                  cell.contains("depth") ? number_at(cell, "depth") : -1};
    if (!std::isfinite(place.first) || !std::isfinite(place.second))
      throw bad_input("'cells' holds one without a length or a depth");
    line.cells[place] = number_at(cell, "share");
  }
  return line;
}

ModelLine model_line(const Object& setting) {
  const Object& divergence = at(setting, "kl");
  return {string_at(setting, "label"),
          number_at(setting, "bits_per_value"),
          number_at(setting, "bits_per_value_with_book"),
          interval_at(setting, "nll_rise"),
          interval_at(setting, "kl"),
          interval_at(setting, "same_top1"),
          divergence.contains("quantile_99") ? number_at(divergence, "quantile_99") : std::nan("")};
}

void read_model(const Object& json, Results& results, Source& source) {
  const uint64_t stream = count_at(json, "stream");
  const Object& uncompressed = at(json, "uncompressed");
  const bool recall = uncompressed.contains("recall");
  const std::string windows = optional_string(json, "window_layers");
  std::string what = fmt::format(
      "model {}, {} of {} tokens together, {}, cache in {}{}{}", string_at(json, "model"),
      counted(count_at(json, "documents"), "document"), grouped(count_at(json, "tokens")),
      recall ? counted(count_at(json, "questions"), "question")
             : grouped(count_at(json, "judged_tokens")) + " judged",
      string_at(json, "dtype"), stream > 0 ? fmt::format(", grown {} tokens at a time", stream) : "",
      windows.empty() ? "" : ", --window-layers " + windows);
  if (recall) what += "; task " + string_at(json, "task");
  if (json.contains("keys"))
    what += fmt::format(", {} with {} each, seed {}", counted(count_at(json, "keys"), "key"),
                        counted(count_at(json, "values_per_key"), "value"), count_at(json, "seed"));
  source.what = fmt::format("task {}; {}", string_at(json, "task"), what);
  const Interval own = recall ? Interval{number_at(at(uncompressed, "recall"), "share"), {}}
                              : interval_at(uncompressed, "nll");
  if (recall) source.what += fmt::format("; {:.1f}% right with the uncompressed cache", 100 * own.mean);
  for (const Object& setting : array_at(json, "settings")) {
    note_setting(results, string_at(setting, "label"), string_at(setting, "codec"), words_of(setting));
    for (const std::string& line : optional_strings(setting, "history")) source.history.push_back(line);
    if (recall)
      run_of(results.recalls, what, own).lines.push_back(recall_line(setting));
    else
      run_of(results.runs, what, own).lines.push_back(model_line(setting));
  }
}

ReconLine::SideMeasures side_of(const Object& recon, const char* side) {
  const Object& measures = at(recon, side);
  ReconLine::SideMeasures result;
  result.snr = number_at(measures, "snr_db");
  for (const Object& layer : array_at(measures, "layers")) {
    const uint64_t number = count_at(layer, "layer");
    if (number > kMaxLayerNumber) throw bad_input("'layer' is {}; no model has so many", number);
    result.layers[static_cast<int>(number)] = number_at(layer, "snr_db");
  }
  for (const Object& dimension : array_at(measures, "dimensions"))
    result.dimensions.push_back(number_at(dimension, "snr_db"));
  if (recon.contains("gaussian_bound"))
    result.gap = number_at(at(at(recon, "gaussian_bound"), side), "gap_db");
  return result;
}

ReconLine recon_line(const Object& recon) {
  ReconLine line;
  line.label = std::filesystem::path(string_at(recon, "file")).stem().string();
  line.bits = recon.contains("rate") ? number_at(at(recon, "rate"), "bits_per_value") : std::nan("");
  line.sides[0] = side_of(recon, "key");
  if (recon.contains("value")) line.sides[1] = side_of(recon, "value");
  if (!recon.contains("attention")) return line;
  const Object& attention = at(recon, "attention");
  line.weights_kl = number_at(attention, "weights_kl");
  line.output_error = number_at(attention, "output_error");
  line.top_kept = number_at(attention, "top_kept");
  return line;
}

void read_recon(const Object& json, Results& results, Source& source) {
  for (const Object& recon : array_at(json, "reconstructions")) {
    ReconLine line = recon_line(recon);
    const std::vector<std::string> history = optional_strings(recon, "history");
    for (const std::string& command : history)
      if (std::ranges::find(source.history, command) == source.history.end())
        source.history.push_back(command);
    const std::string codec = recon.contains("rate") ? string_at(at(recon, "rate"), "codec") : line.label;
    std::string words;  // the commands that made the codes
    for (const std::string& command : history)
      if (command.starts_with("kvcodec encode ") || command.starts_with("kvcodec pack-indices "))
        words += (words.empty() ? "" : "; ") + command;
    note_setting(results, line.label, codec, words);
    results.recon.push_back(std::move(line));
  }
  source.what = fmt::format("{} of {}", counted(array_at(json, "reconstructions").size(), "reconstruction"),
                            string_at(json, "original"));
}

void read_sensitivity(const Object& json, Results& results, Source& source) {
  SensitivityLines lines{string_at(at(json, "model"), "model"), {}};
  for (const Object& layer : array_at(json, "layers")) {
    lines.sides[0].push_back(interval_at(at(layer, "key"), "nats"));
    lines.sides[1].push_back(interval_at(at(layer, "value"), "nats"));
  }
  source.what = fmt::format("sensitivities of {}, {}", lines.model, counted(lines.sides[0].size(), "layer"));
  results.sensitivities.push_back(std::move(lines));
}

void read_result(const Object& json, const std::string& file, Results& results) {
  Source source{file,
                {},
                optional_string(json, "generator"),
                optional_string(json, "created"),
                optional_string(json, "command"),
                {}};
  if (json.contains("reconstructions"))
    read_recon(json, results, source);
  else if (json.contains("settings") && json.contains("task"))
    read_model(json, results, source);
  else if (json.contains("layers") && json.contains("model"))
    read_sensitivity(json, results, source);
  else
    throw bad_input("this is not a result of eval-model, eval-recon or sensitivity with --json");
  results.sources.push_back(std::move(source));
}

template <class Lines>
void put_in_order(Lines& lines, const std::vector<Setting>& settings) {
  const auto place = [&](const auto& line) {
    return std::ranges::find(settings, line.label, &Setting::label) - settings.begin();
  };
  std::ranges::stable_sort(lines, {}, place);
}

}  // namespace

const Setting& Results::setting(const std::string& label) const {
  return *std::ranges::find(settings, label, &Setting::label);
}

Results read_results(const std::vector<std::string>& files) {
  Results results;
  for (const std::string& file : files) {
    const Object json = read_json_object(file, kMaxBytes);
    with_context(file, [&] { read_result(json, file, results); });
  }
  for (ModelRun& run : results.runs) put_in_order(run.lines, results.settings);
  for (RecallRun& run : results.recalls) put_in_order(run.lines, results.settings);
  put_in_order(results.recon, results.settings);
  return results;
}

}  // namespace kvcodec::cli
