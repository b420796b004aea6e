// Books of caches whose layers are not alike, and codecs with such books.
//
// Layers are of one kind if they have the same heads with the same dimensions and hold the same tokens: the full-attention layers of a
// hybrid, say, or the layers with windows beside the others. A book learns each kind by itself, as if a model had its layers alone, numbered
// from 0; join_kinds() makes one book of all. So codecs with a book need not know that layers differ.
//
// Joined books have the parameter `kinds`: the layers of each kind, as "0,1,3;2". Parameters and arrays that are the same in all of them
// have their own names; those of kind k are named "k/NAME", in the record of training "training/k/NAME".
#pragma once

#include <memory>
#include <vector>

#include "lib/codec/book.hpp"
#include "lib/codec/codec.hpp"

namespace kvcodec {

/// The layers of each kind, rising; kinds in the order of their first layers.
using LayerKinds = std::vector<std::vector<int>>;

/// A book for all kinds, from one for each. If there is one kind, of all layers of the model, it is its book as it is.
Book join_kinds(const LayerKinds& kinds, std::vector<Book> books, int num_layers);

/// The kinds that a book names; none if it is for all layers of the model, which are alike. Throws Error(bad_input) for a list that is
/// none, and for a layer that is named twice.
LayerKinds kinds_in(const Book& book);

/// The book of one kind of them; without kinds, the book itself.
Book book_of_kind(const Book& book, size_t kind);

/// entry.make, with a codec for each kind that the book names. Throws what that throws, and Error(bad_input) if the book's kinds are not
/// those of the cache.
std::unique_ptr<Codec> make_for_kinds(const CodecEntry& entry, const Options& options,
                                      const CodecContext& context);

}  // namespace kvcodec
