#include "cli/inputs/documents.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "cli/frame/text.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/error.hpp"
#include "lib/tokenizer/unicode.hpp"

namespace kvcodec::cli {

namespace fs = std::filesystem;

std::vector<std::string> text_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const auto& path : paths) {
    std::error_code error;
    if (path == "-" || !fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    fs::recursive_directory_iterator place(path, error), end;
    while (!error && place != end) {
      if (place->path().filename().string().starts_with(".")) {
        if (place->is_directory(error)) place.disable_recursion_pending();
      } else if (place->is_regular_file(error)) {
        found.push_back(place->path().string());
      }
      place.increment(error);
    }
    if (error) throw bad_input("{}: {}", path, error.message());
    if (found.empty()) throw bad_input("{}: the folder holds no files", path);
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

bool is_pipe(const std::string& file) {
  std::error_code error;
  return fs::is_fifo(file, error);
}

void refuse_pipe(const std::string& file) {
  if (is_pipe(file))
    throw bad_input("{}: is a pipe, and nothing may ever come; give '-' to read from standard input", file);
}

std::string read_text(const std::string& file) {
  std::ifstream opened;
  if (file != "-") {
    std::error_code error;
    if (fs::is_directory(file, error)) throw bad_input("{}: is a folder; a text file is wanted here", file);
    refuse_pipe(file);
    errno = 0;
    opened.open(file, std::ios::binary);
    if (!opened) throw bad_input("{}: cannot be read: {}", file, std::strerror(errno));
  }
  std::istream& in = file == "-" ? std::cin : opened;
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) throw bad_input("{}: cannot be read to its end", file);
  return text;
}

namespace {

/// What a file is by its first bytes, if it is one of those that are given for text by mistake; else "".
std::string_view kind_of(std::string_view text) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"\x93NUMPY"sv, "a NumPy array"},
      {"PK\x03\x04"sv, "a zip archive, as those of NumPy and PyTorch are"},
      {"\x80\x02"sv, "a Python pickle"},
      {"\x80\x03"sv, "a Python pickle"},
      {"\x80\x04"sv, "a Python pickle"},
      {"\x80\x05"sv, "a Python pickle"},
      {"\x1f\x8b"sv, "compressed by gzip"},
      {"\x28\xb5\x2f\xfd"sv, "compressed by zstd"},
      {"%PDF-"sv, "a PDF document"},
      {"\x89HDF"sv, "an HDF5 file"},
      {"PAR1"sv, "a Parquet file"},
  };
  for (const auto& [start, kind] : kKinds)
    if (text.starts_with(start)) return kind;
  return {};
}

}  // namespace

void refuse_binary(const std::string& file, std::string_view text, const char* wanted) {
  if (const auto kind = kind_of(text); !kind.empty())
    throw bad_input("{}: this is {}, not {}", file, kind, wanted);
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw bad_input("{}: byte {} is zero: this is not {}", file, zero, wanted);
}

std::vector<std::string> lines_of(const std::string& file, const char* wanted) {
  const std::string text = read_text(file);
  refuse_binary(file, text, wanted);
  std::vector<std::string> lines;
  for (std::string& line : split(text, '\n')) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    line.erase(0, line.find_first_not_of(" \t"));
    if (!line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

void check_is_text(const CommonOptions& common, const std::string& file, std::string_view text) {
  refuse_binary(file, text, "text in UTF-8");
  if (const size_t good = valid_utf8_prefix(text); good < text.size())
    common.note("{}: byte {} is not UTF-8; such bytes are read as U+FFFD", file, good);
}

namespace {

/// A line of a .jsonl file. where: file and line; the name of a text without "id".
SourceText text_of_line(std::string_view line, const std::string& where) {
  const nlohmann::json object = parse_json_object(line, where);
  return with_context(where, [&] {
    const JsonFields fields(object);
    const auto text = fields.get_string("text");
    if (!text) throw bad_input("has no \"text\"; each line of a .jsonl file is an object with one");
    SourceText source{.name = where, .text = *text};
    if (const auto* id = fields.find("id")) {
      if (!id->is_string() && !id->is_number_integer())
        throw bad_input("\"id\" is a JSON {}; a string or an integer is wanted", id->type_name());
      source.name = id->is_string() ? id->get<std::string>() : id->dump();
    }
    if (const auto* metadata = fields.find("metadata")) {
      if (!metadata->is_object())
        throw bad_input("\"metadata\" is a JSON {}; an object is wanted", metadata->type_name());
      source.metadata = metadata->dump();
    }
    return source;
  });
}

void add_lines(std::vector<SourceText>& texts, const std::string& file, std::string_view content) {
  size_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      texts.push_back(text_of_line(line, fmt::format("{}:{}", file, number)));
    begin = end + 1;
  }
}

}  // namespace

std::vector<SourceText> read_texts(const CommonOptions& common, const std::vector<std::string>& paths) {
  std::vector<SourceText> texts;
  for (const std::string& file : text_files(paths)) {
    std::string text = read_text(file);
    check_is_text(common, file, text);
    if (file.ends_with(".jsonl"))
      add_lines(texts, file, text);
    else
      texts.push_back({.name = file, .text = std::move(text)});
  }
  return texts;
}

std::vector<Document> read_token_lines(const std::string& file, const char* wanted) {
  const std::string text = read_text(file);
  refuse_binary(file, text, wanted);
  std::vector<Document> documents;
  size_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++line_number;
    Document document{.name = fmt::format("{}:{}", file, line_number), .tokens = {}};
    for (size_t at = begin; at < end;) {
      if (std::string_view(" \t\r,").find(text[at]) != std::string_view::npos) {
        ++at;
        continue;
      }
      uint32_t id = 0;
      const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
      if (error != std::errc{})
        throw bad_input(
            "{}: line {} has '{}', which is not a token id", file, line_number,
            text.substr(at, std::min<size_t>(text.find_first_of(" \t\r,\n", at), end) - at).substr(0, 40));
      document.tokens.push_back(id);
      at = static_cast<size_t>(stop - text.data());
    }
    if (!document.tokens.empty()) documents.push_back(std::move(document));
    begin = end + 1;
  }
  return documents;
}

TokenTemplate template_of(const Tokenizer& tokenizer) {
  const auto plain = tokenizer.encode("a", false), full = tokenizer.encode("a", true);
  const auto place = std::search(full.begin(), full.end(), plain.begin(), plain.end());
  return {{full.begin(), place}, {place + static_cast<std::ptrdiff_t>(plain.size()), full.end()}};
}

void add_document(std::vector<Document>& documents, const Document& whole, const TokenTemplate& around,
                  uint64_t chunk) {
  const auto& [name, tokens, metadata] = whole;
  const size_t extra = around.before.size() + around.behind.size();
  if (chunk > 0 && chunk <= extra)
    throw usage_error("--chunk is {}; {} of these are special tokens, it must be larger", chunk, extra);
  const size_t piece = chunk > 0 ? chunk - extra : std::max<size_t>(tokens.size(), 1);
  const size_t pieces = (tokens.size() + piece - 1) / piece;
  for (size_t p = 0; p < pieces; ++p) {
    Document document{pieces > 1 || chunk > 0 ? fmt::format("{}#{}", name, p) : name, around.before,
                      metadata};
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(p * piece);
    document.tokens.insert(document.tokens.end(), first,
                           first + static_cast<std::ptrdiff_t>(std::min(piece, tokens.size() - p * piece)));
    document.tokens.insert(document.tokens.end(), around.behind.begin(), around.behind.end());
    documents.push_back(std::move(document));
  }
}

}  // namespace kvcodec::cli
