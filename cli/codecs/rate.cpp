#include "cli/codecs/rate.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>

#include "cli/codecs/coding.hpp"
#include "lib/entropy/histogram.hpp"

namespace kvcodec::cli {

static std::string bits_text(double bits) { return fmt::format("{:.4f}", bits); }

/// A share in percent, without the sign; 0 if the whole is 0.
static std::string percent(uint64_t part, uint64_t whole) {
  return fmt::format("{:.2f}",
                     100 * static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(whole, 1)));
}

/// Number of values of one side of a group.
static uint64_t values_of(const CodesInfo& info, Side side, int group) {
  return info.documents.held(group) * info.shape(group, side).width();
}

/// Bytes of some kinds of streams, from the lines of a ledger.
static uint64_t bytes_of(const std::vector<RateLine>& lines, std::initializer_list<Category> categories) {
  uint64_t bytes = 0;
  for (const Category category : categories)
    for (const RateLine& line : lines)
      if (line.name == name_of(category)) bytes += line.bytes;
  return bytes;
}

/// Number of exact values that belong to no token. Codecs get copies instead of first tokens, and keep them at 16 bits while they keep
/// the tokens after them so (lib/codec/outer_codecs.hpp): if a document has more exact rows than tokens, the surplus are copies.
static uint64_t surplus_values(const CodesReader& codes, Side side, int group) {
  const CodesInfo& info = codes.info();
  const uint64_t width = info.shape(group, side).width();
  std::vector<std::string> exact;
  uint64_t all = 0;
  for (const StoredStream& stream : codes.streams(side, group))
    if (stream.spec.category == Category::exempt && stream.spec.row_bytes() == 2 * width) {
      exact.push_back(stream.spec.name);
      all += stream.rows;
    }
  // Copies and the first tokens are in separate streams: documents with one stream need no check.
  if (exact.size() < 2 || all == 0) return 0;
  uint64_t surplus = 0;
  for (size_t i = 0; i < info.documents.count(); ++i) {
    const auto document = codes.document(side, group, i);
    uint64_t rows = 0;
    for (const std::string& stream : exact) rows += document->rows(stream);
    surplus += rows - std::min(rows, info.documents.held(group, i));
  }
  return surplus * width;
}

/// Adds the symbols of one side of a group for all documents together, because they share a book.
static void add_symbols(const Codec& codec, const CodesReader& codes, Side side, int group,
                        SideLedger& ledger) {
  const GroupShape shape = codes.info().shape(group, side);
  std::vector<uint64_t> total;
  at_dataset(codes.name(), side, group, [&] {
    for (size_t i = 0; i < codes.info().documents.count(); ++i) {
      const StoredDocument document(codes, codec, shape, i);
      const auto counts = document->symbol_counts();
      total.resize(std::max(total.size(), counts.size()));
      for (size_t symbol = 0; symbol < counts.size(); ++symbol) total[symbol] += counts[symbol];
    }
  });
  for (const uint64_t count : total) ledger.symbols += count;
  ledger.symbol_bits += entropy_bits(total);
}

FileRate rate_of(const CodesReader& codes) {
  const Ledger stored = codes.ledger();
  FileRate result{.codec = codes.info().codec,
                  .ledger = {.tokens = codes.info().documents.tokens(),
                             .values = stored.values,
                             .lines = {},
                             .book_bytes = codes.info().book_bytes},
                  .rate = {},
                  .stream_bytes = stored.stored_bytes(),
                  .file_bytes = stored.file_bytes,
                  .embedded_book_bytes = stored.embedded_book_bytes};
  for (size_t c = 0; c < stored.category.size(); ++c)
    if (stored.category[c] > 0)
      result.ledger.lines.push_back({std::string(name_of(kCategories[c])), stored.category[c]});
  const uint64_t counted =
      result.stream_bytes + stored.index_bytes + stored.state_bytes + stored.embedded_book_bytes;
  if (counted > stored.file_bytes)
    throw bad_input("{}: the ledger counts {} bytes in a file of {}", codes.name(), counted,
                    stored.file_bytes);
  result.ledger.lines.push_back({"index", stored.index_bytes});
  if (stored.state_bytes > 0) result.ledger.lines.push_back({"state", stored.state_bytes});
  result.ledger.lines.push_back({"overhead", stored.file_bytes - counted});
  result.rate = kvcodec::rate_of(result.ledger);
  return result;
}

std::vector<SideBits> side_bits_of(const CodesReader& codes) {
  const CodesInfo& info = codes.info();
  const CodecEntry* entry = known_codec(info.codec);
  std::vector<SideBits> sides;
  for (const Side side : info.sides()) {
    uint64_t values = 0, bytes = 0;
    for (const int group : info.groups) {
      if (!has_side(info, group, side)) continue;
      values += values_of(info, side, group);
      for (const StoredStream& stream : codes.streams(side, group)) bytes += stream.bytes;
    }
    sides.push_back({side, entry ? entry->of(side).name : info.codec, bits_per_value(values, bytes)});
  }
  return sides;
}

SideRates side_rates_of(const CodesReader& codes) {
  const CodesInfo& info = codes.info();
  const CodecEntry& entry =
      with_context(codes.name(), [&]() -> const CodecEntry& { return find_codec(info.codec); });
  std::optional<CodecOfFile> codec;
  if (!entry.capabilities.needs_book) codec.emplace(codes, "");
  SideRates rates{info.sides(), {}};
  for (const Side side : rates.sides) {
    SideLedger& ledger = rates.ledgers.emplace_back();
    std::array<uint64_t, std::size(kCategories)> bytes{};
    uint64_t surplus = 0;
    for (const int group : info.groups) {
      if (!has_side(info, group, side)) continue;
      const uint64_t width = info.shape(group, side).width();
      ledger.values += values_of(info, side, group);
      for (const StoredStream& stream : codes.streams(side, group)) {
        bytes[static_cast<size_t>(stream.spec.category)] += stream.bytes;
        if (stream.spec.category == Category::ids && stream.spec.index_bound > 0)
          ledger.ids += stream.rows * stream.spec.row_elements();
        // A row of bytes is that of a token, in quantized blocks.
        if (stream.spec.category == Category::exempt)
          ledger.exempt_values +=
              stream.rows * (stream.spec.type == DType::u8 ? width : stream.spec.row_elements());
      }
      surplus += surplus_values(codes, side, group);
      if (codec) add_symbols(codec->codec(), codes, side, group, ledger);
    }
    for (const Category category : kCategories) {
      const uint64_t of_category = bytes[static_cast<size_t>(category)];
      if (category == Category::exempt)
        ledger.exempt_bytes = of_category - std::min(of_category, 2 * surplus);
      else if (of_category > 0)
        ledger.lines.push_back({std::string(name_of(category)), of_category});
    }
    ledger.exempt_values -= std::min(ledger.exempt_values, surplus);
    if (ledger.exempt_values > ledger.values)
      throw bad_input("{}: {} of {} {} are kept exactly", codes.name(), ledger.exempt_values, ledger.values,
                      name_of(side));
  }
  return rates;
}

std::optional<double> SideRates::saved_by_ids() const {
  uint64_t coded = 0, ids = 0;
  for (const SideLedger& side : ledgers) {
    if (side.lines.size() != 1 || side.lines[0].name != name_of(Category::ids)) return {};
    coded += side.coded_values();
    ids += side.ids;
  }
  return kvcodec::saved_by_ids(coded, ids);
}

std::string side_table(const SideRates& rates) {
  MeasureTable table("stored");
  const auto row = [&](const std::string& name, const auto& bits, const auto& share) {
    Measures measures;
    for (size_t i = 0; i < rates.sides.size(); ++i)
      measures = joined(
          std::move(measures),
          grouped_as(plural(rates.sides[i]), {word(nullptr, {"bits/value"}, bits(rates.ledgers[i])),
                                              word(nullptr, {"share", "%"}, share(rates.ledgers[i]))}));
    table.row(name, measures);
  };
  const auto nothing = [](const SideLedger&) { return std::string(); };
  const auto entropy = [](const SideLedger& side) {
    return side.entropy() ? bits_text(*side.entropy()) : "-";
  };
  if (std::ranges::any_of(rates.ledgers, [](const SideLedger& side) { return side.entropy().has_value(); })) {
    row("entropy of symbols", entropy, nothing);
    table.rule();
  }
  for (const Category category : kCategories) {
    const auto bytes = [&](const SideLedger& side) { return bytes_of(side.lines, {category}); };
    if (std::ranges::none_of(rates.ledgers, bytes)) continue;
    row(
        std::string(name_of(category)),
        [&](const SideLedger& side) { return bits_text(bits_per_value(side.coded_values(), bytes(side))); },
        [&](const SideLedger& side) { return percent(bytes(side), side.bytes()); });
  }
  table.rule();
  row(
      "coded values", [](const SideLedger& side) { return bits_text(side.bits_per_coded_value()); }, nothing);
  std::vector<std::string> kept;
  for (size_t i = 0; i < rates.sides.size(); ++i)
    kept.push_back(fmt::format("{}% of the {}",
                               percent(rates.ledgers[i].exempt_values, rates.ledgers[i].values),
                               plural(rates.sides[i])));
  std::string text =
      table.text() + fmt::format("\nKept exactly, and left out above: {}.\n", fmt::join(kept, ", "));
  if (const auto saved = rates.saved_by_ids())
    text += fmt::format("If an id counts as one value, as the VQKV paper has it, {:.1f}% are saved.\n",
                        100 * *saved);
  return text;
}

std::string rate_remark(const FileRate& rate) {
  // If streams take so many times the bits of the codes in them, the rate says little about the codec.
  constexpr double kMuchMore = 1.5;
  const auto& lines = rate.ledger.lines;
  const uint64_t values = rate.ledger.values, exact = bytes_of(lines, {Category::exempt});
  if (values == 0 || find_codec(rate.codec).capabilities.lossless) return {};
  const uint64_t exact_values = std::min(values, exact / 2);
  const uint64_t codes =
      bytes_of(lines, {Category::payload, Category::ids, Category::scales, Category::offsets});
  const auto bits = [&](uint64_t bytes) { return bits_per_value(values, bytes); };
  // Streams alone: the codec's options do not change what a file has besides.
  const double streams = bits(rate.stream_bytes);
  const double nominal = values > exact_values ? bits_per_value(values - exact_values, codes) : streams;
  std::string text;
  if (rate.rate.ratio <= 1)
    text = fmt::format("takes {:.2f} bits per value, no fewer than the cache at 16 bits",
                       rate.rate.bits_per_value);
  else if (streams > kMuchMore * nominal)
    text = fmt::format("takes {:.2f} bits per value, where codes alone take {:.2f}", streams, nominal);
  else
    return {};
  return text +
         fmt::format(
             ": tokens kept exactly take {:.2f}, tables {:.2f}, ids of tokens and the file format {:.2f}",
             bits(exact), bits(bytes_of(lines, {Category::tables})), rate.rate.bits_per_value - streams);
}

std::string ledger_table(const FileRate& rate) {
  Table table({{"stored"}, {"bytes"}, {"bits/value"}, {"share", "%"}});
  const auto row = [&](const std::string& name, uint64_t bytes) {
    table.row({name, grouped(bytes), bits_text(bits_per_value(rate.ledger.values, bytes)),
               percent(bytes, rate.file_bytes)});
  };
  for (const auto& [name, bytes] : rate.ledger.lines)
    row(name == "index" ? "tokens, documents, parts" : name == "overhead" ? "file overhead" : name, bytes);
  table.rule();
  row("cache", rate.ledger.bytes());
  if (rate.embedded_book_bytes > 0) {
    row("book in the file", rate.embedded_book_bytes);
    row("file", rate.file_bytes);
  } else if (rate.ledger.book_bytes > 0) {
    row("book, apart", rate.ledger.book_bytes);
  }
  return table.text();
}

static Json lines_json(const std::vector<RateLine>& lines) {
  Json bytes = Json::object();
  for (const auto& line : lines) bytes[line.name] = line.bytes;
  return bytes;
}

Json to_json(const FileRate& rate) {
  Json ledger = lines_json(rate.ledger.lines);
  ledger["embedded_book"] = rate.embedded_book_bytes;
  ledger["file"] = rate.file_bytes;
  return {
      {"codec", rate.codec},
      {"tokens", rate.ledger.tokens},
      {"values", rate.ledger.values},
      {"raw_bytes", rate.raw_bytes()},
      {"stream_bytes", rate.stream_bytes},
      {"cache_bytes", rate.ledger.bytes()},
      {"book_bytes", rate.ledger.book_bytes},
      {"bits_per_value", rate.rate.bits_per_value},
      {"bits_per_value_with_book", rate.rate.bits_per_value_with_book},
      {"ratio", rate.rate.ratio},
      {"ratio_with_book", rate.rate.ratio_with_book},
      {"stream_ratio", rate.stream_ratio()},
      {"break_even_tokens", rate.rate.break_even_tokens ? Json(*rate.rate.break_even_tokens) : Json(nullptr)},
      {"ledger_bytes", ledger}};
}

Json to_json(const SideLedger& ledger) {
  return {{"values", ledger.values},
          {"exempt_values", ledger.exempt_values},
          {"bytes", lines_json(ledger.lines)},
          {"bits_per_coded_value", ledger.bits_per_coded_value()},
          {"ids", ledger.ids},
          {"symbols", ledger.symbols},
          {"symbol_entropy", ledger.entropy() ? Json(*ledger.entropy()) : Json(nullptr)}};
}

}  // namespace kvcodec::cli
