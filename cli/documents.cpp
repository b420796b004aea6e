#include "cli/documents.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "lib/core/error.hpp"
#include "lib/model/tokenizer_unicode.hpp"

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

std::string read_text(const std::string& file) {
  std::ifstream opened;
  if (file != "-") {
    std::error_code error;
    if (fs::is_directory(file, error)) throw bad_input("{}: is a folder; a text file is wanted here", file);
    errno = 0;
    opened.open(file, std::ios::binary);
    if (!opened) throw bad_input("{}: cannot be read: {}", file, std::strerror(errno));
  }
  std::istream& in = file == "-" ? std::cin : opened;
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) throw bad_input("{}: cannot be read to its end", file);
  return text;
}

void check_is_text(const std::string& command, const std::string& file, std::string_view text, bool quiet) {
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw bad_input("{}: byte {} is zero: this is no text in UTF-8", file, zero);
  const size_t good = valid_utf8_prefix(text);
  if (good < text.size() && !quiet)
    std::fputs(fmt::format("kvcodec {}: note: {}: byte {} is not UTF-8; such bytes are read as U+FFFD\n",
                           command, file, good)
                   .c_str(),
               stderr);
}

TokenTemplate template_of(const Tokenizer& tokenizer) {
  const auto plain = tokenizer.encode("a", false), full = tokenizer.encode("a", true);
  const auto place = std::search(full.begin(), full.end(), plain.begin(), plain.end());
  return {{full.begin(), place}, {place + static_cast<std::ptrdiff_t>(plain.size()), full.end()}};
}

void add_document(std::vector<Document>& documents, const std::string& name,
                  const std::vector<uint32_t>& tokens, const TokenTemplate& around, uint64_t chunk) {
  const size_t extra = around.before.size() + around.behind.size();
  if (chunk > 0 && chunk <= extra)
    throw usage_error("--chunk is {}; {} of these are special tokens, it must be larger", chunk, extra);
  const size_t piece = chunk > 0 ? chunk - extra : std::max<size_t>(tokens.size(), 1);
  const size_t pieces = (tokens.size() + piece - 1) / piece;
  for (size_t p = 0; p < pieces; ++p) {
    Document document{pieces > 1 || chunk > 0 ? fmt::format("{}#{}", name, p) : name, around.before};
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(p * piece);
    document.tokens.insert(document.tokens.end(), first,
                           first + static_cast<std::ptrdiff_t>(std::min(piece, tokens.size() - p * piece)));
    document.tokens.insert(document.tokens.end(), around.behind.begin(), around.behind.end());
    documents.push_back(std::move(document));
  }
}

}  // namespace kvcodec::cli
