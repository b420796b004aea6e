// Books of type `dictionary`: what train-dict learns and the codec `sparse` needs. Parameters and arrays:
// FORMAT.md, "sparse". Beside these, parameters are all of TrainOptions by the names of its fields, and
// `source`; and for each dictionary <part> the record of its training has
//   training/<part>/loss             f64 [steps]         training/<part>/replaced       u32 [steps]
//   training/<part>/validation       f64 [validations]   training/<part>/usage          u64 [atoms]
//   training/<part>/adam_mean, …/adam_variance    f32 [atoms, width]                     with optimizer adam
//   training/<part>/seconds          f64 [steps]
//   training/<part>/stable           u8  [1]                    1: stopped because the loss was stable
//   training/<part>/atoms            f32 [atoms, width]         with atom-type i8: before they were rounded
#pragma once

#include <string>
#include <vector>

#include "lib/codec/book.hpp"
#include "lib/codec/codec.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/train.hpp"

namespace kvcodec {

struct SparseBook {
  TrainOptions options;  ///< atom_type: how to_book keeps the atoms, or how they were kept
  int num_layers = 0, heads = 0, head_dim = 0;  ///< of the model
  int value_dim = kAsKeys;                      ///< with 0 there are dictionaries of keys alone
  RopeChoice rope = RopeChoice::keep;           ///< the keys it was learned from
  std::string source;                           ///< identifies the data it was learned from

  struct OneSide {
    Dictionary dictionary;
    TrainState training;
  };

  /// The dictionaries of some layers. Reading a book gives every part the means and scales of all layers;
  /// writing one takes those of a layer from the part that has the layer.
  struct Part {
    int first_layer = 0;  ///< 0 where it is for all layers
    OneSide key = {}, value = {};

    OneSide& of(Side side) { return side == Side::key ? key : value; }
    const OneSide& of(Side side) const { return side == Side::key ? key : value; }
  };
  std::vector<Part> parts = std::vector<Part>(1);  ///< of all layers (dict-scope global), or of each group

  OneSide& of(Side side, size_t part = 0) { return parts[part].of(side); }
  const OneSide& of(Side side, size_t part = 0) const { return parts[part].of(side); }

  bool global() const { return options.dict_scope == DictScope::global; }
  /// The part for the group that begins at this layer. Throws Error(bad_input) where there is none.
  size_t part_for(int first_layer) const {
    if (global()) return 0;
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i].first_layer == first_layer) return i;
    throw bad_input("the dictionary has no atoms for layer {}; it was trained without", first_layer);
  }
  LayerShape layer() const { return layer_of(heads, head_dim, value_dim); }
  SignalLayout layout(Side side = Side::key) const { return options.layout(heads, layer().stored_dim(side)); }
  /// The sides that have dictionaries.
  std::span<const Side> sides() const { return std::span<const Side>(kSides).first(value_dim == 0 ? 1 : 2); }
};

/// Makes the book, with atoms normalized to norm 1. It frees the dictionaries of a side once they are copied:
/// if the caller moves `sparse` in, no more than one side is in memory twice. With atom-type i8 the training
/// record also keeps the atoms from before they were rounded to bytes.
Book to_book(SparseBook sparse);

/// Checks everything: type, parameters, shapes, norms, finite values. Throws Error(bad_input) naming the
/// array. with_training: also reads the training record, which must then be there, and the atoms are those
/// with which training continues; else the record stays empty, and the atoms are those to code with.
SparseBook sparse_book_from(const Book& book, bool with_training);

}  // namespace kvcodec
