// Files of books: `dictionary`, `codebooks`, `transform` (FORMAT.md, "dictionary"). Any Book can be written, whatever codec it is
// for.
#pragma once

#include <string>
#include <string_view>

#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"
#include "lib/codec/book.hpp"

namespace kvcodec {

/// True if files of that type hold a book.
bool is_book_type(std::string_view type);

struct BookFile {
  Book book;
  ModelInfo model;     ///< whose caches it was learned from
  std::string digest;  ///< of the book; checked against the content on reading
  FileType type;
};

/// with_training: also reads the arrays under training/ (needed for --resume and for `info`, not for coding). Throws
/// Error(bad_input) if the file is not a book of type `type` (empty = any book), if it is damaged, or if its digest does not match.
BookFile read_book(const std::string& file, const std::string& type, bool with_training);

/// Writes and closes the file; the caller commits the OutputFile.
void write_book(OutputFile& output, const Book& book, const ModelInfo& model, const Provenance& provenance);

}  // namespace kvcodec
