// Books inside open files: at the root of their own files, below /book in codes files. Inside formats/ only.
#pragma once

#include <string>

#include "formats/hdf5/hdf5.hpp"
#include "lib/codec/book.hpp"

namespace kvcodec {

/// Throws Error(bad_input) if the book is damaged or its digest does not hold.
Book read_book_at(const h5::File& file, const std::string& group, const std::string& type,
                  bool with_training);
/// Returns the bytes of the arrays written.
uint64_t write_book_at(h5::File& file, const std::string& group, const Book& book, bool with_training);

}  // namespace kvcodec
