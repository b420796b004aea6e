#include "cli/rate.hpp"

#include "cli/text.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

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
  const uint64_t counted = result.stream_bytes + stored.index_bytes + stored.embedded_book_bytes;
  if (counted > stored.file_bytes)
    throw bad_input("{}: the ledger counts {} bytes in a file of {}", codes.name(), counted,
                    stored.file_bytes);
  result.ledger.lines.push_back({"index", stored.index_bytes});
  result.ledger.lines.push_back({"overhead", stored.file_bytes - counted});
  result.rate = kvcodec::rate_of(result.ledger);
  return result;
}

std::string break_even_text(const FileRate& rate) {
  if (rate.ledger.book_bytes == 0) return "-";
  return rate.rate.break_even_tokens ? grouped(*rate.rate.break_even_tokens) : "never";
}

std::string ledger_table(const FileRate& rate) {
  Table table({{"stored"}, {"bytes"}, {"bits/value"}, {"share", "%"}});
  const auto row = [&](const std::string& name, uint64_t bytes) {
    table.row({name, grouped(bytes), fmt::format("{:.4f}", bits_per_value(rate.ledger.values, bytes)),
               fmt::format("{:.2f}", rate.file_bytes ? 100 * static_cast<double>(bytes) /
                                                           static_cast<double>(rate.file_bytes)
                                                     : 0.0)});
  };
  for (const auto& line : rate.ledger.lines) {
    std::string name = line.name;
    if (name == "index") name = "tokens, positions, documents";
    if (name == "overhead") name = "file overhead";
    row(name, line.bytes);
  }
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

Json to_json(const FileRate& rate) {
  Json ledger = Json::object();
  for (const auto& line : rate.ledger.lines) ledger[line.name] = line.bytes;
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

}  // namespace kvcodec::cli
